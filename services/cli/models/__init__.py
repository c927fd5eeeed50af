"""The `allm models` commands: a client of the catalog's API that uses no service internals."""
