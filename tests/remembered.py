"""Cached results of reference implementations: computed once per machine, and kept in the user's cache folder.

Only references are cached, never results of allm. The file name covers everything that the result depends on: the
packages with their versions, the input, and the test file that computes it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.demo_model import models_cache


def remembered(test: str, packages: Iterable[str], given: Iterable[bytes], make: Callable[[], Any]) -> Any:
    """Returns the result of `make`, which must be JSON, or the result of an earlier run with the same inputs.

    `test` is the caller's `__file__`; `given` is the input of `make`, its name first.
    """
    parts = [Path(test).read_bytes(), *(f"{name} {version(name)}".encode() for name in packages), *given]
    digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
    path = models_cache().with_name("test-references") / f"{Path(test).stem}-{digest}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(make()))
        partial.replace(path)
    return json.loads(path.read_text())
