"""How does one get from page to page? The router and the links."""
