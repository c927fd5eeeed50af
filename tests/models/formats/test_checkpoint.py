"""OpenAI's checkpoints: inspected, never loaded."""

from __future__ import annotations

import pickle
import random
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from services.errors import ModelInvalid
from services.models.formats.checkpoint import MAX_PICKLE, read_checkpoint
from tests.case import case
from tests.models.formats.handmade_models import WatchedTree, checkpoint, checkpoint_pickle, local


def read(folder: Path, data: bytes) -> bool | None:
    (folder / "tiny.pt").write_bytes(data)
    return read_checkpoint(local(folder), "tiny.pt")


def message(folder: Path, data: bytes) -> str:
    with pytest.raises(ModelInvalid) as caught:
        read(folder, data)
    assert caught.value.message.startswith("tiny.pt"), "the file is named"
    return caught.value.message


class Running:
    """An object whose pickle runs a program on loading."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        import os

        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize(
    ("vocabulary", "multilingual"), [(51864, False), (51865, True), (51866, True), (None, None), (-1, False)]
)
def test_the_size_of_the_vocabulary_tells_how_many_languages(
    tmp_path: Path, vocabulary: int | None, multilingual: bool | None
) -> None:
    assert read(tmp_path, checkpoint(checkpoint_pickle(vocabulary=vocabulary))) is multilingual


def test_a_pickle_that_would_run_something_is_refused_and_does_not_run(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    for protocol in [0, 1, 2, 3, 4, 5]:
        with case(protocol=protocol):
            tmp_path = tmp_path_factory.mktemp("case")
            evidence = tmp_path / "it ran"
            data = checkpoint(pickle.dumps({"dims": {}, "model_state_dict": Running(evidence)}, protocol))
            said = message(tmp_path, data)
            assert ("posix.system" in said or "nt.system" in said) if protocol < 4 else "STACK_GLOBAL" in said
            assert not evidence.exists()


def test_only_what_tensors_need_may_be_named(tmp_path_factory: pytest.TempPathFactory) -> None:
    for operation, words in [
        (b"cos\nsystem\n", "os.system"),
        (b"cbuiltins\neval\n", "builtins.eval"),
        (b"ctorch\nload\n", "torch.load"),
        (b"ctorch._utils\n_rebuild_parameter\n", "torch._utils._rebuild_parameter"),
        (b"ctorch.FloatStorage\nx\n", "torch.FloatStorage.x"),
        (b"ccollections\nOrderedDict.fromkeys\n", "collections.OrderedDict.fromkeys"),
        (b"ccollections OrderedDict\n\n", "collections.OrderedDict"),
        (b"(ios\nsystem\n", "os.system"),
        (b"\x8c\x02os\x8c\x06system\x93", "STACK_GLOBAL"),
        (b"\x82\x01", "EXT1"),
        (b"\x83\x01\x00", "EXT2"),
        (b"\x84\x01\x00\x00\x00", "EXT4"),
        (b"(ctorch\nFloatStorage\no", "OBJ"),
    ]:
        with case(operation=operation, words=words):
            tmp_path = tmp_path_factory.mktemp("case")
            said = message(tmp_path, checkpoint(checkpoint_pickle(extra=operation)))
            assert "is refused: its pickle names" in said
            assert words in said


@pytest.mark.parametrize("kind", ["Half", "Float", "BFloat16", "Long"])
def test_every_kind_of_storage_is_allowed(tmp_path: Path, kind: str) -> None:
    operation = b"ctorch\n%sStorage\n0" % kind.encode()
    assert read(tmp_path, checkpoint(checkpoint_pickle(extra=operation))) is True


def test_another_checkpoint_is_no_whisper(tmp_path: Path) -> None:
    for content in ({"state_dict": {}}, {"dims": {}}, ["dims"], {}):
        assert "is not a Whisper checkpoint" in message(tmp_path, checkpoint(pickle.dumps(content, 2)))


def test_a_pickle_that_is_none(tmp_path_factory: pytest.TempPathFactory) -> None:
    for data in [b"", b"\x80", b"no pickle", b"\x80\x02}", b"X\xff\xff\xff\xff", b"\x8a\xff", b"Fx\n."]:
        with case(data=data):
            tmp_path = tmp_path_factory.mktemp("case")
            assert "data.pkl in it is not a pickle" in message(tmp_path, checkpoint(data))


# --- the archive


def test_an_archive_cut_off_at_any_byte_is_refused(tmp_path: Path) -> None:
    whole = checkpoint()
    for length in range(0, len(whole), 7):
        said = message(tmp_path, whole[:length])
        assert f"it has {length} bytes" in said, length


@pytest.mark.parametrize("data", [b"", b"\x80\x02}q\x00.", b"PK\x03\x04", b"GGUF" + bytes(100), bytes(10_000)])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    assert "is cut off or not a checkpoint" in message(tmp_path, data)


def test_a_bare_pickle_of_the_old_kind_is_refused_and_does_not_run(tmp_path: Path) -> None:
    evidence = tmp_path / "it ran"
    assert "not a checkpoint" in message(tmp_path, pickle.dumps(Running(evidence), 2))
    assert not evidence.exists()


@pytest.mark.parametrize(
    "members",
    [
        {"other/data.pkl": b"."},
        {"archive/DATA.PKL": b"."},
        {"data.pkl": b"."},
        {"archive/deep/data.pkl": b"."},
    ],
)
def test_two_pickles_are_refused(tmp_path: Path, members: dict[str, bytes]) -> None:
    """Readers differ in the pickle they take."""
    assert "it must hold one folder with data.pkl, and holds 2" in message(tmp_path, checkpoint(members=members))


def test_the_same_name_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.zip"
    path.write_bytes(checkpoint())
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("archive/data.pkl", checkpoint_pickle(extra=b"cos\nsystem\n"))
    assert "and holds 2" in message(tmp_path, path.read_bytes())


def test_an_archive_without_a_pickle_and_one_of_torchscript(tmp_path: Path) -> None:
    assert "TorchScript" in message(tmp_path, checkpoint(members={"archive/constants.pkl": b"."}))
    path = tmp_path / "empty.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "x")
    assert "and holds 0" in message(tmp_path, path.read_bytes())


def test_a_compressed_archive_is_refused_unread(tmp_path: Path) -> None:
    bomb = checkpoint(members={"archive/data/1": bytes(50 * 2**20)}, compression=zipfile.ZIP_DEFLATED)
    tracemalloc.start()
    try:
        assert "is compressed" in message(tmp_path, bomb)
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()


def test_a_pickle_has_a_largest_size(tmp_path: Path) -> None:
    pickled = checkpoint_pickle(extra=b"N0" * (MAX_PICKLE // 2))
    assert f"data.pkl in it has {len(pickled)} bytes; {MAX_PICKLE} are allowed" in message(
        tmp_path, checkpoint(pickled)
    )


def test_a_table_of_contents_that_would_fill_the_memory_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "tiny.pt"
    size = 2**31
    with path.open("wb") as file:
        file.truncate(size)
        file.seek(size)
        file.write(struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 9, 9, size - 100, 100, 0))
    with pytest.raises(ModelInvalid, match=r"tiny\.pt is corrupt: its table of contents"):
        read_checkpoint(local(tmp_path), "tiny.pt")


def test_weights_that_reach_past_the_archive(tmp_path: Path) -> None:
    data = bytearray(checkpoint())
    entry = data.rindex(b"PK\x01\x02")
    struct.pack_into("<II", data, entry + 20, 10**6, 10**6)  # compressed and real size of the last member
    assert "continues past its end" in message(tmp_path, bytes(data))


def test_random_damage_is_read_or_refused_but_never_a_crash(tmp_path: Path) -> None:
    rng = random.Random(11)  # noqa: S311
    whole = checkpoint()
    refused = 0
    for _ in range(1000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            read(tmp_path, bytes(data))
        except ModelInvalid:
            refused += 1
    assert 300 < refused < 1000


def test_only_the_pickle_of_a_remote_checkpoint_is_read(tmp_path: Path) -> None:
    (tmp_path / "tiny.pt").write_bytes(checkpoint(members={"archive/data/1": bytes(20 * 2**20)}))
    tree = WatchedTree(tmp_path)
    assert read_checkpoint(tree, "tiny.pt") is True
    assert tree.bytes_read < 100_000


def test_nothing_that_loads_pickles_is_used(tmp_path: Path) -> None:
    """`pickletools` imports pickle for its own tests; the test checks that nothing calls it."""
    program = """
import pickle, _pickle
def refuse(*_, **__): raise SystemExit("unpickled")
pickle.Unpickler = pickle._Unpickler = pickle.loads = pickle.load = pickle._loads = pickle._load = refuse
import pathlib, sys
from services.models.formats.checkpoint import read_checkpoint
from services.models.hub.source_tree import LocalTree
folder = pathlib.Path(sys.argv[1])
print(read_checkpoint(LocalTree(folder, [folder]), "tiny.pt"))
"""
    (tmp_path / "tiny.pt").write_bytes(checkpoint())
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
