"""Who says so? The catalogue, the Hub, a repository's files: the doors to facts."""
