"""Runs inspections in parallel threads, because remote files spend most of the time waiting for the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

THREADS = 8
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_parallel(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Returns the results in the order of the items. The first failure cancels the rest and is raised."""
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="inspect")
    try:
        return list(pool.map(function, items))
    finally:
        pool.shutdown(cancel_futures=True)
