"""The wording of results: numbers with units, labels, sentences, HTML."""
