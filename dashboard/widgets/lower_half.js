// Asks for a part of the page that no move computes, when the visitor looks at it or pauses.
const PAUSE = 1500; // milliseconds
const begin = ({ part, mark, soon }) => {
  const half = { send: null };
  const box = () => document.querySelector(`.st-key-${part}`);
  const of = (which) => document.querySelector(`.hr-${which}`)?.dataset.setup;
  let timer = 0, planned = "", watched = null, isSeen = false;
  const watcher = new IntersectionObserver((changes) => { // to measure it in each look would lay out the page each time
    isSeen = changes.at(-1).isIntersecting;
    look();
  });
  const watch = (now) => {
    if (now === watched) return;
    watcher.disconnect();
    watcher.observe(watched = now);
  };
  const look = () => {
    if (!box()) return;
    watch(box());
    const now = of("now"), isLate = now !== of(mark);
    box().inert = isLate && part === "below"; // the flags of a ruler that is late still move
    const plan = isLate ? `${now} ${isSeen}` : "";
    if (plan === planned) return;
    planned = plan;
    clearTimeout(timer);
    if (plan) timer = setTimeout(() => alone(() => half.send(now)), isSeen ? soon : PAUSE);
  };
  new MutationObserver(look).observe(document.querySelector(".stApp"),
    { childList: true, subtree: true, attributeFilter: ["data-setup"] });
  new MutationObserver(() => { // a run that a visitor's move has interrupted left its part undone
    if (document.querySelector(".stApp").dataset.testScriptState === "notRunning") { planned = ""; look(); }
  }).observe(document.querySelector(".stApp"), { attributeFilter: ["data-test-script-state"] });
  return half;
};

export default function ({ data: [data], setTriggerValue }) {
  const halves = window.headroomHalves ??= {};
  (halves[data.part] ??= begin(data)).send = (now) => setTriggerValue("asked", now);
}
