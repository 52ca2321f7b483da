"""Browser script: scrolls to the verdict, leads to controls, closes the sidebar on a phone, keeps details open."""

from __future__ import annotations

SCRIPT = """<script data-of="headroom">
if (!window.headroomManners) {
  window.headroomManners = true;
  const PHONE = 640;
  const main = () => document.querySelector('[data-testid="stMain"]');
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const toVerdict = () => main()?.scrollTo({ top: 0, behavior: calm.matches ? "auto" : "smooth" });
  const PATIENCE = 3000;
  const lead = ({ leads, within }, until) => {
    const box = document.querySelector(`.${leads}`);
    const control = box?.querySelector('[aria-checked="true"], input, button:not([aria-label])');
    const isReady = control?.getBoundingClientRect().right > 0;
    if (isReady) {
      box.scrollIntoView({ block: "center" });
      control.focus({ preventScroll: true });
      lead.opened = null;
      return;
    }
    const closed = document.querySelector('[data-testid="stExpandSidebarButton"]')
      ?? within?.split(" ").map((it) => document.querySelector(`.${it} > details:not([open]) > summary,
        .${it} > div > details:not([open]) > summary`)).find((it) => it);
    if (closed && closed !== lead.opened) (lead.opened = closed).click();
    if (performance.now() < until) setTimeout(lead, 50, { leads, within }, until);
    else lead.opened = null;
  };
  const closeSidebar = () => {
    const open = '[data-testid="stSidebarCollapseButton"] button[aria-expanded="true"]';
    if (innerWidth <= PHONE) document.querySelector(open)?.click();
  };
  document.addEventListener("click", ({ target }) => {
    if (target.closest("button[data-proposal]")) toVerdict();
    if (target.closest(".hr-stays")) { closeSidebar(); toVerdict(); }
    const word = target.closest("button[data-leads]");
    if (word) lead(word.dataset, performance.now() + PATIENCE);
  });
  for (const name of ["pushState", "replaceState"]) {
    const write = history[name].bind(history);
    history[name] = (state, title, url) => {
      const before = location.href;
      write(state, title, url);
      if (location.href !== before && !document.activeElement?.matches("input")) closeSidebar();
    };
  }
  const opened = {};
  document.addEventListener("toggle", ({ target }) => {
    if (target.dataset?.hr) opened[target.dataset.hr] = target.open;
  }, true);
  new MutationObserver(() => {
    for (const it of document.querySelectorAll("details[data-hr]:not([open])"))
      if (opened[it.dataset.hr]) it.open = true;
  }).observe(document.querySelector(".stApp"), { childList: true, subtree: true });
}
</script>"""
"""A click on a proposal scrolls to the verdict, which it changes. On a phone the sidebar covers the page. A choice in
the sidebar closes it; a slider or a typed number does not. A touch of the verdict below also closes it. Open details
stay open when their text is redrawn. A word of the setup's sentence opens what its control is in, and focuses it."""
