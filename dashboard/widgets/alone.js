// Streamlit joins what widgets send until its next timer into one message, which names one fragment: a click in the
// same moment would be lost. So what no visitor clicked waits until nothing else is to be sent, and is sent at once.
const alone = (send) => requestIdleCallback(() => {
  const timer = window.setTimeout;
  window.setTimeout = (flush) => { queueMicrotask(flush); return 0; };
  try { send(); } finally { window.setTimeout = timer; }
}, { timeout: 500 });
