"""How is a result said? Numbers with their units, the names of things, sentences, HTML."""
