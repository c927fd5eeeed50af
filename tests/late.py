"""Libraries that take seconds to import, such as torch, are imported by the first test that uses them."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Late:
    """Stands for a module: whatever is asked of it is asked of the module."""

    __slots__ = ("_name",)  # and no __dict__, so that monkeypatch finds the module's

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)

    def __dir__(self) -> list[str]:
        return dir(import_module(self._name))

    def __setattr__(self, name: str, value: object) -> None:
        setattr(import_module(self._name), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(import_module(self._name), name)


def late(name: str) -> Any:
    """`torch = late("torch")` in the place of `import torch`."""
    return Late(name)
