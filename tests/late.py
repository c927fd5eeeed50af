"""Lazy imports: the first test that uses a slow library, such as torch, imports it."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Late:
    """A proxy of a module: imports the module at the first access to an attribute."""

    __slots__ = ("_name",)  # and no __dict__, so that monkeypatch finds the module's

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    def __getattr__(self, name: str) -> Any:
        # While pytest collects, it asks every object for its bases, for `__test__`, and whether it is a mock.
        if name.startswith("__") or name == "_mock_name":
            raise AttributeError(name)
        return getattr(import_module(self._name), name)

    def __dir__(self) -> list[str]:
        return dir(import_module(self._name))

    def __setattr__(self, name: str, value: object) -> None:
        setattr(import_module(self._name), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(import_module(self._name), name)


def late(name: str) -> Any:
    """Returns a lazy module: `torch = late("torch")` instead of `import torch`."""
    return Late(name)
