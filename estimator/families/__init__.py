"""What is this model? Its config's defaults, its modules, its tree of names, its layers' programs."""
