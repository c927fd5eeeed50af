"""Computes in parts what a library cannot compute in one batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

Result = TypeVar("Result")


def in_groups(
    shapes: Iterable[Hashable],
    compute: Callable[[list[int]], Iterable[Result]],
    parts: Callable[[list[int]], Iterable[list[int]]] = lambda indexes: (indexes,),
) -> list[Result]:
    """Results in the order of `shapes`; `compute` gets the indexes of equal ones, in `parts`, and gives a result for
    each.
    """
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index, shape in enumerate(shapes):
        groups[shape].append(index)
    results: dict[int, Result] = {}
    for indexes in groups.values():
        for part in parts(indexes):
            results.update(zip(part, compute(part), strict=True))
    return [results[index] for index in range(len(results))]


def padded_parts(indexes: Iterable[int], lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """The indexes in parts whose rows, all as long as the part's longest one, have at most `most` columns together; a
    row that is longer than that is alone. `lengths` are those of all rows.
    """
    part: list[int] = []
    for index in sorted(indexes, key=lambda index: lengths[index]):
        if part and (len(part) + 1) * lengths[index] > most:
            yield part
            part = []
        part.append(index)
    if part:
        yield part
