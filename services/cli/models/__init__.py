"""The `allm models` commands: a client of the catalog, of no service's insides."""
