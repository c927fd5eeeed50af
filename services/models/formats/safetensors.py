"""Inspects a safetensors folder: config.json, tokenizer.json, and weights in one file or in shards with an index."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping

from services.errors import InvalidRequest, ModelInvalid, Unsupported
from services.models.formats.config import CONFIG, Config, read_config
from services.models.formats.document import read_list, read_object
from services.models.formats.finding import Finding, missing, place, there
from services.models.formats.lora import refuse_adapter
from services.models.formats.safetensors_header import Tensor
from services.models.formats.safetensors_shards import INDEX, WHOLE, Weights, check_weights, find_weights
from services.models.hub.source import FileTree
from services.models.manifest import ManifestFile

MODULES = "modules.json"
INPUTS = "sentence_bert_config.json"
MAX_MODULES = 32
LOGIT_SCORE = "LogitScore"  # of a decoder that answers yes or no: it reranks
KINDS = ("Transformer", "Pooling", "Dense", "Normalize", LOGIT_SCORE)
_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
TOKENIZER = "tokenizer.json"
PROCESSORS = ("preprocessor_config.json", "processor_config.json")  # either has the settings of the image processor
_PLAIN = frozenset({"F64", "F32", "F16", "BF16"})
# Optional files that runtimes read. No other file of the folder belongs to the model: no weights in other formats, no
# code, and no metadata.json, which is another program's own file.
COMPANIONS = frozenset(
    """
    generation_config.json tokenizer_config.json special_tokens_map.json chat_template.jinja chat_template.json
    tokenizer.model tiktoken.model spiece.model sentencepiece.bpe.model vocab.json vocab.txt merges.txt
    added_tokens.json preprocessor_config.json processor_config.json video_preprocessor_config.json modules.json
    config_sentence_transformers.json sentence_bert_config.json hf_quant_config.json quantize_config.json
    """.split()  # noqa: SIM905 (twenty quoted words are harder to read)
)


def find_modules(tree: FileTree) -> tuple[list[str], list[Weights]]:
    """Returns the paths of all files in the modules' folders, and their weights; empty without modules.json.

    Raises:
        ModelInvalid: modules.json is invalid, or a module lacks files.
        Unsupported: no runtime supports a module's class; names it.
    """
    if MODULES not in tree.files:
        return [], []
    files: list[str] = []
    weights: list[Weights] = []
    absent: list[str] = []
    for folder, kind in _folders(tree):
        config, own = f"{folder}/config.json", f"{folder}/{WHOLE}"
        files += [path for path in (config, own) if path in tree.files]
        if own in tree.files:
            weights.append(Weights((own,)))
        elif kind == "Dense":
            absent.append(own)
        if kind in ("Dense", "Pooling", LOGIT_SCORE) and config not in tree.files:
            absent.append(config)
    if absent:
        raise missing(tree, absent)
    return files, weights


def input_limit(tree: FileTree) -> int:
    """Returns the most tokens of an input, if the publishers set a limit below the architecture's; else 0."""
    limit = read_object(tree, INPUTS).get("max_seq_length") if INPUTS in tree.files else None
    return limit if type(limit) is int and limit > 0 else 0


def _folders(tree: FileTree) -> list[tuple[str, str]]:
    """Returns the folder and class of every module that has a folder."""
    modules = read_list(tree, MODULES)
    if len(modules) > MAX_MODULES:
        raise ModelInvalid(f"{MODULES} names {len(modules)} modules; at most {MAX_MODULES} are allowed")
    found = []
    for module in modules:
        folder = module.get("path") if isinstance(module, dict) else None
        kind = module.get("type") if isinstance(module, dict) else None
        if not isinstance(folder, str) or not isinstance(kind, str) or (folder and not _FOLDER.fullmatch(folder)):
            raise ModelInvalid(f"{MODULES} names {reprlib.repr(folder)}, which is not a folder of a module")
        name = kind.rpartition(".")[2]
        if name not in KINDS:
            message = f"{MODULES} has a module {reprlib.repr(name)}; known are {', '.join(KINDS)}"
            raise Unsupported(message, param="source")
        if folder:
            found.append((folder, name))
    return found


def inspect_safetensors(tree: FileTree) -> Finding:
    """Checks a safetensors folder without reading the weights.

    Raises:
        ModelInvalid: files are missing, ambiguous or damaged, or the model needs its own code; names them.
        InvalidRequest: it is a Whisper model, which has its own format.
        Unsupported: it is an embedding model with an unknown module.
    """
    config = read_config(tree) if there(tree, CONFIG) else None
    if config and config.model_type == "whisper":
        raise InvalidRequest(f"{CONFIG} is of a Whisper model: register it with the format 'whisper'", param="format")
    absent = [path for path in (CONFIG, TOKENIZER) if not there(tree, path)]
    if not any("/" not in path and (path.endswith(".safetensors") or path == INDEX) for path in tree.files):
        absent.append(WHOLE)
    if config and "vision" in config.capabilities and not any(there(tree, path) for path in PROCESSORS):
        absent.append(" or ".join(PROCESSORS))
    if absent or config is None:
        raise missing(tree, absent)
    refuse_adapter(tree)
    if config.fault:
        raise ModelInvalid(f"{place(tree)}: {config.fault}")
    weights = find_weights(tree)
    if weights is None:
        raise missing(tree, [WHOLE])
    modules, modules_weights = find_modules(tree)
    tensors = check_weights(tree, [weights, *modules_weights])[0]
    paths = {CONFIG, TOKENIZER, *weights.files, *modules, *(COMPANIONS & tree.files.keys())}
    files = tuple(tree.files[path] for path in sorted(paths))
    quantization = config.quantization or _undeclared_quantization(tensors)
    return Finding(
        format="safetensors",
        modality="text",
        architecture=config.model_type,
        capabilities=_capabilities(tree, config),
        context_tokens=input_limit(tree) or config.context_tokens,
        files=files,
        primary="",
        quantization=quantization,
        unpacked_size=_unpacked(files, tensors) if quantization == "mxfp4" else 0,
    )


def _capabilities(tree: FileTree, config: Config) -> frozenset[str]:
    if MODULES not in tree.files or config.ranks:
        return config.capabilities
    return frozenset({"rerank" if any(kind == LOGIT_SCORE for _, kind in _folders(tree)) else "embeddings"})


def _undeclared_quantization(tensors: Mapping[str, Tensor]) -> str:
    """Returns the dtype of quantised weights that config.json does not mention; empty if there are none."""
    strange = {tensor.dtype for name, tensor in tensors.items() if name.endswith(".weight")} - _PLAIN
    return min(strange, default="").lower()


def _unpacked(files: Iterable[ManifestFile], tensors: Mapping[str, Tensor]) -> int:
    """Computes the bytes of an MXFP4 model after conversion to bfloat16: a byte of two numbers becomes four bytes."""
    blocks = sum(tensor.size for name, tensor in tensors.items() if name.endswith("_blocks"))
    scales = sum(tensor.size for name, tensor in tensors.items() if name.endswith("_scales"))
    return sum(file.size for file in files) + 3 * blocks - scales
