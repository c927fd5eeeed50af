"""Runs the `allm` command: `python -m services.cli`."""

from services.cli.main import run

if __name__ == "__main__":
    run()
