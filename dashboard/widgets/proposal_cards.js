// Sends the name of a clicked card to the server.
const listen = () => {
  const cards = { send: null };
  document.addEventListener("click", ({ target }) => {
    const card = target.closest("button[data-proposal]");
    if (card) cards.send(card.dataset.proposal);
  });
  return cards;
};

export default function ({ setTriggerValue }) {
  (window.headroomCards ??= listen()).send = (name) => setTriggerValue("taken", name);
}
