"""Parsing and checks of single environment variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")

MAX_PORT = 65535


class SettingError(Exception):
    """An environment variable has a value that is not allowed."""

    def __init__(self, variable: str, value: str, allowed: str) -> None:
        super().__init__(f"{variable}={value!r} is not allowed: it must be {allowed}")
        self.variable = variable
        self.allowed = allowed


@dataclass(frozen=True, slots=True)
class SettingReader:
    """A reader of single environment variables; an empty one counts as unset. All methods raise SettingError."""

    environ: Mapping[str, str]

    def text(self, name: str, default: str) -> str:
        """Returns a text without surrounding spaces."""
        self._note(name, default, "text")
        return self.environ.get(name, "").strip() or default

    def path(self, name: str, default: Path) -> Path:
        """Returns an absolute path; `~` is the home folder."""
        self._note(name, default, "path")
        return Path(self.text(name, str(default))).expanduser().absolute()

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """Returns a whole number within bounds."""
        return self._parsed(name, default, int, low, high, "a whole number")

    def seconds(self, name: str, default: float, low: float, high: float) -> float:
        """Returns a number of seconds within bounds."""
        return self._parsed(name, default, float, low, high, "a number of seconds")

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """Returns a number within bounds."""
        return self._parsed(name, default, float, low, high, "a number")

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        """Returns one of the allowed words, in lower case."""
        self._note(name, default, allowed)
        value = self.text(name, default).lower()
        if value not in allowed:
            raise SettingError(name, value, f"one of {', '.join(allowed)}")
        return value

    def switch(self, name: str, default: bool) -> bool:
        """Returns True for `on`, False for `off`."""
        return self.choice(name, "on" if default else "off", ("on", "off")) == "on"

    def names(self, name: str) -> tuple[str, ...]:
        """Returns the elements of a comma-separated list."""
        self._note(name, "", "list")
        return tuple(part.strip() for part in self.text(name, "").split(",") if part.strip())

    def origins(self, name: str) -> tuple[str, ...]:
        """Returns a comma-separated list of web origins."""
        self._note(name, "", "list of `https://host`")
        found = self.names(name)
        for origin in found:
            scheme, separator, host = origin.partition("://")
            if scheme not in ("http", "https") or not separator or not host or "/" in host or "*" in host:
                raise SettingError(name, origin, "a comma-separated list of origins such as https://app.example.org")
        return found

    def address(self, name: str, default: str) -> str:
        """Returns the URL of an HTTP server, without a trailing slash."""
        self._note(name, default, "`https://host` or `http://host`")
        url = self.text(name, default).rstrip("/")
        try:
            parts = urlsplit(url)
            there = bool(parts.hostname) and parts.port != -1 and parts.username is None
        except ValueError:  # an invalid port
            there = False
        if not there or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
            raise SettingError(name, url, "an address such as https://ai.example.org, without user and query")
        return url

    def endpoint(self, name: str, word: str) -> str:
        """Returns a server's `host:port`, or `word`, which requests automatic discovery; empty: no server."""
        self._note(name, "", f"`{word}`, `host:port`")
        value = self.text(name, "")
        host, _, port = value.rpartition(":")
        there = host and not set(host) & set("/@ ") and port.isascii() and port.isdigit() and 0 < int(port) <= MAX_PORT
        if value and value != word and not there:
            raise SettingError(name, value, f"{word}, or an address such as 10.0.0.1:6379")
        return value

    def redis(self, name: str) -> str:
        """Returns a Redis URL; empty: no Redis."""
        self._note(name, "", "`redis://`, `rediss://` or `unix://`")
        url = self.text(name, "")
        try:
            parts = urlsplit(url)
            there = parts.path if parts.scheme == "unix" else parts.hostname and parts.port != 0
        except ValueError:  # an invalid port
            there = None
        if url and not (parts.scheme in ("redis", "rediss", "unix") and there):
            # Not the value: it may contain a password.
            raise SettingError(name, "...", "redis://host:port/0, rediss://user:password@host:port/0 or unix:///path")
        return url

    def pairs(self, name: str, shape: str) -> tuple[tuple[str, str], ...]:
        """Returns comma-separated `key=value` pairs; `shape` is an example."""
        self._note(name, "", f"list of `{shape}`")
        found = []
        for part in self.names(name):
            key, _, value = part.partition("=")
            if not key.strip() or not value.strip():
                raise SettingError(name, part, f"a comma-separated list of {shape}")
            found.append((key.strip(), value.strip()))
        return tuple(found)

    def _note(self, name: str, default: object, allowed: str | tuple[object, ...]) -> None:
        """Hook for every read variable, with a number's bounds or the allowed words (setting_notes.py)."""

    def _parsed(self, name: str, default: T, parse: Callable[[str], T], low: T, high: T, what: str) -> T:
        self._note(name, default, (low, high))
        value = self.environ.get(name, "").strip()
        if not value:
            return default
        allowed = f"{what} from {low} to {high}"
        try:
            parsed = parse(value)
        except ValueError:
            raise SettingError(name, value, allowed) from None
        if not low <= parsed <= high:  # type: ignore[operator]
            raise SettingError(name, value, allowed)
        return parsed
