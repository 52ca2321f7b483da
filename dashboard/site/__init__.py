"""Navigation between pages: the router and the links."""
