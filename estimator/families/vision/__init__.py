"""What is a vision tower? Its modules and projector, and how its features enter the text; `known/` has one per kind."""
