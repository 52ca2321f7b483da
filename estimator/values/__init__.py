"""What is asked and answered: numbers, keys, JSON texts, the nouns of a question and of an answer."""
