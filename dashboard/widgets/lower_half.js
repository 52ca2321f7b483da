// Asks for the lower half of the page when it is looked at, or when the visitor pauses; until it has come, it is dimmed.
const SOON = 100, PAUSE = 1500; // milliseconds
const begin = () => {
  const half = { send: null };
  const box = () => document.querySelector(".st-key-below");
  const of = (which) => document.querySelector(`.hr-${which}`)?.dataset.of;
  const isSeen = () => {
    const { top, bottom } = box().getBoundingClientRect();
    return top < innerHeight && bottom > 0;
  };
  let timer = 0, planned = "";
  const look = () => {
    if (!box()) return;
    const now = of("now"), isLate = now !== of("drawn");
    box().toggleAttribute("data-late", isLate);
    box().inert = isLate;
    const plan = isLate ? `${now} ${isSeen()}` : "";
    if (plan === planned) return;
    planned = plan;
    clearTimeout(timer);
    if (plan) timer = setTimeout(() => alone(() => half.send(now)), isSeen() ? SOON : PAUSE);
  };
  new MutationObserver(look).observe(document.querySelector(".stApp"),
    { childList: true, subtree: true, attributeFilter: ["data-of"] });
  addEventListener("scroll", look, { capture: true, passive: true });
  addEventListener("resize", look);
  return half;
};

export default function ({ setTriggerValue }) {
  (window.headroomHalf ??= begin()).send = (now) => setTriggerValue("asked", now);
}
