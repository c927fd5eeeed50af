"""Pictures at https addresses: what is fetched from where, and what is never connected to."""

from __future__ import annotations

import asyncio
import logging
from ipaddress import ip_address
from pathlib import Path

import pytest

from services.errors import AllmError, InvalidRequest, Overloaded, RequestTooLarge
from services.pictures import fetcher
from services.pictures.fetcher import PictureFetcher, is_public
from tests.case import case
from tests.pictures.picture_host import BODY, PictureHost, picture_host, resolve

PARAM = "messages[0].content[0].image_url.url"


def fetching(*hosts: str, seconds: float = 60.0, queue: int = 100) -> PictureFetcher:
    return PictureFetcher(hosts, max_bytes=1 << 20, queue=queue, seconds=seconds)


def local(host: PictureHost, *more: str, seconds: float = 60.0) -> PictureFetcher:
    """Returns a fetcher that may connect to the host by its names."""
    names = [f"{name}:{host.port}" for name in ("localhost", "127.0.0.1", "pictures.test", "bücher.test")]
    return fetching(*[name.encode("idna").decode() for name in names], *more, seconds=seconds)


async def fetched(files: PictureFetcher, url: str) -> bytes:
    return await files.fetch(url, PARAM, lambda _: None)


async def refused(files: PictureFetcher, url: str) -> AllmError:
    with pytest.raises(AllmError) as caught:
        await fetched(files, url)
    assert caught.value.param == PARAM
    assert PARAM in caught.value.message
    return caught.value


async def test_a_file_is_fetched_without_cookies_and_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    taken: list[int] = []
    async with picture_host(tmp_path, monkeypatch) as host:
        base = f"https://127.0.0.1:{host.port}"
        files = local(host)
        assert await files.fetch(f"{base}/a/ü b.png?secret=x&y=%20z#f", PARAM, taken.append) == BODY
        assert sum(taken) == len(BODY)
        redirect = f"{base}/to/https%3A%2F%2F127.0.0.1%3A{host.port}%2Fto%2F%2Fb%3Fsecret=1"
        assert await fetched(files, redirect) == BODY
    assert host.targets[0] == "/a/%C3%BC%20b.png?secret=x&y=%20z"
    assert host.targets[-1] == "/b?secret=1", "a relative redirect, too"
    expected = {"accept", "accept-encoding", "host", "user-agent"}
    assert all(headers.keys() == expected for headers in host.headers)
    assert host.headers[0]["host"] == f"127.0.0.1:{host.port}"
    assert "secret" not in caplog.text


async def test_the_checked_ip_address_is_connected_to_under_the_hosts_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with picture_host(tmp_path, monkeypatch) as host:
        asked = resolve(monkeypatch, ["10.1.2.3", "127.0.0.1"], ["10.1.2.3"])
        files = local(host)
        assert await fetched(files, f"https://PICTURES.test:{host.port}/x") == BODY
        assert asked == ["pictures.test"], "a second look-up could have another answer"
        assert "private network" in (await refused(files, f"https://pictures.test:{host.port}/x")).message
        resolve(monkeypatch, ["127.0.0.1"])
        assert await fetched(files, f"https://bücher.test:{host.port}/x") == BODY
        assert host.names == ["pictures.test", "xn--bcher-kva.test"]
        assert [headers["host"] for headers in host.headers] == [f"{name}:{host.port}" for name in host.names]


async def test_an_ip_address_without_an_open_port_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with picture_host(tmp_path, monkeypatch) as host:
        resolve(monkeypatch, ["127.0.0.2", "127.0.0.1"])
        assert await fetched(local(host, "127.0.0.2"), f"https://pictures.test:{host.port}/x") == BODY
        resolve(monkeypatch, ["127.0.0.2"])
        error = await refused(local(host, "127.0.0.2"), f"https://pictures.test:{host.port}/x?secret")
        assert f"cannot be fetched from pictures.test:{host.port}" in error.message
        assert "secret" not in error.message


async def test_a_certificate_of_another_name_or_authority_is_not_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with picture_host(tmp_path, monkeypatch) as host:
        resolve(monkeypatch, ["127.0.0.1"])
        other = f"other.test:{host.port}"
        assert "certificate" in (await refused(local(host, other), f"https://{other}/x")).message
        monkeypatch.delenv("SSL_CERT_FILE")
        assert "certificate" in (await refused(local(host), f"https://pictures.test:{host.port}/x")).message
        assert host.targets == []


async def test_no_other_address_is_connected_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with picture_host(tmp_path, monkeypatch) as host:
        asked = resolve(monkeypatch, ["127.0.0.1"])
        listed = f"localhost:{host.port}"
        files = fetching(listed)
        for url, says in [
            (f"http://{listed}/x", "must be an https address"),
            ("file:///etc/passwd", "must be an https address"),
            ("/etc/passwd", "must be an https address"),
            ("", "must be an https address"),
            ("https:///x", "must be an https address"),
            (f"https://user:word@{listed}/x", "without user and password"),
            (f"https://{listed}@evil.test/x", "evil.test, from where"),
            (f"https://evil.test\\@{listed}/x", "no valid address|from where|without user"),
            (f"https://{listed}.evil.test/x", "no valid address"),
            ("https://localhost/x", "localhost, from where"),
            (f"https://localhost.:{host.port}/x", "from where"),
            (f"https://2130706433:{host.port}/x", "from where"),
            (f"https://[::ffff:127.0.0.1]:{host.port}/x", "from where"),
            (f"https://[::1:{host.port}/x", "no valid address"),
            (f"https://{'a' * 64}.test/x", "no valid address"),
            (f"https://{listed}/{'a' * 9000}", "over 8192 characters"),
            (f"https://127.0.0.1:{host.port}/x", "ALLM_IMAGE_HOSTS"),
        ]:
            with case(url=url):
                error = await refused(files, url)
                assert isinstance(error, InvalidRequest)
                assert any(each in error.message for each in says.split("|"))
        assert asked == []
        assert "ALLM_IMAGE_HOSTS" in (await refused(fetching(), f"https://{listed}/x")).message
        assert "private network" in (await refused(files, f"https://{listed}/x")).message, "its address is not listed"
        assert host.targets == []
        resolve(monkeypatch, ["127.0.0.1"])
        for place in (
            f"https://evil.test:{host.port}/x",
            f"http://{listed}/x",
            "//evil.test/x",
            "file:///etc/passwd",
            "https://[x/",
        ):
            with case(place=place):
                url = f"https://{listed}/to/{place.replace('/', '%2F')}"
                assert (await refused(local(host), url)).param == PARAM
        assert all(target.startswith("/to/") for target in host.targets)


async def test_redirects_bytes_and_time_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with picture_host(tmp_path, monkeypatch) as host:
        base = f"https://127.0.0.1:{host.port}"
        files = local(host)
        assert "more than 3 times" in (await refused(files, f"{base}/to/")).message
        assert len(host.targets) == 1 + fetcher.REDIRECTS
        for path in (f"long/{2 << 20}", f"long/{'9' * 20}", "endless"):
            with case(path=path):
                error = await refused(files, f"{base}/{path}")
                assert isinstance(error, RequestTooLarge)
                assert "1048576 bytes (ALLM_MAX_IMAGE_BYTES)" in error.message
        for path, says in [
            ("status/404", "answers with status 404"),
            ("status/500", "answers with status 500"),
            ("status/206", "answers with status 206"),
            ("garbage", "cannot be fetched from"),
            ("short", "cannot be fetched from"),
            ("headers", "cannot be fetched from"),
        ]:
            with case(path=path):
                error = await refused(files, f"{base}/{path}")
                assert says in error.message
                assert "smtp" not in error.message
        assert "ALLM_IMAGE_FETCH_SECONDS" in (await refused(local(host, seconds=0.2), f"{base}/silent")).message

        def full(_: int) -> None:
            raise Overloaded("no memory")

        with pytest.raises(Overloaded, match="no memory"):
            await files.fetch(f"{base}/x", PARAM, full)


async def test_only_so_many_are_fetched_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "AT_ONCE", 2)
    async with picture_host(tmp_path, monkeypatch) as host:
        files = PictureFetcher([f"127.0.0.1:{host.port}"], max_bytes=100, queue=1, seconds=60)
        silent = [asyncio.create_task(fetched(files, f"https://127.0.0.1:{host.port}/silent")) for _ in range(4)]
        done, running = await asyncio.wait(silent, return_when=asyncio.FIRST_COMPLETED)
        assert [type(task.exception()) for task in done] == [Overloaded]
        assert len(running) == 3
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        assert await fetched(files, f"https://127.0.0.1:{host.port}/x") == BODY


def test_addresses_of_other_networks_than_the_internet_are_known() -> None:
    public = ["93.184.216.34", "2606:4700::1111", "64:ff9b::5db8:d822", "::ffff:93.184.216.34", "2002:5db8:d822::1"]
    private = """0.0.0.0 10.0.0.1 100.64.0.1 127.0.0.1 127.8.8.8 169.254.169.254 172.16.0.1 192.0.2.1 192.168.0.1
        198.18.0.1 224.0.0.1 240.0.0.1 255.255.255.255 :: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 fc00::1
        fd12::1 fe80::1 fe80::1%1 fec0::1 ff02::1 2001:db8::1 2002:7f00:1::1 2002:a00:1::1 64:ff9b::a00:1
        64:ff9b:1::a00:1 ::ffff:0:7f00:1 2001:0:1:1:1:1:80ff:fffe"""
    assert [text for text in public if not is_public(ip_address(text))] == []
    assert [text for text in private.split() if is_public(ip_address(text))] == []
