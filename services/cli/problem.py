"""The exception that ends the `allm` command with a plain sentence."""


class Problem(Exception):
    """An error that ends the command; the message gives the cause and a remedy, without a stack trace."""
