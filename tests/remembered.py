"""What a reference implementation makes of fixed input: computed once a machine, and kept in the user's cache folder.

Only what is compared with is remembered, never anything of ours. What the result depends on is part of its name: the
packages in their versions, the input, and the test file that computes it.
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
    """What `make` returns, which JSON can hold; from an earlier run where there was one with the same of everything.

    `test` is the `__file__` of the caller, `given` what `make` works on, its name first.
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
