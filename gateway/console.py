"""The web console: static files that Envoy itself serves, at `/` and below `/assets/`; their sources are in web/."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DIST = Path(__file__).parents[1] / "web" / "dist"
LIST = "files.json"  # the list of files, written by web/build.mjs
PACKED = "console"  # folder of the compressed files, below the gateway's folder
# Limit for one file; Envoy holds all of them in memory.
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
# All file names except the page's contain a hash of the content.
FOREVER = "public, max-age=31536000, immutable"
# Files, and other direct responses of a route, need no key and no transcoding.
_OFF = {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": True}
UNTOUCHED = {"envoy.filters.http.ext_authz": _OFF, "envoy.filters.http.grpc_json_transcoder": _OFF}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file of the console."""

    path: str  # URL path
    file: Path
    type: str  # its content type

    @property
    def packed(self) -> str:
        """The name of its compressed file."""
        return f"{self.file.name}.gz"


def static_files(dist: Path = DIST) -> tuple[StaticFile, ...]:
    """Returns the files that web/build.mjs has built; none if they are not installed.

    Raises:
        ValueError: a file is larger than Envoy may serve.
    """
    listed = dist / LIST
    if not listed.exists():
        return ()
    entries = json.loads(listed.read_text(encoding="utf-8"))
    files = tuple(StaticFile(entry["path"], dist / entry["file"], entry["type"]) for entry in entries)
    for each in files:
        if each.file.stat().st_size > MOST_BYTES:
            raise ValueError(f"{each.file} is larger than {MOST_BYTES} bytes, the gateway's limit for a file")
    return files


def write_packed(files: tuple[StaticFile, ...], folder: Path) -> None:
    """Writes every file, compressed, below the gateway's folder."""
    packed = folder / PACKED
    packed.mkdir(exist_ok=True)
    for each in files:
        (packed / each.packed).write_bytes(gzip.compress(each.file.read_bytes(), 9, mtime=0))


def routes(files: tuple[StaticFile, ...], folder: Path) -> list[dict[str, Any]]:
    """Returns Envoy's routes to the files: for each, compressed for clients that accept gzip, then uncompressed."""
    found = []
    for each in files:
        found.append(_route(each, folder / PACKED / each.packed, packed=True))
        found.append(_route(each, each.file, packed=False))
    return found


def _route(each: StaticFile, content: Path, *, packed: bool) -> dict[str, Any]:
    matched = [{"name": ":method", "string_match": {"safe_regex": {"regex": "GET|HEAD"}}}]
    headers = HEADERS | {"content-type": each.type, "cache-control": FOREVER}
    if each.path == "/":  # other clients get another answer there
        headers |= {"cache-control": PAGE_CACHE, "vary": "accept, accept-encoding"}
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
        "typed_per_filter_config": UNTOUCHED,
    }
