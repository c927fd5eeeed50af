"""The client of the Hugging Face hub: lists a repository, pinned to a commit, and reads parts of its files.

The only module that imports huggingface_hub. It uses the library's settings (HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE,
proxies) and its connections. It makes every request itself, so that each has a limit in time and bytes and none is
retried silently: the library would wait as long as a hub asks it to.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar, cast
from urllib.parse import quote, urlsplit

from services.errors import AllmError, ModelInvalid, ModelNotReady, Overloaded
from services.models.hub.source import HubSource
from services.models.manifest import MAX_FILES, Manifest, ManifestFile

if TYPE_CHECKING:
    from types import ModuleType

    import httpx2

READ_SECONDS = 10.0  # longest silence of a hub
TREE_SECONDS = 100.0  # longest time for all reads of a repository; a slower hub is an error
ANSWER_SECONDS = 14.0  # longest time for a listing or a piece of a file; each is requested twice at most
MAX_LISTING = 64 * 1024 * 1024  # bytes
FIRST_READ = 64 * 1024  # bytes of the first piece; each next piece of a sequential read is twice as large
LARGEST_READ = 4 * 1024 * 1024
MAX_SKIP = 16 * 1024 * 1024  # most bytes discarded if a hub sends files from their beginning only
MAX_RETRY_AFTER = 3600.0
T = TypeVar("T")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_CONTENT_RANGE = re.compile(r"bytes (?:(\d{1,18})-\d{1,18}|\*)/(\d{1,18})", re.ASCII)
_LENGTH = re.compile(r"\d{1,18}", re.ASCII)
_DENIED, _MISSING = (401, 403), 404
_BUSY, _PARTIAL, _PAST_END = 429, 206, 416


class Damaged(ModelInvalid):
    """The hub sends another file than the manifest names; fetching it again from the start may help."""


class Remote(NamedTuple):
    """One file of a commit, or the listing when `file` is empty."""

    repository: str
    revision: str
    file: str

    def __str__(self) -> str:
        at = f"hf://{self.repository}@{self.revision}" if self.revision else f"hf://{self.repository}"
        return f"{at}#{self.file}" if self.file else at

    @property
    def url(self) -> str:
        """The hub's URL, which redirects for large files."""
        if self.file:
            return f"{endpoint()}/{self.repository}/resolve/{quote(self.revision, safe='')}/{quote(self.file)}"
        at = f"/revision/{quote(self.revision, safe='')}" if self.revision else ""
        return f"{endpoint()}/api/models/{self.repository}{at}?blobs=true"


class HubTree:
    """The files of one commit of a repository, without hidden files."""

    folder = ""

    def __init__(self, repository: str, revision: str, files: Mapping[str, ManifestFile]) -> None:
        self.repository = repository
        self.revision = revision
        self.files = files
        self._end = time.monotonic() + TREE_SECONDS

    @classmethod
    def open_repository(cls, source: HubSource) -> HubTree:
        """Lists a repository, pinned to the current commit of its revision. Blocks for half a minute at most.

        Raises:
            ModelInvalid: the repository or revision does not exist, or HF_TOKEN may not read it.
            ModelNotReady: the hub cannot be reached, or fails.
            Overloaded: the hub asks to retry later.
        """
        remote = Remote(source.repository, source.revision, "")
        answer = _listing(remote)
        revision = answer.get("sha")
        if not isinstance(revision, str) or not _COMMIT.fullmatch(revision):
            raise ModelInvalid(f"{remote}: the hub at {shown_endpoint()} returned no commit")
        siblings = answer.get("siblings")
        if not isinstance(siblings, list) or not all(isinstance(sibling, dict) for sibling in siblings):
            raise ModelInvalid(f"{remote}: the hub at {shown_endpoint()} lists no files")
        if len(siblings) > MAX_FILES:
            raise ModelInvalid(f"{remote} has {len(siblings)} files; at most {MAX_FILES} are allowed")
        files = [_file(remote, sibling) for sibling in siblings]
        shown = {file.path: file for file in files if not any(part.startswith(".") for part in file.path.split("/"))}
        return cls(source.repository, revision, dict(sorted(shown.items())))

    def open(self, path: str) -> BinaryIO:
        """Opens a file for reading, seekable. Transfers nothing before the first read, then little more than is read.

        Raises:
            ModelInvalid: there is no such file. Reading raises the errors of `open_repository`, and Damaged.
        """
        if path not in self.files:
            raise ModelInvalid(f"{self.repository}@{self.revision} has no file {path[:200]!r}")
        remote = Remote(self.repository, self.revision, path)
        # The small buffer serves reads of a few bytes; _RemoteFile decides the size of requests.
        return cast(
            BinaryIO, io.BufferedReader(_RemoteFile(remote, self.files[path].size, self._end), io.DEFAULT_BUFFER_SIZE)
        )


class _RemoteFile(io.RawIOBase):
    """A file on the hub, read in pieces with range requests."""

    def __init__(self, remote: Remote, size: int, end: float) -> None:
        self._end = end  # on the monotonic clock
        self._remote = remote
        self._size = size
        self._position = 0
        self._piece = b""
        self._start = 0  # offset of the piece in the file
        self._ahead = FIRST_READ

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence] + offset
        if position < 0:
            raise ValueError(f"byte {position} of a file")
        self._position = position
        return position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        if self._position >= self._size or not view:
            return 0
        if not self._start <= self._position < self._start + len(self._piece):
            self._turn_to(self._position, len(view))
        begin = self._position - self._start
        data = self._piece[begin : begin + len(view)]
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def _turn_to(self, start: int, count: int) -> None:
        if time.monotonic() > self._end:
            raise ModelNotReady(f"{self._remote}: the hub at {shown_endpoint()} is too slow")
        goes_on = self._piece and start == self._start + len(self._piece)
        self._ahead = min(self._ahead * 2, LARGEST_READ) if goes_on else FIRST_READ
        stop = min(self._size, start + min(max(count, self._ahead), LARGEST_READ))
        self._piece = _with_retry(lambda: _piece(self._remote, start, stop, self._size))
        self._start = start


def endpoint() -> str:
    """Returns the hub's address without a trailing slash: HF_ENDPOINT at the time the library was loaded."""
    return str(_library().constants.ENDPOINT)


def shown_endpoint() -> str:
    """Returns the hub's address for messages, without user and password."""
    parts = urlsplit(endpoint())
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def hub_offline() -> bool:
    """Returns whether the environment forbids requests to the hub (HF_HUB_OFFLINE)."""
    from huggingface_hub import constants  # noqa: PLC0415 (the first import takes a moment, the rest of the library more)

    return bool(constants.is_offline_mode())


@contextlib.contextmanager
def answer_of(remote: Remote, start: int = 0, stop: int | None = None) -> Iterator[httpx2.Response]:
    """Requests bytes from `start` up to, excluding, `stop`; follows redirects. Does not read the body yet.

    Raises, also while the body is read:
        ModelInvalid, ModelNotReady, Overloaded: as in `HubTree.open_repository`.
        Damaged: the file ends before `start`.
    """
    library = _library()
    import httpx2  # noqa: PLC0415 (comes with the library, and as late)

    headers = {"user-agent": "allm", "accept-encoding": "identity"}  # the library's user agent lists our versions
    if not library.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN and (token := library.get_token()):
        headers["authorization"] = f"Bearer {token}"
    if start or stop is not None:
        headers["range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
    try:
        with library.get_session().stream("GET", remote.url, headers=headers, timeout=READ_SECONDS) as response:
            if response.status_code == _PAST_END:
                raise Damaged(f"{remote}: the hub's file ends before byte {start}")
            if response.status_code not in (200, _PARTIAL):
                raise _refusal(remote, response)
            yield response
    except (httpx2.TimeoutException, httpx2.NetworkError, httpx2.RemoteProtocolError) as error:
        why = str(error) or type(error).__name__
        raise ModelNotReady(
            f"{remote}: no answer from the hub at {shown_endpoint()} ({why}): check network, proxy and HF_ENDPOINT"
        ) from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:  # its text may quote a signed URL
        raise ModelNotReady(f"{remote}: the hub at {shown_endpoint()} fails: {type(error).__name__}") from error
    except library.errors.OfflineModeIsEnabled as error:
        raise ModelNotReady(f"{remote}: HF_HUB_OFFLINE is set, so nothing is fetched") from error


def starts_at(remote: Remote, response: httpx2.Response, start: int, size: int) -> int:
    """Returns the offset at which the body begins: `start`, or 0 if the hub ignores ranges.

    Raises:
        Damaged: the body is another part, or the file's size is not `size`.
    """
    plain = response.headers.get("content-encoding", "identity") == "identity"
    if response.status_code == _PARTIAL:
        match = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
        if not match or not plain or int(match[1] or -1) != start:
            raise Damaged(f"{remote}: the hub at {shown_endpoint()} sent another part than the requested one")
        total = int(match[2])
    else:
        length = response.headers.get("content-length", "")
        total, start = int(length) if _LENGTH.fullmatch(length) and plain else size, 0
    if total != size:
        raise Damaged(f"{remote}: the hub's file has {total} bytes, expected {size}")
    return start


@cache
def _library() -> ModuleType:
    import huggingface_hub  # noqa: PLC0415 (takes 0.3 s; a service that fetches nothing starts without)
    import huggingface_hub.constants  # noqa: PLC0415
    import huggingface_hub.errors  # noqa: PLC0415
    import huggingface_hub.utils  # noqa: PLC0415

    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs every URL, including signatures
    return huggingface_hub


def _with_retry(ask: Callable[[], T]) -> T:
    """Calls `ask`, and once more if the network failed soon, because a kept connection may be stale."""
    started = time.monotonic()
    try:
        return ask()
    except ModelNotReady:
        if time.monotonic() - started > READ_SECONDS:
            raise
    return ask()


def _read(remote: Remote, response: httpx2.Response, limit: int) -> bytes:
    """Reads at most `limit` bytes of the body; the rest is not transferred."""
    end = time.monotonic() + ANSWER_SECONDS
    data = bytearray()
    for chunk in response.iter_bytes():
        data += chunk
        if len(data) >= limit:
            break
        if time.monotonic() > end:
            raise ModelNotReady(f"{remote}: the hub at {shown_endpoint()} is too slow")
    return bytes(data[:limit])


def read_answer(remote: Remote, limit: int) -> bytes:
    """Returns the first `limit` bytes of an answer of the hub; asks twice at most. Raises as `open_repository`."""

    def ask() -> bytes:
        with answer_of(remote) as response:
            return _read(remote, response, limit)

    return _with_retry(ask)


def _listing(remote: Remote) -> dict[str, Any]:
    data = read_answer(remote, MAX_LISTING)
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModelInvalid(f"{remote}: the answer of the hub at {shown_endpoint()} cannot be read") from error
    if not isinstance(found, dict):
        raise ModelInvalid(f"{remote}: the answer of the hub at {shown_endpoint()} is not an object")
    return found


def _file(remote: Remote, sibling: dict[str, Any]) -> ManifestFile:
    """Converts an entry of the hub's listing. Files in git itself get no hash: git's is not over the bytes alone."""
    path, size, lfs = sibling.get("rfilename"), sibling.get("size"), sibling.get("lfs") or {}
    if not isinstance(path, str) or not isinstance(lfs, dict):
        raise ModelInvalid(f"{remote}: the hub lists a file without a name")
    size = lfs.get("size", size)
    if not isinstance(size, int) or isinstance(size, bool):
        raise ModelInvalid(f"{remote}: the hub does not say how large {path[:200]!r} is")
    file = ManifestFile(path=path, size=size, sha256=str(lfs.get("sha256") or ""))
    Manifest(files=(file,)).check()
    return file


def _piece(remote: Remote, start: int, stop: int, size: int) -> bytes:
    with answer_of(remote, start, stop) as response:
        skipped = start - starts_at(remote, response, start, size)
        if skipped > MAX_SKIP:
            raise ModelInvalid(f"{remote}: the hub at {shown_endpoint()} does not answer range requests")
        data = _read(remote, response, skipped + stop - start)[skipped:]
    if len(data) != stop - start:
        raise ModelNotReady(f"{remote}: the hub at {shown_endpoint()} sent {len(data)} bytes of {stop - start}")
    return data


def _refusal(remote: Remote, response: httpx2.Response) -> AllmError:
    status, code = response.status_code, response.headers.get("x-error-code", "")
    text = response.headers.get("x-error-message", "")[:200]
    hub = f"the hub at {shown_endpoint()} answers {status}" + (f" ({text})" if text.isprintable() and text else "")
    if status in _DENIED:
        return ModelInvalid(
            f"{remote}: {hub}: the repository does not exist, or is private or gated; "
            "check its name, and that HF_TOKEN is set to a token that may read it"
        )
    if status == _MISSING:
        return ModelInvalid(f"{remote}: {_absence(remote, code)} (at {shown_endpoint()})")
    if status == _BUSY:
        return Overloaded(f"{remote}: {hub}: too many requests", retry_after=_retry_after(response.headers))
    if status >= 500 or status == 408:
        return ModelNotReady(f"{remote}: {hub}", retry_after=_retry_after(response.headers))
    return ModelInvalid(f"{remote}: {hub}")


def _absence(remote: Remote, code: str) -> str:
    if code == "RevisionNotFound":
        return f"{remote.repository} has no revision {remote.revision!r}"
    if remote.file and code != "RepoNotFound":
        return f"{remote.repository}@{remote.revision} has no file {remote.file!r}"
    return "no such repository"


def _retry_after(headers: Mapping[str, str]) -> float:
    """Returns the seconds that the hub asks to wait: a number, a date, or its rate limit headers."""
    asked = headers.get("retry-after", "").strip()
    seconds = 5.0
    if asked.isdecimal():
        seconds = float(asked)
    elif asked:
        with contextlib.suppress(ValueError, OverflowError):
            seconds = parsedate_to_datetime(asked).timestamp() - time.time()
    elif limits := _library().utils.parse_ratelimit_headers(headers):
        seconds = float(limits.reset_in_seconds)
    return min(max(seconds, 1.0), MAX_RETRY_AFTER)
