"""Browser script: scrolls to the verdict, closes the sidebar on a phone, and keeps details open."""

from __future__ import annotations

SCRIPT = """<script data-of="headroom">
if (!window.headroomManners) {
  window.headroomManners = true;
  const PHONE = 640;
  const main = () => document.querySelector('[data-testid="stMain"]');
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const toVerdict = () => main()?.scrollTo({ top: 0, behavior: calm.matches ? "auto" : "smooth" });
  const closeSidebar = () => {
    const open = '[data-testid="stSidebarCollapseButton"] button[aria-expanded="true"]';
    if (innerWidth <= PHONE) document.querySelector(open)?.click();
  };
  document.addEventListener("click", ({ target }) => {
    if (target.closest("button[data-proposal]")) toVerdict();
    if (target.closest(".hr-stays")) { closeSidebar(); toVerdict(); }
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
stay open when their text is redrawn."""
