"""The `allm` command, and the supervisor behind `allm serve`."""
