"""Manifests: no path leaves the model's folder, no path occurs twice, and the digest covers everything."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from services.errors import ModelInvalid
from services.models.manifest import MAX_FILES, MAX_PATH, Manifest, ManifestFile
from tests.case import case

A = ManifestFile(path="a.gguf", size=5, sha256="ab" * 32)
B = ManifestFile(path="sub/b.json", size=7)


def check(*paths: str, **fields: str) -> None:
    Manifest(files=tuple(ManifestFile(path=path, size=1) for path in paths), **fields).check()


def test_a_manifest() -> None:
    manifest = Manifest(files=(A, B), primary="a.gguf", repository="org/name", revision="0" * 40)
    manifest.check()
    assert manifest.size == 12
    with pytest.raises(dataclasses.FrozenInstanceError):
        manifest.primary = "x"  # type: ignore[misc]


def test_paths_below_the_folder() -> None:
    for path in ["a", "a/b/c.txt", "a b.gguf", "..a", "a..", "größe.json", "-", "a" * MAX_PATH]:
        with case(path=path):
            check(path, primary=path, folder="/models/m")


def test_paths_that_could_leave_the_folder() -> None:
    for path in [
        "",
        "/",
        "/etc/passwd",
        ".",
        "..",
        "../a",
        "a/..",
        "a/../b",
        "a/../../b",
        "./a",
        "a/./b",
        "a//b",
        "a/",
        "..\\a",
        "a\\b",
        "C:\\a",
        "C:a",
        "a\0b",
        "a\nb",
        "a\x7fb",
        "a" * (MAX_PATH + 1),
    ]:
        with case(path=path):
            with pytest.raises(ModelInvalid) as caught:
                check("fine", path)
            assert len(caught.value.message) < 400


@pytest.mark.parametrize("paths", [("a", "a"), ("a", "A"), ("sub/x", "SUB/X"), ("straße", "STRASSE")])
def test_a_path_that_is_there_twice_on_some_filesystem(paths: tuple[str, str]) -> None:
    with pytest.raises(ModelInvalid, match="is listed twice"):
        check(*paths)


def test_no_files_and_too_many() -> None:
    with pytest.raises(ModelInvalid, match="no files"):
        check()
    check(*(str(at) for at in range(MAX_FILES)))
    with pytest.raises(ModelInvalid, match=f"{MAX_FILES} are allowed"):
        check(*(str(at) for at in range(MAX_FILES + 1)))


@pytest.mark.parametrize("folder", ["models", "./models", "../models"])
def test_a_folder_is_absolute(folder: str) -> None:
    with pytest.raises(ModelInvalid, match="is not absolute"):
        check("a", folder=folder)


def test_the_primary_file_is_one_of_them() -> None:
    with pytest.raises(ModelInvalid, match=r"'b' is not among"):
        check("a", primary="b")


def test_a_hash_that_is_none() -> None:
    for sha256 in ["ab", "AB" * 32, "xy" * 32, "ab" * 33, "ab" * 32 + "\n", " " * 64]:
        with case(sha256=sha256), pytest.raises(ModelInvalid, match="is not a SHA-256"):
            Manifest(files=(dataclasses.replace(A, sha256=sha256),)).check()


def test_a_size_below_nothing() -> None:
    with pytest.raises(ModelInvalid, match=r"a\.gguf has a size of -1 bytes"):
        Manifest(files=(dataclasses.replace(A, size=-1),)).check()


def test_digest_does_not_depend_on_file_order() -> None:
    assert Manifest(files=(A, B)).digest == Manifest(files=(B, A)).digest


def test_the_digest_differs_with_everything_that_matters() -> None:
    whole = Manifest(files=(A, B), repository="org/name", revision="0" * 40)
    others = [
        whole,
        dataclasses.replace(whole, files=(A,)),
        dataclasses.replace(whole, files=(A, dataclasses.replace(B, size=8))),
        dataclasses.replace(whole, files=(A, dataclasses.replace(B, path="b.json"))),
        dataclasses.replace(whole, files=(A, dataclasses.replace(B, sha256="cd" * 32))),
        dataclasses.replace(whole, repository="org/other"),
        dataclasses.replace(whole, revision="1" * 40),
        dataclasses.replace(whole, folder="/models/m"),
        dataclasses.replace(whole, repository="org", revision="/name"),
    ]
    for one, other in itertools.combinations(others, 2):
        assert one.digest != other.digest


def test_sizes_that_no_disk_has() -> None:
    """One such manifest in the catalog would keep every service from receiving any model."""
    with pytest.raises(ModelInvalid, match="9,223,372,036,854,775,808 bytes"):
        Manifest(files=(dataclasses.replace(A, size=2**63),)).check()
    with pytest.raises(ModelInvalid, match="are allowed"):
        Manifest(files=(dataclasses.replace(A, size=2**60), B)).check()
