"""Counts the processes of a test run: a Python that starts as `-m services...` adds a line to the file in TEST_TALLY.

Python imports this module at its start because `tests/conftest.py` puts this folder on PYTHONPATH.
"""

import os
import sys


def _note() -> None:
    path, command = os.environ.get("TEST_TALLY"), sys.orig_argv
    if path and "-m" in command:
        module, *rest = command[command.index("-m") + 1 :]
        if module == "services.cli":
            module = " ".join([module, *rest[:1]])
        with open(path, "a") as tally:  # noqa: PTH123 (importing pathlib would slow every start)
            tally.write(module + "\n")


_note()
