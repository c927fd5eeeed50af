"""The console: static files that Envoy itself answers with, at `/` and below `/assets/`; web/ holds their sources."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DIST = Path(__file__).parents[1] / "web" / "dist"
LIST = "files.json"  # what there is, written by web/build.mjs
PACKED = "console"  # folder of the compressed files, below the gateway's own
# Of one file; all of them together are held in Envoy's memory.
MOST_BYTES = 1024 * 1024
# Everything comes from the gateway itself, no page may frame it, and no text ever becomes markup.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data: blob:",
        "media-src 'self' blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "microphone=(self), camera=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "vary": "accept-encoding",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
PAGE_CACHE = "no-cache"
# The names of all files but the page have a hash of their content in them.
FOREVER = "public, max-age=31536000, immutable"
# Whoever reads static files needs no key, and there is nothing in them to transcode.
_OFF = {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": True}
_UNTOUCHED = {"envoy.filters.http.ext_authz": _OFF, "envoy.filters.http.grpc_json_transcoder": _OFF}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file of the console."""

    path: str  # under which it is asked for
    file: Path
    type: str  # its content type

    @property
    def packed(self) -> str:
        """Its name among the compressed files."""
        return f"{self.file.name}.gz"


def static_files(dist: Path = DIST) -> tuple[StaticFile, ...]:
    """The files that web/build.mjs has made; none where they were not installed.

    Raises:
        ValueError: a file is larger than Envoy is allowed to answer with.
    """
    listed = dist / LIST
    if not listed.exists():
        return ()
    entries = json.loads(listed.read_text(encoding="utf-8"))
    files = tuple(StaticFile(entry["path"], dist / entry["file"], entry["type"]) for entry in entries)
    for each in files:
        if each.file.stat().st_size > MOST_BYTES:
            raise ValueError(f"{each.file} is larger than {MOST_BYTES} bytes, the most that the gateway answers with")
    return files


def write_packed(files: tuple[StaticFile, ...], folder: Path) -> None:
    """Writes every file, compressed, below the gateway's folder."""
    packed = folder / PACKED
    packed.mkdir(exist_ok=True)
    for each in files:
        (packed / each.packed).write_bytes(gzip.compress(each.file.read_bytes(), 9, mtime=0))


def routes(files: tuple[StaticFile, ...], folder: Path) -> list[dict[str, Any]]:
    """Envoy's routes to the files: each compressed for clients that take it so, then as it is."""
    found = []
    for each in files:
        found.append(_route(each, folder / PACKED / each.packed, packed=True))
        found.append(_route(each, each.file, packed=False))
    return found


def _route(each: StaticFile, content: Path, *, packed: bool) -> dict[str, Any]:
    matched = [{"name": ":method", "string_match": {"safe_regex": {"regex": "GET|HEAD"}}}]
    headers = HEADERS | {"content-type": each.type, "cache-control": PAGE_CACHE if each.path == "/" else FOREVER}
    if packed:
        matched.append({"name": "accept-encoding", "string_match": {"contains": "gzip"}})
        headers = headers | {"content-encoding": "gzip"}
    return {
        "match": {"path": each.path, "headers": matched},
        "direct_response": {"status": 200, "body": {"filename": str(content)}},
        "response_headers_to_add": [
            {"header": {"key": key, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
            for key, value in headers.items()
        ],
        "typed_per_filter_config": _UNTOUCHED,
    }
