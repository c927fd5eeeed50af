"""The declaration of a setting as a field of a dataclass, and the reader of an environment.

`port: int = setting.integer("ALLM_PORT", 8080, 0, 65535, "", "gateway")` declares a setting; the string below the field
is its sentence in docs/settings.md (setting_page.py). A function per kind of value declares it; `row` are the fields
`allowed`, `means` and `section` of `Setting`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints
from urllib.parse import urlsplit

from services.byte_count import bytes_word

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
Number = TypeVar("Number", int, float)
Group = TypeVar("Group", bound="DataclassInstance")

MAX_PORT = 65535
HTTPS_PORT = 443
SETTING = "setting"  # key of a field's metadata
INTERNAL = ""  # `read_by` of a variable that is not in docs/settings.md
HOME_VARIABLE = "ALLM_HOME"
DEFAULT_HOME = "~/.allm"


class SettingError(Exception):
    """An environment variable has a value that is not allowed."""

    def __init__(self, variable: str, value: str, allowed: str) -> None:
        super().__init__(f"{variable}={value!r} is not allowed: it must be {allowed}")
        self.variable = variable
        self.allowed = allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting: one environment variable. The texts are in Markdown, for docs/settings.md."""

    name: str
    parse: Callable[[str], Any]  # raises SettingError
    read_by: str  # processes, or INTERNAL
    allowed: str
    shown: str = ""  # the default, as a value of the variable; empty: none
    means: str = ""  # the default in words
    unit: str = ""
    section: str = ""  # empty: the SECTION of the dataclass


def read(group: type[Group], environ: Mapping[str, str], **given: object) -> Group:
    """Reads all settings of a dataclass; an empty variable counts as unset. `given` are its other fields.

    Raises:
        SettingError: a variable has a value that is not allowed.
    """
    for each in fields(group):
        setting: Setting | None = each.metadata.get(SETTING)
        if setting and (value := environ.get(setting.name, "").strip()):
            given[each.name] = setting.parse(value)
        elif isinstance(each.default, Path):
            home = environ.get(HOME_VARIABLE, "").strip() or DEFAULT_HOME
            given[each.name] = _absolute(str(each.default).replace(f"${HOME_VARIABLE}", home))
    return group(**given)


def declared(kind: type[Any]) -> Iterator[tuple[type[Any], str, Setting]]:
    """Yields the settings of a dataclass and of the dataclasses in its fields, each with its class and field."""
    hints = get_type_hints(kind)
    for each in fields(kind):
        if found := each.metadata.get(SETTING):
            yield kind, each.name, found
        elif is_dataclass(inner := hints[each.name]) and isinstance(inner, type):
            yield from declared(inner)


def declare(name: str, default: T, parse: Callable[[str], T], read_by: str, secret: bool = False, /, **row: str) -> T:
    """Declares a setting with a parser of its own. The `repr` of its dataclass leaves a secret out."""
    setting = Setting(name=name, parse=parse, read_by=read_by, **row)
    return field(default=default, repr=not secret, metadata={SETTING: setting})


def text(name: str, default: str, read_by: str, secret: bool = False, /, **row: str) -> str:
    """A text without surrounding spaces."""
    return declare(name, default, str, read_by, secret, **{"allowed": "text", "shown": default, **row})


def path(name: str, default: str, read_by: str, **row: str) -> Path:
    """An absolute path; `~` is the home folder, and the default may begin with `$ALLM_HOME`."""
    return declare(name, Path(default), _absolute, read_by, **{"allowed": "path", "shown": default, **row})


def file(name: str, read_by: str, **row: str) -> Path | None:
    """The absolute path of a file; None if unset."""
    parse: Callable[[str], Path | None] = _absolute
    return declare(name, None, parse, read_by, **{"allowed": "path of a file", **row})


def program(name: str, read_by: str, **row: str) -> str:
    """An absolute path that keeps its links: an interpreter finds its packages by its own path."""
    return declare(name, "", lambda value: str(_absolute(value)), read_by, **row)


def integer(name: str, default: int, low: int, high: int, unit: str, read_by: str, **row: str) -> int:
    """A whole number within bounds."""
    return _number(name, default, int, "a whole number", low, high, unit, read_by, **row)


def integer_or(word: str, name: str, low: int, high: int, unit: str, read_by: str, **row: str) -> int | None:
    """A whole number within bounds, or a word, which is the default and becomes None."""

    def parse(value: str) -> int | None:
        return None if value.lower() == word else _parse(name, value, int, f"{word}, or a whole number", low, high)

    allowed = f"`{word}`, {_figure(low, unit)} to {_figure(high, unit)}"
    return declare(name, None, parse, read_by, unit=unit, allowed=allowed, shown=word, **row)


def number(name: str, default: float, low: float, high: float, unit: str, read_by: str, **row: str) -> float:
    """A number within bounds."""
    return _number(name, default, float, "a number", low, high, unit, read_by, **row)


def seconds(name: str, default: float, low: float, high: float, read_by: str, **row: str) -> float:
    """A number of seconds within bounds."""
    return _number(name, default, float, "a number of seconds", low, high, "seconds", read_by, **row)


def choice(name: str, default: str, words: tuple[str, ...], read_by: str, **row: str) -> str:
    """One of the words, in lower case."""

    def parse(value: str) -> str:
        if value.lower() not in words:
            raise SettingError(name, value.lower(), f"one of {', '.join(words)}")
        return value.lower()

    return declare(name, default, parse, read_by, allowed=_quoted(words), shown=default, **row)


def switch(name: str, default: bool, read_by: str, *, on: str = "on", **row: str) -> bool:
    """True for the word `on`, False for `off`."""

    def parse(value: str) -> bool:
        if value.lower() not in (on, "off"):
            raise SettingError(name, value.lower(), f"one of {on}, off")
        return value.lower() == on

    return declare(name, default, parse, read_by, allowed=_quoted((on, "off")), shown=on if default else "off", **row)


def names(name: str, read_by: str, default: tuple[str, ...] = (), **row: str) -> tuple[str, ...]:
    """The elements of a comma-separated list."""
    words = {"allowed": "list", "shown": ",".join(default), **row}
    return declare(name, default, lambda value: split(value) or default, read_by, **words)


def folders(name: str, read_by: str, **row: str) -> tuple[Path, ...]:
    """Absolute paths, comma-separated."""
    return declare(name, (), lambda value: tuple(map(_absolute, split(value))), read_by, **row)


def origins(name: str, read_by: str, **row: str) -> tuple[str, ...]:
    """Web origins, comma-separated."""

    def parse(value: str) -> tuple[str, ...]:
        for origin in split(value):
            scheme, separator, host = origin.partition("://")
            if scheme not in ("http", "https") or not separator or not host or "/" in host or "*" in host:
                raise SettingError(name, origin, "a comma-separated list of origins such as https://app.example.org")
        return split(value)

    return declare(name, (), parse, read_by, allowed="list of `https://host`", **row)


def hosts(name: str, read_by: str, **row: str) -> tuple[str, ...]:
    """Hosts of https addresses, comma-separated, in lower case: `host`, or `host:port` for another port than 443."""

    def parse(value: str) -> tuple[str, ...]:
        return tuple(_host(name, host) for host in split(value))

    return declare(name, (), parse, read_by, allowed="list of `host` or `host:port`", **row)


def _host(name: str, value: str) -> str:
    try:
        parts = urlsplit(f"https://{value}" if value.count(":") < 2 or "[" in value else f"https://[{value}]")
        host, port = ascii_host(parts.hostname or ""), parts.port
    except ValueError:
        host, port = "", None
    if not host or port == 0 or set(value) & set("/@?#\\* "):
        raise SettingError(name, value, "a comma-separated list of hosts such as images.example.org")
    return netloc(host, port)


def ascii_host(host: str) -> str:
    """Returns a host as it stands in certificates. Raises ValueError if it is none."""
    return host if ":" in host else host.encode("idna").decode()


def netloc(host: str, port: int | None) -> str:
    """Returns the host of an https address as `hosts` lists it."""
    shown = f"[{host}]" if ":" in host else host
    return shown if port in (None, HTTPS_PORT) else f"{shown}:{port}"


def pairs(name: str, shape: str, convert: Callable[[str], T], read_by: str, **row: str) -> tuple[tuple[str, T], ...]:
    """Comma-separated `key=value` pairs with converted values; `shape` is an example."""

    def parse(value: str) -> tuple[tuple[str, T], ...]:
        found = []
        for part in split(value):
            key, _, member = map(str.strip, part.partition("="))
            if not key or not member:
                raise SettingError(name, part, f"a comma-separated list of {shape}")
            found.append((key, convert(member)))
        return tuple(found)

    return declare(name, (), parse, read_by, allowed=f"list of `{shape}`", **row)


def url(name: str, read_by: str, **row: str) -> str:
    """The URL of an HTTP server, without a trailing slash; empty if unset."""
    return declare(
        name, "", lambda value: parse_url(name, value), read_by, allowed="`https://host` or `http://host`", **row
    )


def parse_url(name: str, value: str) -> str:
    """Checks the URL of an HTTP server. Raises SettingError."""
    found = value.rstrip("/")
    try:
        parts = urlsplit(found)
        valid = bool(parts.hostname) and parts.port != -1 and parts.username is None
    except ValueError:  # an invalid port
        valid = False
    if not valid or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
        raise SettingError(name, found, "an address such as https://ai.example.org, without user and query")
    return found


def endpoint(name: str, word: str, read_by: str, **row: str) -> str:
    """A server's `host:port`, or `word`, which requests automatic discovery; empty if unset."""

    def parse(value: str) -> str:
        host, _, port = value.rpartition(":")
        valid = host and not set(host) & set("/@ ") and port.isascii() and port.isdigit() and 0 < int(port) <= MAX_PORT
        if value != word and not valid:
            raise SettingError(name, value, f"{word}, or an address such as 10.0.0.1:6379")
        return value

    return declare(name, "", parse, read_by, allowed=f"`{word}`, `host:port`", **row)


def redis(name: str, read_by: str, **row: str) -> str:
    """The URL of Redis; empty if unset."""

    def parse(value: str) -> str:
        try:
            parts = urlsplit(value)
            valid = parts.path if parts.scheme == "unix" else parts.hostname and parts.port != 0
        except ValueError:  # an invalid port
            valid = None
        if not valid or parts.scheme not in ("redis", "rediss", "unix"):
            # Not the value: it may contain a password.
            raise SettingError(name, "...", "redis://host:port/0, rediss://user:password@host:port/0 or unix:///path")
        return value

    return declare(name, "", parse, read_by, True, allowed="`redis://`, `rediss://` or `unix://`", **row)


def split(value: str) -> tuple[str, ...]:
    """Returns the elements of a comma-separated list."""
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _number(
    name: str,
    default: Number,
    convert: Callable[[str], Number],
    what: str,
    low: Number,
    high: Number,
    unit: str,
    read_by: str,
    **row: str,
) -> Number:
    def parse(value: str) -> Number:
        return _parse(name, value, convert, what, low, high)

    allowed = f"{_figure(low, unit)} to {_figure(high, unit)}"
    shown = str(default) if isinstance(default, int) else f"{default:g}"
    return declare(name, default, parse, read_by, unit=unit, allowed=allowed, shown=shown, **row)


def _parse(name: str, value: str, convert: Callable[[str], Number], what: str, low: Number, high: Number) -> Number:
    with suppress(ValueError):
        if low <= (found := convert(value)) <= high:
            return found
    raise SettingError(name, value, f"{what} from {low} to {high}")


def _figure(value: float, unit: str) -> str:
    if unit == "bytes":
        return bytes_word(value).replace(".0 ", " ") if value else "0"
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def _quoted(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _absolute(value: str) -> Path:
    return Path(value).expanduser().absolute()
