"""What ends the `allm` command with a plain sentence."""


class Problem(Exception):
    """`allm` cannot go on; the message says why and what can be done, and needs no stack trace."""
