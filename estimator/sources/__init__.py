"""Where do facts come from? The catalogue, the Hub, a repository's files."""
