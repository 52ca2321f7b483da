"""The same as one flat object: JSON, links, scenarios, text."""
