"""Nothing here is a test: `make played` runs it in an environment of its own."""

collect_ignore_glob = ["*.py"]
