"""Batches split into parts that a library can compute."""

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
    """Computes a result for each of `shapes`, in their order. `compute` gets the indexes of equal shapes, split by
    `parts`, and returns a result for each index.
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
    """Yields the indexes in parts. The rows of a part, padded to its longest one, have at most `most` columns together;
    a longer row is alone. `lengths` are those of all rows.
    """
    part: list[int] = []
    for index in sorted(indexes, key=lambda index: lengths[index]):
        if part and (len(part) + 1) * lengths[index] > most:
            yield part
            part = []
        part.append(index)
    if part:
        yield part
