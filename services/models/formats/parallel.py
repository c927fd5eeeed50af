"""Looks at many files at a time: of remote ones most of the time is spent waiting for the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

THREADS = 8
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_parallel(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """The results in the order of the items. The first that fails ends it all, with its error."""
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="inspect")
    try:
        return list(pool.map(function, items))
    finally:
        pool.shutdown(cancel_futures=True)
