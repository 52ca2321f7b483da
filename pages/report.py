"""Report: a plan as a document to print, for a meeting."""

from dashboard.plan import report_view
from dashboard.site import router

router.route()
report_view.draw()
