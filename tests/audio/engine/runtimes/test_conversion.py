"""Conversion of weights for CTranslate2: the same numbers, converted only once when several processes ask."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from services.audio.engine.runtimes.faster_whisper import FasterWhisper
from services.audio.engine.vocabulary import converted_vocabulary
from services.storage import VolumeLock
from services.worker.messages import EngineError
from tests.audio.engine.runtimes.ctranslate2_file import variables
from tests.audio.engine.runtimes.hub_folder import write_hub_folder
from tests.audio.engine.runtimes.spoken import encoded, mels, options, same, step
from tests.late import late
from tests.whisper_weights import tiny_en_ct2, tiny_en_pt

checkpoint = late("services.audio.engine.runtimes.checkpoint")
conversion = late("services.audio.engine.runtimes.conversion")
torch = late("torch")

pytestmark = pytest.mark.slow

CONVERT = """
import sys
from pathlib import Path
from services.audio.engine.runtimes.conversion import convert
print(convert(Path(sys.argv[1]), sys.argv[2], lambda fraction: None))
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def converted(cache: Path) -> Path:
    fractions: list[float] = []
    folder = conversion.convert(tiny_en_pt(), str(cache), fractions.append)
    assert fractions == sorted(fractions)
    assert fractions
    return folder


def test_every_weight_is_that_of_the_published_conversion(converted: Path) -> None:
    found, wanted = variables(converted / "model.bin"), variables(tiny_en_ct2() / "model.bin")
    assert wanted
    assert {name: value for name, value in found.items() if name in wanted} == wanted
    made, published = (json.loads((folder / "config.json").read_text()) for folder in (converted, tiny_en_ct2()))
    for name in ("alignment_heads", "suppress_ids", "suppress_ids_begin"):
        assert made[name] == published[name]
    ours, theirs = converted_vocabulary(converted), converted_vocabulary(tiny_en_ct2())
    assert ours.names() == theirs.names()


def test_it_decodes_as_the_published_conversion(converted: Path, faster_whisper: FasterWhisper) -> None:
    loaded = FasterWhisper(options(converted, compute_type="float32"), lambda _: None)
    start = loaded.vocabulary.start("en", "transcribe")
    (found,) = loaded.decode(loaded.encode(mels()[:1]), [start], step())
    assert same(found, *faster_whisper.decode(encoded(faster_whisper)[:1], [start], step()))


def test_the_runtime_converts_by_itself_and_once(converted: Path, cache: Path) -> None:
    before = (converted / "model.bin").stat().st_mtime_ns
    loaded = FasterWhisper(options(tiny_en_pt(), cache_folder=str(cache)), lambda _: None)
    assert loaded.n_mels == 80
    assert (converted / "model.bin").stat().st_mtime_ns == before
    assert [path.name for path in cache.iterdir() if path.is_dir()] == [converted.name]


def test_a_transformers_folder_makes_the_same(tmp_path: Path, converted: Path) -> None:
    source = tmp_path / "hub"
    source.mkdir()
    write_hub_folder(source, checkpoint.read_checkpoint(tiny_en_pt()), tiny_en_ct2() / "tokenizer.json", shards=1)
    (source / "model-1.safetensors").rename(source / "model.safetensors")
    folder = conversion.convert(source, str(tmp_path / "cache"), lambda _: None)
    assert (folder / "model.bin").read_bytes() == (converted / "model.bin").read_bytes()
    assert (folder / "vocabulary.json").read_bytes() == (converted / "vocabulary.json").read_bytes()


def test_two_processes_make_one_folder_and_what_a_dead_one_left_goes(tmp_path: Path, converted: Path) -> None:
    left = tmp_path / f"{converted.name}.partial"
    left.mkdir()
    (left / "model.bin").write_bytes(b"half")
    command = [sys.executable, "-c", CONVERT, str(tiny_en_pt()), str(tmp_path)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    folders = {child.communicate(timeout=150)[0].strip() for child in children}
    assert [child.returncode for child in children] == [0, 0]
    assert folders == {str(tmp_path / converted.name)}
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [converted.name]


def test_it_waits_for_the_current_user(tmp_path: Path, converted: Path) -> None:
    """Another process holds the lock: progress is reported while it converts, and its result is used unchanged."""
    lock = VolumeLock(tmp_path / f"{converted.name}.lock")
    assert lock.take()
    seen: list[float] = []

    def progress(fraction: float) -> None:
        seen.append(fraction)
        if len(seen) == 3:
            (tmp_path / converted.name).mkdir()
            lock.release()

    assert conversion.convert(tiny_en_pt(), str(tmp_path), progress) == tmp_path / converted.name
    assert len(seen) == 3


def test_wrong_weights_leave_nothing_behind(tmp_path: Path) -> None:
    stored = checkpoint.read_checkpoint(tiny_en_pt())
    source, cache = tmp_path / "wrong.pt", tmp_path / "cache"
    tensors = dict(stored.tensors)
    for change, words in (
        (
            {"decoder.ln.weight": torch.zeros(7)},
            r"wrong\.pt: decoder\.ln\.weight has the shape \[7\], expected \[384\]",
        ),
        ({"more": torch.zeros(7)}, r"wrong\.pt has an unexpected tensor: more"),
    ):
        torch.save({"dims": vars(stored.dimensions), "model_state_dict": tensors | change}, source)
        with pytest.raises(EngineError, match=words) as caught:
            conversion.convert(source, str(cache), lambda _: None)
        assert caught.value.code == "MODEL_INVALID"
        assert not [path for path in cache.iterdir() if path.is_dir()]
    del tensors["encoder.conv1.bias"]
    torch.save({"dims": vars(stored.dimensions), "model_state_dict": tensors}, source)
    with pytest.raises(EngineError, match=r"wrong\.pt has no tensor encoder\.conv1\.bias"):
        conversion.convert(source, str(cache), lambda _: None)


def test_there_must_be_somewhere_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="there is no cache folder") as caught:
        FasterWhisper(options(tiny_en_pt()), lambda _: None)
    assert caught.value.code == "UNSUPPORTED"
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match="cannot be kept in"):
        conversion.convert(tiny_en_pt(), str(tmp_path / "file"), lambda _: None)
    with pytest.raises(EngineError, match=r"nothing\.pt"):
        conversion.convert(tmp_path / "nothing.pt", str(tmp_path), lambda _: None)
