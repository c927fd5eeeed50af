"""Replays a target's corpus and mutates it: `python -m tests.fuzz.cases_child NOW COUNT SEED TARGET...`.

A separate process, because a case may end it. NOW is the file with the running case; COUNT replaces a target's own
number of mutations unless it is 0; SEED is any text.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.fuzz.all_targets import TARGETS
from tests.fuzz.case_guard import CaseGuard
from tests.fuzz.case_loop import go_through


def main() -> None:
    """Runs the targets that the arguments name."""
    now, count, seed, *names = sys.argv[1:]
    go_through([TARGETS[name] for name in names], CaseGuard(Path(now)), int(count), seed)


if __name__ == "__main__":
    main()
