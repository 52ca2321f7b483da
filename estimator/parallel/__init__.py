"""Who holds which share, and what is sent? A file or two for each strategy."""
