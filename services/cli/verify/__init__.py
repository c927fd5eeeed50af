"""The checks of `allm models test`: the behaviour of a model that serves well, from a client's point of view."""
