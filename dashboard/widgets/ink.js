// No two setups at full ink: the verdict says which setup the page shows, and every part that shows another is dimmed.
//
// Each part has the mark of its setup. While the visitor is ahead of the server (a slider without its row, a choice that
// has not been answered within PATIENCE), all parts are dimmed, the verdict too.
const PATIENCE = 100, TOUCH = 500; // milliseconds
const ink = () => {
  const app = document.querySelector(".stApp");
  const ZONES = [".hr-verdict", ".hr-stays", ".hr-limits", ".st-key-hero", ".st-key-method-peaks", ".hr-cards-methods", ".st-key-below"];
  const CHOICE = '[data-testid="stSidebar"] *, [role="option"], [data-proposal], .st-key-below *';
  const NO_CHOICE = 'summary, summary *, [data-testid="stSlider"] *, .st-key-section *, .hr-plot *';
  let touched = -TOUCH, waits = false, timer = 0, ahead = false, answered = "";
  const markOf = (zone) => (zone.dataset.setup ? zone : zone.querySelector("[data-setup]"))?.dataset.setup;
  const look = () => {
    const now = document.querySelector(".hr-verdict")?.dataset.setup;
    if (now !== answered) { answered = now; waits = false; clearTimeout(timer); }
    app.toggleAttribute("data-waits", ahead || waits);
    for (const zone of document.querySelectorAll(ZONES)) {
      const of = markOf(zone);
      zone.toggleAttribute("data-late", Boolean(ahead || waits || (now && of && of !== now)));
    }
    const below = document.querySelector(".st-key-below");
    if (!below) return;
    const chosen = [...below.querySelectorAll('.st-key-section [role="radio"]')]
      .findIndex((it) => it.getAttribute("aria-checked") === "true");
    const runs = app.dataset.testScriptState === "running";
    if (chosen >= 0 && !below.querySelector(`.st-key-part-${chosen}`)) below.dataset.part = chosen;
    else if (!runs) delete below.dataset.part;
  };
  const touch = ({ target }) => {
    if (target.matches?.(CHOICE) && !target.matches(NO_CHOICE)) touched = performance.now();
  };
  for (const kind of ["click", "change", "keydown"]) document.addEventListener(kind, touch, true);
  addEventListener("popstate", () => { touched = performance.now(); });
  new MutationObserver(() => {
    clearTimeout(timer);
    const runs = app.dataset.testScriptState === "running";
    if (runs && performance.now() - touched < TOUCH) timer = setTimeout(() => { waits = true; look(); }, PATIENCE);
    if (!runs) waits = false;
    look();
  }).observe(app, { attributeFilter: ["data-test-script-state"] });
  new MutationObserver(look).observe(app, { childList: true, subtree: true, attributeFilter: ["data-setup", "aria-checked"] });
  return { ahead(is) { ahead = is; look(); } };
};
