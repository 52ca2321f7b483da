"""Plan: every setup that answers a question, and which to take."""

from dashboard.plan import view
from dashboard.site import router

router.route()
view.draw()
