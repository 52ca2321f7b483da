"""Compare: up to eight named setups side by side."""

from dashboard import comparison, kept, router

router.route()
page = comparison.read_page()
if kept.document().present is not None:
    comparison.present(page)
else:
    comparison.draw(page)
