"""A small hub on loopback that serves real folders as repositories, with faults on request.

    with LoopbackHub() as hub:
        commit = hub.add("org/model", folder)
        ...                                   # a process with HF_ENDPOINT=hub.endpoint finds hf://org/model
        hub.add("org/model", newer_folder)    # a new commit of the branch; the old one stays available

It serves the parts of the protocol that huggingface_hub uses: the search of repositories, a repository's listing, and
its files. Large files (`LFS`, by suffix or size) are listed with their SHA-256 and redirected to another port, as to a
CDN; small ones are served directly. Files are copied when added. Every repository also has a `.gitattributes`, as on
the real hub.

Faults name a file by its path, in any repository; LISTING is the listing. Those with `times` end by themselves.
"""

from __future__ import annotations

import contextlib
import email.utils
import hashlib
import json
import os
import re
import shutil
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest

LISTING = ""
LFS = (".safetensors", ".gguf", ".bin", ".pt", ".onnx")
LFS_BYTES = 1024 * 1024  # larger files count as large whatever their suffix
PIECE = 64 * 1024  # bytes written at once
INVERTED = bytes(range(256))[::-1]  # the replacement of each byte in a corrupt file
DEADLINE = 60.0  # seconds after which a forgotten gate opens


@dataclass(frozen=True, slots=True)
class Request:
    """A request that the hub received."""

    method: str
    path: str  # of the address, as sent, without the query
    range: str  # the header; empty: none
    file: str  # path in the repository; empty: the listing, or an unknown path
    cdn: bool  # true: it came to the port that large files are redirected to
    authorized: bool  # true: it carried a token


@dataclass(frozen=True, slots=True)
class Blob:
    """A file's content."""

    path: Path
    size: int
    sha256: str
    git_id: str
    lfs: bool


class Gate:
    """Holds downloads of a file until opened."""

    def __init__(self, after_bytes: int) -> None:
        self.after_bytes = after_bytes
        self.reached = threading.Event()  # a download waits at the gate
        self._open = threading.Event()

    def wait_reached(self, seconds: float = DEADLINE) -> None:
        """Waits until a download is held. Raises AssertionError when none arrives."""
        assert self.reached.wait(seconds), "no download came to the gate"

    def open(self) -> None:
        """Releases all downloads, later ones too."""
        self._open.set()

    def hold(self) -> None:
        """Blocks a download until the gate opens."""
        self.reached.set()
        self._open.wait(DEADLINE)


@dataclass
class Fault:
    """A fault of one file, which occurs `times` times; -1: always."""

    kind: str  # cut, corrupt, status
    times: int
    after_bytes: int = 0
    code: int = 0
    larger_than: int = 0  # bytes: smaller answers, such as headers, are spared
    headers: Mapping[str, str] = field(default_factory=dict)


class LoopbackHub:
    """The hub. Starts when created, ends with `close` or `with`."""

    def __init__(self) -> None:
        self.requests: deque[Request] = deque()  # in order of arrival; clear it at will
        self.ignore_ranges = False  # answers 200 and the whole file, whatever range is requested
        self.bytes_per_second = 0  # of each download; 0: unlimited
        self.token = ""  # when set, requests without it get 401, as for private repositories
        self.sent = 0  # bytes of files' contents, in all answers
        self._store = Path(tempfile.mkdtemp(prefix="loopback-hub-"))
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._repositories: dict[str, dict[str, str]] = {}  # name -> branch -> commit
        self._about: dict[str, dict[str, Any]] = {}  # name -> what the search lists besides it
        self._commits: dict[tuple[str, str], dict[str, Blob]] = {}
        self._faults: dict[str, list[Fault]] = {}
        self._gates: dict[str, Gate] = {}
        self._servers = [_Server(self, cdn) for cdn in (False, True)]
        self.endpoint = self._servers[0].address  # for HF_ENDPOINT
        self.cdn_endpoint = self._servers[1].address

    # --- repositories

    def add(self, repository: str, folder: Path, revision: str = "main", **about: Any) -> str:
        """Adds the files of a folder as the branch's new commit, and returns the commit.

        `about`: what the search lists of the repository, such as `tags` and `downloads`.
        """
        attributes = self._store / "gitattributes"
        attributes.write_text("*.safetensors filter=lfs diff=lfs merge=lfs -text\n")
        blobs = {".gitattributes": self._stored(attributes)} | {
            path.relative_to(folder).as_posix(): self._stored(path)
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        with self._lock:
            branches = self._repositories.setdefault(repository, {})
            # The hash includes the parent, so that the same files in a later commit make a different one.
            story = [repository, branches.get(revision, ""), *((path, blob.git_id) for path, blob in blobs.items())]
            commit = hashlib.sha1(json.dumps(story).encode(), usedforsecurity=False).hexdigest()
            branches[revision] = commit
            self._commits[repository, commit] = blobs
            self._about.setdefault(repository, {}).update(about)
        return commit

    def asked(self, file: str, method: str = "GET", *, cdn: bool | None = None) -> list[Request]:
        """Returns the requests for a file so far; `cdn`: only those on the CDN's port, or only the others."""
        return [
            request
            for request in list(self.requests)
            if request.file == file and request.method == method and cdn in (None, request.cdn)
        ]

    # --- faults

    def cut(self, path: str, after_bytes: int, times: int = 1, larger_than: int = 0) -> None:
        """Closes the connection in the middle of a file, after this many bytes of the answer."""
        self._fail(path, Fault("cut", times, after_bytes=after_bytes, larger_than=larger_than))

    def corrupt(self, path: str, times: int = 1, larger_than: int = 0) -> None:
        """Serves wrong bytes, of the right length."""
        self._fail(path, Fault("corrupt", times, larger_than=larger_than))

    def status(self, path: str, code: int, times: int = 1, headers: Mapping[str, str] | None = None) -> None:
        """Answers with a status. 404 for a file means that there is no such file, 404 for the listing no such
        repository."""
        self._fail(path, Fault("status", times, code=code, headers=dict(headers or {})))

    def gate(self, path: str, after_bytes: int = 0) -> Gate:
        """Holds every download of a file after this many bytes of the answer, until the gate is opened."""
        gate = Gate(after_bytes)
        with self._lock:
            self._gates[path] = gate
        return gate

    def heal(self) -> None:
        """Ends all faults and opens all gates."""
        with self._lock:
            self._faults.clear()
            gates, self._gates = self._gates, {}
        for gate in gates.values():
            gate.open()
        self.ignore_ranges = False
        self.bytes_per_second = 0

    def close(self) -> None:
        """Stops serving and cuts every connection."""
        self._closing.set()
        self.heal()
        for server in self._servers:
            server.stop()
        shutil.rmtree(self._store, ignore_errors=True)

    def __enter__(self) -> LoopbackHub:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- used by the handlers

    def search(self, query: Mapping[str, list[str]]) -> list[dict[str, Any]]:
        """Returns the repositories that a search finds: by words in the name, tags and task; most downloads first."""
        words, tags = query.get("search", [""])[0].lower(), set(query.get("filter", []))
        usual: dict[str, Any] = {"tags": [], "downloads": 0, "gated": False}
        found = [{"id": name} | usual | about for name, about in self._about.items()]
        found = [each for each in found if words in each["id"].lower() and tags <= set(each["tags"])]
        if task := query.get("pipeline_tag"):
            found = [each for each in found if each.get("pipeline_tag") in task]
        return sorted(found, key=lambda each: -each["downloads"])[: int(query["limit"][0])]

    def find(self, repository: str, revision: str) -> tuple[str, dict[str, Blob]] | None:
        """Returns a commit and its files, or None."""
        with self._lock:
            commit = self._repositories.get(repository, {}).get(revision, revision)
            files = self._commits.get((repository, commit))
            return (commit, files) if files is not None else None

    def has(self, repository: str) -> bool:
        """Checks that the repository exists."""
        return repository in self._repositories

    def take(self, path: str, *kinds: str, size: int = 0) -> Fault | None:
        """Returns a file's next fault of one of these kinds for an answer of that size, and uses it up by one."""
        with self._lock:
            for fault in self._faults.get(path, []):
                if fault.kind in kinds and fault.times and size >= fault.larger_than:
                    fault.times -= 1
                    return fault
        return None

    def gate_of(self, path: str) -> Gate | None:
        """Returns the gate of a file."""
        return self._gates.get(path)

    def count(self, sent: int) -> None:
        """Adds to `sent`."""
        with self._lock:
            self.sent += sent

    def pause(self, sent: int) -> None:
        """Sleeps to keep to `bytes_per_second`."""
        if self.bytes_per_second:
            self._closing.wait(sent / self.bytes_per_second)

    def _fail(self, path: str, fault: Fault) -> None:
        with self._lock:
            self._faults.setdefault(path, []).append(fault)

    def _stored(self, path: Path) -> Blob:
        size = path.stat().st_size
        whole, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        with path.open("rb") as source:
            while chunk := source.read(1024 * 1024):
                whole.update(chunk)
                git.update(chunk)
        kept = self._store / whole.hexdigest()
        if not kept.exists():
            shutil.copyfile(path, kept)
        lfs = path.suffix in LFS or size > LFS_BYTES
        return Blob(kept, size, whole.hexdigest(), git.hexdigest(), lfs)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, hub: LoopbackHub, cdn: bool) -> None:
        self.hub = hub
        self.cdn = cdn
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address = f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs nothing: tests disconnect in the middle of answers."""

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    server: _Server

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""

    def _answer(self) -> None:
        self._body = self.rfile.read(int(self.headers.get("content-length") or 0))
        parts = urlsplit(self.path)
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree|paths-info)/([^/]+)(/.*)?)?", parts.path)
        file = re.fullmatch(r"/(?:cdn/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", parts.path)
        path = unquote(file[3]) if file else LISTING
        authorized = "authorization" in self.headers
        asked = self.headers.get("range", "")
        hub = self.server.hub
        hub.requests.append(Request(self.command, parts.path, asked, path, self.server.cdn, authorized))
        if self.server.cdn:
            return self._content(*self._cdn_file(parts.query, file))
        if fault := hub.take(path, "status"):
            return self._refuse(fault.code, ("EntryNotFound" if path else "RepoNotFound", "asked for"), fault.headers)
        allowed = not hub.token or self.headers.get("authorization") == f"Bearer {hub.token}"
        search = parts.path == "/api/models"
        repository, revision = (file or api or {1: "", 2: ""})[1], "main"
        if file:
            revision = unquote(file[2])
        elif api and api[3]:
            revision = unquote(api[3])
        if not (search or hub.has(repository)) or not allowed:  # the real hub does not reveal which of them it is
            return self._refuse(401, ("RepoNotFound", "Invalid username or password."))
        if search:
            return self._json(hub.search(parse_qs(parts.query)))
        found = hub.find(repository, revision)
        if not found:
            return self._refuse(404, ("RevisionNotFound", f"Invalid rev id: {revision}"))
        kind = api[2] if api else ""
        return self._resolve(repository, path, *found) if file else self._list(repository, kind, parts.query, *found)

    # --- listings

    def _list(self, repository: str, kind: str, query: str, commit: str, files: dict[str, Blob]) -> None:
        if kind == "tree":
            return self._json([self._entry(path, blob) for path, blob in files.items()])
        if kind == "paths-info":
            wanted = self._wanted()
            return self._json([self._entry(path, blob) for path, blob in files.items() if path in wanted])
        siblings: list[dict[str, Any]] = [{"rfilename": path} for path in files]
        if parse_qs(query).get("blobs", [""])[0].lower() == "true":
            for sibling in siblings:
                blob = files[sibling["rfilename"]]
                sibling |= {"size": blob.size, "blobId": blob.git_id}
                if blob.lfs:
                    sibling["lfs"] = {"sha256": blob.sha256, "size": blob.size, "pointerSize": 134}
        return self._json({"id": repository, "modelId": repository, "sha": commit, "private": False} | {
            "siblings": siblings, "tags": [], "downloads": 0, "likes": 0
        })  # fmt: skip

    def _wanted(self) -> list[str]:
        with contextlib.suppress(ValueError):
            return list(json.loads(self._body)["paths"])
        return parse_qs(self._body.decode()).get("paths", [])

    def _entry(self, path: str, blob: Blob) -> dict[str, Any]:
        lfs = {"lfs": {"oid": blob.sha256, "size": blob.size, "pointerSize": 134}} if blob.lfs else {}
        return {"type": "file", "path": path, "size": blob.size, "oid": blob.git_id, **lfs}

    def _json(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self._begin(200, {"content-type": "application/json", "content-length": str(len(data))})
        if self.command != "HEAD":
            self.wfile.write(data)

    # --- files

    def _resolve(self, repository: str, path: str, commit: str, files: dict[str, Blob]) -> None:
        blob = files.get(path)
        if not blob:
            return self._refuse(404, ("EntryNotFound", "Entry not found"), {"x-repo-commit": commit})
        if not blob.lfs:
            return self._content(path, blob, {"etag": f'"{blob.git_id}"', "x-repo-commit": commit})
        query = f"path={quote(path)}&blob={blob.sha256}&signature=secret"
        location = f"{self.server.hub.cdn_endpoint}/cdn/{repository}/resolve/{commit}/{quote(path)}?{query}"
        linked = {"x-linked-size": str(blob.size), "x-linked-etag": f'"{blob.sha256}"', "x-repo-commit": commit}
        return self._begin(302, {"location": location, "content-length": "0", **linked})

    def _cdn_file(self, query: str, file: re.Match[str] | None) -> tuple[str, Blob | None, dict[str, str]]:
        signed = parse_qs(query).get("signature") == ["secret"]
        found = self.server.hub.find(file[1], unquote(file[2])) if file and signed else None
        path = unquote(file[3]) if file else ""
        blob = found[1].get(path) if found else None
        return path, blob, {"etag": f'"{blob.sha256}"'} if blob else {}

    def _content(self, path: str, blob: Blob | None, headers: Mapping[str, str]) -> None:
        if not blob:
            self._refuse(404, ("EntryNotFound", "Entry not found"))
            return
        start, stop = self._part(blob.size)
        if start >= blob.size > 0:
            self._refuse(416, ("", ""), {"content-range": f"bytes */{blob.size}"})
            return
        reported = {"content-length": str(stop - start), "accept-ranges": "bytes", **headers}
        if self._ranged:
            reported["content-range"] = f"bytes {start}-{stop - 1}/{blob.size}"
        self._begin(206 if self._ranged else 200, reported)
        if self.command != "HEAD":
            self._send(path, blob, start, stop)

    def _part(self, size: int) -> tuple[int, int]:
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        self._ranged = bool(match) and not self.server.hub.ignore_ranges
        if not match or not self._ranged:
            return 0, size
        return int(match[1]), min(size, int(match[2]) + 1) if match[2] else size

    def _send(self, path: str, blob: Blob, start: int, stop: int) -> None:
        hub = self.server.hub
        corrupt, cut, gate = (
            hub.take(path, "corrupt", size=stop - start),
            hub.take(path, "cut", size=stop - start),
            hub.gate_of(path),
        )
        for begin, data in self._pieces(blob, start, stop, [fault.after_bytes for fault in (cut, gate) if fault]):
            if gate and begin - start == gate.after_bytes:
                self.wfile.flush()
                gate.hold()
            if cut and begin - start >= cut.after_bytes:
                break
            hub.count(len(data))  # first: a client with all the bytes may check it immediately
            self.wfile.write(data.translate(INVERTED) if corrupt else data)
            hub.pause(len(data))
        if cut:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    def _pieces(self, blob: Blob, start: int, stop: int, marks: list[int]) -> Iterator[tuple[int, bytes]]:
        """Yields the content in pieces that begin at every mark; marks count from the start of the answer."""
        slow = self.server.hub.bytes_per_second
        piece = min(PIECE, max(1, slow // 20)) if slow else PIECE
        edges = {start + mark for mark in marks} | set(range(start, stop, piece))
        begins = sorted(edge for edge in edges if start <= edge < stop)
        with blob.path.open("rb") as source:
            source.seek(start)
            for begin, end in zip(begins, [*begins[1:], stop], strict=True):
                yield begin, source.read(end - begin)

    def _refuse(self, code: int, why: tuple[str, str], headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps({"error": why[1]}).encode()
        reported = {"content-type": "application/json", "content-length": str(len(data)), **(headers or {})}
        if code >= 400 and why[0] and code in (401, 403, 404):
            reported |= {"x-error-code": why[0], "x-error-message": why[1]}
        self._begin(code, reported)
        if self.command != "HEAD":
            self.wfile.write(data)

    def _begin(self, code: int, headers: Mapping[str, str]) -> None:
        self.send_response_only(code)
        for name, value in {"date": email.utils.formatdate(usegmt=True), **headers}.items():
            self.send_header(name, value)
        self.end_headers()


@contextlib.contextmanager
def hub_of_this_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """Yields an empty hub, as if HF_ENDPOINT pointed to it."""
    from huggingface_hub import close_session, constants

    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", os.devnull)  # the user may be logged in
    with LoopbackHub() as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.endpoint)
        yield running
    close_session()
