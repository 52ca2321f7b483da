"""Compare: up to eight named setups side by side."""

from dashboard.compare import view
from dashboard.site import router
from dashboard.state import comparison

router.route()
page = view.read_page()
if comparison.document().present is not None:
    view.present(page)
else:
    view.draw(page)
