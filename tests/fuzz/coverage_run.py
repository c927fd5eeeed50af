"""Runs one target under atheris, guided by coverage: `python -m tests.fuzz.coverage_run TARGET LIBFUZZER-ARGS`.

A finding ends the process; libFuzzer then writes the case to the path in `-artifact_prefix`.
"""

from __future__ import annotations

import random
import sys

import atheris

with atheris.instrument_imports(include=["services", "jinja2", "python_multipart", "msgspec"]):
    from tests.fuzz.all_targets import TARGETS
    from tests.fuzz.case_guard import CaseGuard
    from tests.fuzz.case_mutator import Mutator


def main() -> None:
    """Runs the target. Never returns: libFuzzer ends the process."""
    target = TARGETS[sys.argv.pop(1)]
    guard = CaseGuard()

    def run(case: bytes) -> None:
        if fault := guard.fault(target, case):
            raise AssertionError(fault)

    def mutate(case: bytes, longest: int, seed: int) -> bytes:
        """Half of the cases come from our mutator, which knows text, and half from libFuzzer's, which uses coverage."""
        if random.Random(seed).random() < 0.5:  # noqa: S311 (libFuzzer's seed)
            return bytes(atheris.Mutate(case, longest))
        mutator = Mutator(seed, target.words, min(longest, target.longest))
        return mutator.mutated(case, mutator.choose(kept))

    kept = [path.read_bytes() for path in target.corpus] or [b""]
    atheris.Setup([sys.argv[0], f"-max_len={target.longest}", *sys.argv[1:]], run, custom_mutator=mutate)
    if not target.children:
        guard.limit()
    atheris.Fuzz()


if __name__ == "__main__":
    main()
