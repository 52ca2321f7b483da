"""What is a model that sees? Its tower, its projector, how an image enters the text; a file a kind in ``known/``."""
