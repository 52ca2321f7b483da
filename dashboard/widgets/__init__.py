"""What can be set, and how is it drawn? One file a control or a group of them."""
