"""The builder of a release in dist/: distributions, hashed constraints, and the list of components."""
