"""What `make release` makes in dist/: the distributions, their hashed constraints, and their list of components."""
