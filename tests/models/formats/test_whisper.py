"""Whisper models in three layouts, distinguished without guessing."""

from __future__ import annotations

import pickle
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from services.errors import InvalidRequest, ModelInvalid
from services.models.formats.inspect import inspect
from services.models.formats.whisper import MAX_PICKLE, check_model, read_checkpoint
from tests.case import case
from tests.models.formats.handmade_models import (
    WatchedTree,
    checkpoint,
    checkpoint_pickle,
    ctranslate2,
    damaged,
    local,
    paths,
    refusal,
    write_ctranslate2,
    write_json,
    write_safetensors,
    write_shards,
    write_text_model,
    write_whisper,
)
from tests.whisper_weights import base_ct2, tiny_en_ct2, tiny_en_pt

BOTH = {"transcription", "translation"}


# --- OpenAI


def test_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "tiny.pt").write_bytes(checkpoint())
    for name in ("", "tiny.pt"):
        found = inspect(local(tmp_path), "whisper", name)
        assert (found.format, found.modality, found.architecture) == ("whisper", "audio", "whisper")
        assert (found.capabilities, found.context_tokens, found.primary) == (BOTH, 0, "tiny.pt")
        assert paths(found) == ["tiny.pt"]


@pytest.mark.parametrize(
    ("name", "vocabulary", "capabilities"),
    [
        ("tiny.pt", 51865, BOTH),
        ("tiny.pt", 51864, {"transcription"}),
        ("tiny.en.pt", 51866, BOTH),
        ("tiny.pt", None, BOTH),
        ("tiny.en.pt", None, {"transcription"}),
    ],
)
def test_english_alone_is_not_translated(
    tmp_path: Path, name: str, vocabulary: int | None, capabilities: set[str]
) -> None:
    """The name counts only when the checkpoint does not say."""
    (tmp_path / name).write_bytes(checkpoint(checkpoint_pickle(vocabulary=vocabulary)))
    assert inspect(local(tmp_path), "whisper").capabilities == capabilities


def test_several_checkpoints_are_ambiguous_until_one_is_named(tmp_path: Path) -> None:
    for name in ("base.pt", "tiny.pt"):
        (tmp_path / name).write_bytes(checkpoint())
    assert "ambiguous: base.pt, tiny.pt. Name the file in the source" in refusal(tmp_path, "whisper")
    assert inspect(local(tmp_path), "whisper", "base.pt").primary == "base.pt"


def test_a_checkpoint_that_is_named_must_be_there(tmp_path: Path) -> None:
    assert "tiny.pt is missing" in refusal(tmp_path, "whisper", "tiny.pt")


def test_a_checkpoint_that_would_run_code(tmp_path: Path) -> None:
    (tmp_path / "tiny.pt").write_bytes(checkpoint(checkpoint_pickle(extra=b"cos\nsystem\n")))
    assert "os.system" in refusal(tmp_path, "whisper")


@pytest.mark.parametrize("name", ["model.safetensors", "model.bin", "ggml-tiny.bin", "tiny.gguf"])
def test_no_other_single_file_is_taken(tmp_path: Path, name: str) -> None:
    write_whisper(tmp_path)
    assert f"{name} is not an OpenAI checkpoint" in refusal(tmp_path, "whisper", name, kind=InvalidRequest)


# --- CTranslate2


def test_a_ctranslate2_folder(tmp_path: Path) -> None:
    found = inspect(local(write_ctranslate2(tmp_path)), "whisper")
    assert (found.architecture, found.capabilities, found.primary) == ("whisper_ctranslate2", BOTH, "")
    assert paths(found) == ["config.json", "model.bin", "tokenizer.json", "vocabulary.json"]


@pytest.mark.parametrize(("tokens", "capabilities"), [(51864, {"transcription"}), (51865, BOTH), (51866, BOTH)])
def test_the_vocabulary_defines_the_number_of_languages(tmp_path: Path, tokens: int, capabilities: set[str]) -> None:
    write_ctranslate2(tmp_path, tokens)
    assert inspect(local(tmp_path), "whisper").capabilities == capabilities
    (tmp_path / "vocabulary.json").unlink()
    (tmp_path / "vocabulary.txt").write_text("token\n" * tokens)
    found = inspect(local(tmp_path), "whisper")
    assert found.capabilities == capabilities
    assert "vocabulary.txt" in paths(found)


def test_missing_files_of_a_ctranslate2_folder_are_named(tmp_path: Path) -> None:
    write_ctranslate2(tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "vocabulary.json").unlink()
    expected = "config.json, vocabulary.json or vocabulary.txt are missing"
    assert expected in refusal(tmp_path, "whisper")
    write_ctranslate2(tmp_path)
    (tmp_path / "model.bin").unlink()
    assert "model.bin is missing" in refusal(tmp_path, "whisper")


def test_a_ctranslate2_model_that_is_cut_off(tmp_path: Path) -> None:
    write_ctranslate2(tmp_path)
    path = tmp_path / "model.bin"
    path.write_bytes(path.read_bytes()[:-1])
    assert "model.bin is cut off" in refusal(tmp_path, "whisper")


@pytest.mark.parametrize(("name", "content"), [("config.json", []), ("vocabulary.json", {})])
def test_its_documents_must_be_what_they_are(tmp_path: Path, name: str, content: object) -> None:
    write_ctranslate2(tmp_path)
    write_json(tmp_path / name, content)
    assert refusal(tmp_path, "whisper").startswith(f"{name} is not a JSON ")


def test_real_ctranslate2_folders() -> None:
    for folder, capabilities in ((tiny_en_ct2(), {"transcription"}), (base_ct2(), BOTH)):
        found = inspect(local(folder), "whisper")
        assert (found.architecture, found.capabilities, found.primary) == ("whisper_ctranslate2", capabilities, "")
        assert {"config.json", "model.bin", "tokenizer.json", "vocabulary.txt"} == {*paths(found)}


def test_a_real_checkpoint() -> None:
    path = tiny_en_pt()
    found = inspect(local(path.parent), "whisper", path.name)
    assert (found.architecture, found.capabilities, found.primary) == ("whisper", {"transcription"}, path.name)


# --- transformers


@pytest.mark.parametrize(("vocabulary", "capabilities"), [(51864, {"transcription"}), (51865, BOTH), (51866, BOTH)])
def test_a_folder_of_transformers(tmp_path: Path, vocabulary: int, capabilities: set[str]) -> None:
    write_whisper(tmp_path, vocabulary)
    (tmp_path / "normalizer.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    found = inspect(local(tmp_path), "whisper")
    assert (found.architecture, found.capabilities, found.primary) == ("whisper", capabilities, "")
    expected = ["config.json", "model.safetensors", "normalizer.json", "preprocessor_config.json", "tokenizer.json"]
    assert paths(found) == expected


def test_its_variants_give_way(tmp_path: Path) -> None:
    """Published repositories keep 32-bit weights next to 16-bit ones."""
    write_whisper(tmp_path)
    for at in (1, 2):
        write_safetensors(tmp_path / f"model.fp32-0000{at}-of-00002.safetensors")
    write_json(tmp_path / "model.safetensors.index.fp32.json", {})
    assert "model.safetensors" in paths(inspect(local(tmp_path), "whisper"))


def test_its_weights_in_shards(tmp_path: Path) -> None:
    write_whisper(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    shards = write_shards(tmp_path)
    assert {*shards} <= {*paths(inspect(local(tmp_path), "whisper"))}
    (tmp_path / shards[0]).unlink()
    assert f"{shards[0]} is missing" in refusal(tmp_path, "whisper")


def test_missing_files_are_named_together(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors")
    expected = "config.json, preprocessor_config.json or processor_config.json, tokenizer.json are missing"
    assert expected in refusal(tmp_path, "whisper")


def test_its_weights_are_checked(tmp_path: Path) -> None:
    write_whisper(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert "model.safetensors is cut off" in refusal(tmp_path, "whisper")


def test_a_language_model_is_no_whisper(tmp_path: Path) -> None:
    write_text_model(tmp_path)
    write_json(tmp_path / "preprocessor_config.json", {})
    assert "says that the model is a llama, not a whisper" in refusal(tmp_path, "whisper")


# --- choice of the layout


def test_a_folder_without_any(tmp_path: Path) -> None:
    (tmp_path / "ggml-tiny.bin").write_bytes(b"x")
    message = refusal(tmp_path, "whisper")
    assert all(word in message for word in (".pt", "model.bin", "model.safetensors"))


def test_several_layouts_are_ambiguous_and_named(tmp_path: Path) -> None:
    write_whisper(tmp_path)
    write_ctranslate2(tmp_path)
    (tmp_path / "tiny.pt").write_bytes(checkpoint())
    message = refusal(tmp_path, "whisper")
    assert "OpenAI: tiny.pt; CTranslate2: model.bin, vocabulary.json; transformers: model.safetensors" in message
    assert paths(inspect(local(tmp_path), "whisper", "tiny.pt")) == ["tiny.pt"], "unless one is named"


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
def test_the_size_of_the_vocabulary_defines_the_number_of_languages(
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
    assert f"data.pkl in it has {len(pickled)} bytes; at most {MAX_PICKLE} are allowed" in message(
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
    refused = 0
    for data in damaged(checkpoint(), 1000, seed=11):
        try:
            read(tmp_path, data)
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
from services.models.formats.whisper import read_checkpoint
from services.models.hub.source import LocalTree
folder = pathlib.Path(sys.argv[1])
print(read_checkpoint(LocalTree(folder, [folder]), "tiny.pt"))
"""
    (tmp_path / "tiny.pt").write_bytes(checkpoint())
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def check(folder: Path, data: bytes) -> None:
    (folder / "model.bin").write_bytes(data)
    check_model(local(folder), "model.bin")


def test_a_whole_file(tmp_path: Path) -> None:
    check(tmp_path, ctranslate2())
    check(tmp_path, ctranslate2(variables=0))


def test_file_truncated_at_any_byte_is_reported(tmp_path: Path) -> None:
    whole = ctranslate2()
    for length in range(len(whole)):
        with pytest.raises(ModelInvalid, match=rf"model\.bin is cut off: it has {length} bytes and must have"):
            check(tmp_path, whole[:length])


def test_another_kind_of_model(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match=r"model\.bin holds 'TransformerSpec', not a Whisper model"):
        check(tmp_path, ctranslate2("TransformerSpec"))


@pytest.mark.parametrize("version", [5, 7])
def test_another_version_is_accepted_without_a_look_inside(tmp_path: Path, version: int) -> None:
    check(tmp_path, struct.pack("<I", version) + b"whatever")


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [(4 + 2 + 12 + 4, 2**32 - 1, "claims 4294967295 variables"), (43, 255, "claims 255 dimensions")],
)
def test_hostile_numbers(tmp_path: Path, at: int, value: int, words: str) -> None:
    data = bytearray(ctranslate2())
    struct.pack_into("<I" if value > 255 else "<B", data, at, value)
    with pytest.raises(ModelInvalid, match=words):
        check(tmp_path, bytes(data))


def test_random_damage_of_a_model_file_is_read_or_refused_but_never_a_crash(tmp_path: Path) -> None:
    refused = 0
    for data in damaged(ctranslate2(), 500, seed=13):
        try:
            check(tmp_path, data)
        except ModelInvalid:
            refused += 1
    assert 50 < refused < 500


def test_only_the_beginning_of_a_remote_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(ctranslate2(variables=1000))
    tree = WatchedTree(tmp_path)
    check_model(tree, "model.bin")
    assert tree.bytes_read < 100
