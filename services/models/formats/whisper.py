"""Inspects Whisper models in three layouts: OpenAI's checkpoint, a CTranslate2 folder, and transformers' safetensors.

The first and the last have the architecture `whisper`, CTranslate2 folders have `whisper_ctranslate2`, which only the
runtime faster_whisper reads. Runtimes open a checkpoint by its file, the others by their folder.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.errors import InvalidRequest, ModelInvalid
from services.models.formats.checkpoint import MULTILINGUAL, read_checkpoint
from services.models.formats.config import CONFIG, read_config
from services.models.formats.ctranslate2 import check_model
from services.models.formats.document import read_bytes, read_list, read_object
from services.models.formats.finding import Finding, listed, missing, place, require, there
from services.models.formats.safetensors import COMPANIONS, TOKENIZER
from services.models.formats.safetensors_shards import WHOLE, check_weights, find_weights
from services.models.hub.source_tree import FileTree

ARCHITECTURE, CONVERTED = "whisper", "whisper_ctranslate2"
CHECKPOINT = ".pt"
CTRANSLATE2 = "model.bin"
VOCABULARIES = ("vocabulary.json", "vocabulary.txt")
MAX_VOCABULARY = 16 * 1024 * 1024  # bytes
# transformers' two names for the configuration of the feature extractor
PROCESSORS = ("preprocessor_config.json", "processor_config.json")


def inspect_whisper(tree: FileTree, file: str) -> Finding:
    """Checks a Whisper model; `file` names an OpenAI checkpoint, or is empty.

    Raises:
        ModelInvalid: files are missing, ambiguous or damaged; names them.
        InvalidRequest: `file` is no checkpoint.
    """
    if file and not file.endswith(CHECKPOINT):
        raise InvalidRequest(f"{file} is not an OpenAI checkpoint (.pt): name the folder instead", param="source")
    if file:
        return _openai(tree, file)
    layouts = layouts_in(tree)
    if not layouts:
        raise ModelInvalid(
            f"{place(tree)}: no checkpoint (.pt), no {CTRANSLATE2} of CTranslate2, and no {WHOLE} is there"
        )
    if len(layouts) > 1:
        names = "; ".join(f"{layout}: {listed(paths)}" for layout, paths in layouts.items())
        raise ModelInvalid(f"{place(tree)}: the choice of a layout is ambiguous: {names}")
    if "OpenAI" in layouts:
        return _openai(tree, _only(tree, layouts["OpenAI"]))
    return _ctranslate2(tree) if "CTranslate2" in layouts else _transformers(tree)


def layouts_in(tree: FileTree) -> dict[str, list[str]]:
    """Returns the possible layouts of the top folder, each with the files that indicate it."""
    top = [path for path in tree.files if "/" not in path]
    found = {
        "OpenAI": [path for path in top if path.endswith(CHECKPOINT)],
        "CTranslate2": [path for path in top if path in (CTRANSLATE2, *VOCABULARIES)],
        "transformers": [path for path in top if path.endswith((".safetensors", ".safetensors.index.json"))],
    }
    return {layout: paths for layout, paths in found.items() if paths}


def _only(tree: FileTree, paths: list[str]) -> str:
    if len(paths) > 1:
        which = f"the choice of a checkpoint is ambiguous: {listed(paths)}"
        raise ModelInvalid(f"{place(tree)}: {which}. Name the file in the source")
    return paths[0]


def _openai(tree: FileTree, path: str) -> Finding:
    require(tree, [path])
    multilingual = read_checkpoint(tree, path)
    if multilingual is None:
        multilingual = not path.removesuffix(CHECKPOINT).endswith(".en")
    return _finding(tree, [path], path, multilingual)


def _ctranslate2(tree: FileTree) -> Finding:
    vocabulary = next((path for path in VOCABULARIES if there(tree, path)), None)
    absent = [path for path in (CTRANSLATE2, CONFIG) if not there(tree, path)]
    if absent or vocabulary is None:
        raise missing(tree, [*absent, *([] if vocabulary else [" or ".join(VOCABULARIES)])])
    read_object(tree, CONFIG)
    check_model(tree, CTRANSLATE2)
    if vocabulary.endswith(".json"):
        tokens = len(read_list(tree, vocabulary, MAX_VOCABULARY))
    else:
        tokens = read_bytes(tree, vocabulary, MAX_VOCABULARY).count(b"\n")
    paths = {CTRANSLATE2, CONFIG, vocabulary, *(COMPANIONS | {TOKENIZER}) & tree.files.keys()}
    return _finding(tree, paths, "", tokens >= MULTILINGUAL, CONVERTED)


def _transformers(tree: FileTree) -> Finding:
    processors = [path for path in PROCESSORS if there(tree, path)]
    absent = [path for path in (CONFIG, TOKENIZER) if not there(tree, path)]
    if absent or not processors:
        raise missing(tree, [*absent, *([] if processors else [" or ".join(PROCESSORS)])])
    config = read_config(tree)
    if config.model_type != "whisper":
        raise ModelInvalid(f"{CONFIG} says that the model is a {config.model_type}, not a whisper")
    weights = find_weights(tree, variants=True)
    if weights is None:
        raise missing(tree, [WHOLE])
    check_weights(tree, [weights])
    paths = {CONFIG, TOKENIZER, *weights.files, *(COMPANIONS | {"normalizer.json"}) & tree.files.keys()}
    return _finding(tree, paths, "", config.vocabulary >= MULTILINGUAL)


def _finding(
    tree: FileTree, paths: Iterable[str], primary: str, multilingual: bool, architecture: str = ARCHITECTURE
) -> Finding:
    return Finding(
        format="whisper",
        modality="audio",
        architecture=architecture,
        capabilities=frozenset({"transcription", "translation"} if multilingual else {"transcription"}),
        context_tokens=0,
        files=tuple(tree.files[path] for path in sorted(paths)),
        primary=primary,
    )
