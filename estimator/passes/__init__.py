"""What is a step? Forward passes of models followed by a loss; one file per objective."""
