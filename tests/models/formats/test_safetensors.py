"""Folders of safetensors: required files, optional files, and the facts in their config.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.errors import InvalidRequest, ModelInvalid, Unsupported
from services.models.formats.inspect import inspect
from tests.case import case
from tests.models.formats.handmade_models import (
    WatchedTree,
    local,
    paths,
    refusal,
    safetensors,
    write_gguf,
    write_json,
    write_safetensors,
    write_shards,
    write_text_model,
)
from tests.models.gguf_file import entry


def test_a_whole_folder(tmp_path: Path) -> None:
    found = inspect(local(write_text_model(tmp_path)), "safetensors")
    assert (found.format, found.modality, found.architecture) == ("safetensors", "text", "llama")
    assert (found.capabilities, found.context_tokens, found.primary) == ({"chat"}, 4096, "")
    assert paths(found) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_a_model_that_sees(tmp_path: Path) -> None:
    """A model of text and pictures needs the settings of its image processor, in one of two files."""
    config = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "vision_config": {}}
    write_json(write_text_model(tmp_path) / "config.json", config)
    expected = "preprocessor_config.json or processor_config.json is missing"
    assert expected in refusal(tmp_path, "safetensors")
    for name in ("processor_config.json", "preprocessor_config.json"):
        write_json(tmp_path / name, {"image_mean": [0.5, 0.5, 0.5]})
        found = inspect(local(tmp_path), "safetensors")
        assert (found.architecture, found.capabilities) == ("llava", {"chat", "vision"})
        assert name in paths(found)


def test_a_folder_with_shards(tmp_path: Path) -> None:
    write_text_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    shards = write_shards(tmp_path)
    found = inspect(local(tmp_path), "safetensors")
    assert paths(found) == sorted(["config.json", "tokenizer.json", "model.safetensors.index.json", *shards])
    (tmp_path / shards[1]).unlink()
    assert f"{shards[1]} is missing" in refusal(tmp_path, "safetensors")
    for shard in (shards[0], shards[2]):
        (tmp_path / shard).unlink()
    assert f"{', '.join(shards)} are missing" in refusal(tmp_path, "safetensors")


@pytest.mark.parametrize(
    "gone", [("config.json",), ("tokenizer.json",), ("model.safetensors",), ("config.json", "tokenizer.json")]
)
def test_missing_parts_are_named_together(tmp_path: Path, gone: tuple[str, ...]) -> None:
    write_text_model(tmp_path)
    for name in gone:
        (tmp_path / name).unlink()
    message = refusal(tmp_path, "safetensors")
    assert all(name in message for name in gone)
    assert not any(name in message for name in {"config.json", "tokenizer.json", "model.safetensors"} - {*gone})


def test_an_empty_folder_and_empty_files(tmp_path: Path) -> None:
    assert "config.json, model.safetensors, tokenizer.json are missing" in refusal(tmp_path, "safetensors")
    write_text_model(tmp_path)
    (tmp_path / "tokenizer.json").write_text("")
    assert "tokenizer.json is missing or empty" in refusal(tmp_path, "safetensors")


def test_weights_of_other_formats_are_not_taken_in_their_place(tmp_path: Path) -> None:
    write_text_model(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    write_gguf(tmp_path / "model.gguf")
    assert "model.safetensors is missing" in refusal(tmp_path, "safetensors")


def test_several_weights_are_ambiguous(tmp_path: Path) -> None:
    write_text_model(tmp_path)
    write_safetensors(tmp_path / "model.fp16.safetensors")
    assert "ambiguous: model.fp16.safetensors, model.safetensors" in refusal(tmp_path, "safetensors")


def test_companions_belong_to_it_and_nothing_else_does(tmp_path: Path) -> None:
    write_text_model(tmp_path)
    wanted = ["chat_template.jinja", "generation_config.json", "merges.txt", "tokenizer.model", "vocab.json"]
    others = [
        "README.md",
        "metadata.json",
        "model.gguf",
        "modeling.py",
        "optimizer.pt",
        "original/model.safetensors",
        "pytorch_model.bin",
        "sub/generation_config.json",
        "training_args.bin",
    ]
    for name in (*wanted, *others):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    found = inspect(local(tmp_path), "safetensors")
    assert paths(found) == sorted(["config.json", "model.safetensors", "tokenizer.json", *wanted])


def test_a_whisper_model_is_sent_to_its_own_format(tmp_path: Path) -> None:
    write_text_model(tmp_path, model_type="whisper")
    assert "register it with the format 'whisper'" in refusal(tmp_path, "safetensors", kind=InvalidRequest)


# --- config.json


def test_the_classes_say_what_it_can_do(tmp_path_factory: pytest.TempPathFactory) -> None:
    for architectures, capabilities in [
        (["LlamaForCausalLM"], {"chat"}),
        (["Gemma3ForConditionalGeneration"], {"chat"}),
        (["GPT2LMHeadModel"], {"chat"}),
        (["BertModel"], {"embeddings"}),
        (["LlamaForSequenceClassification"], set()),
        ([], {"chat"}),
        (None, {"chat"}),
        ("LlamaForCausalLM", {"chat"}),
        ([None, 5, ["BertModel"]], {"chat"}),
    ]:
        with case(architectures=architectures, capabilities=capabilities):
            tmp_path = tmp_path_factory.mktemp("case")
            write_text_model(tmp_path, architectures=architectures)
            assert inspect(local(tmp_path), "safetensors").capabilities == capabilities


@pytest.mark.parametrize(
    ("architectures", "capabilities"), [([], {"embeddings"}), (["BertForMaskedLM"], {"embeddings"})]
)
def test_an_encoder_embeds(tmp_path: Path, architectures: list[str], capabilities: set[str]) -> None:
    write_text_model(tmp_path, model_type="bert", architectures=architectures)
    assert inspect(local(tmp_path), "safetensors").capabilities == capabilities


def test_the_context_is_what_it_says_if_that_can_be(tmp_path_factory: pytest.TempPathFactory) -> None:
    for config, tokens in [
        ({"max_position_embeddings": 131072}, 131072),
        ({"max_position_embeddings": None, "text_config": {"max_position_embeddings": 8192}}, 8192),
        ({"max_position_embeddings": None, "n_positions": 1024}, 1024),
        ({"max_position_embeddings": None}, 0),
        ({"max_position_embeddings": -1}, 0),
        ({"max_position_embeddings": 2**31}, 0),
        ({"max_position_embeddings": True}, 0),
        ({"max_position_embeddings": "4096"}, 0),
        ({"max_position_embeddings": 4096.0}, 0),
        ({"max_position_embeddings": float("nan")}, 0),
        ({"max_position_embeddings": None, "text_config": [4096]}, 0),
    ]:
        with case(config=config, tokens=tokens):
            tmp_path = tmp_path_factory.mktemp("case")
            write_text_model(tmp_path, **config)
            assert inspect(local(tmp_path), "safetensors").context_tokens == tokens


def test_the_architecture_is_the_model_type(tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in ["gpt_oss", "qwen3", "glm4_moe", "nemotron_h", "falcon-h1", "qwen2.5"]:
        with case(name=name):
            tmp_path = tmp_path_factory.mktemp("case")
            write_text_model(tmp_path, model_type=name)
            assert inspect(local(tmp_path), "safetensors").architecture == name


def test_a_model_type_that_cannot_be(tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in [None, "", 5, [], {}, True, "a b", "../x", "x" * 101, "ä", "\ud800"]:
        with case(name=name):
            tmp_path = tmp_path_factory.mktemp("case")
            write_text_model(tmp_path, model_type=name)
            assert "model_type in config.json is" in refusal(tmp_path, "safetensors")


@pytest.mark.parametrize("content", ["[]", "{", '"x"', '{"a":' * 100_000])
def test_a_config_that_is_no_object(tmp_path: Path, content: str) -> None:
    write_text_model(tmp_path)
    (tmp_path / "config.json").write_text(content)
    assert refusal(tmp_path, "safetensors").startswith("config.json is ")


def test_a_config_has_a_largest_size(tmp_path: Path) -> None:
    write_text_model(tmp_path, padding="x" * (4 * 2**20))
    assert "config.json has" in refusal(tmp_path, "safetensors")


AUTO = "AutoModelForCausalLM"


def test_code_of_a_models_own_is_refused_by_name(tmp_path_factory: pytest.TempPathFactory) -> None:
    for auto_map in [
        {AUTO: "modeling_x.XForCausalLM"},
        {AUTO: "modeling_llama.LlamaForCausalLM"},  # possibly different code under the same name
        {"AutoConfig": "configuration_x.XConfig"},
        {"AutoModel": ["modeling_x.XModel", None]},
        {AUTO: "other/repository--modeling_x.XForCausalLM"},
        "modeling_x.XForCausalLM",
    ]:
        with case(auto_map=auto_map):
            tmp_path = tmp_path_factory.mktemp("case")
            write_text_model(tmp_path, auto_map=auto_map)
            message = refusal(tmp_path, "safetensors")
            assert "auto_map in config.json asks for the model's own code, which is never run" in message
            assert "modeling" in message or "XConfig" in message


@pytest.mark.parametrize("auto_map", [None, {}, {"AutoTokenizer": ["tokenization_x.XTokenizer", None]}])
def test_code_that_nothing_would_run_is_nobodys_business(tmp_path: Path, auto_map: object) -> None:
    write_text_model(tmp_path, auto_map=auto_map)
    assert inspect(local(tmp_path), "safetensors").architecture == "llama"


def test_mixers_that_transformers_has_taken_over_are_its_own(tmp_path: Path) -> None:
    names = {"AutoConfig": "configuration_nemotron_h.NemotronHConfig", AUTO: "modeling_nemotron_h.NemotronHForCausalLM"}
    write_text_model(tmp_path, model_type="nemotron_h", architectures=["NemotronHForCausalLM"], auto_map=names)
    assert inspect(local(tmp_path), "safetensors").architecture == "nemotron_h"


def test_code_that_transformers_has_taken_over_is_not_needed(tmp_path: Path) -> None:
    names = {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"}
    write_text_model(tmp_path, model_type="nomic_bert", architectures=["NomicBertModel"], auto_map=names)
    assert inspect(local(tmp_path), "safetensors").capabilities == {"embeddings"}


def test_a_strange_type_of_numbers_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    for dtype in ["float8_e4m3fn", "int8", "", 16, ["bfloat16"], {"text_config": "bfloat16"}]:
        for key in ["dtype", "torch_dtype"]:
            with case(dtype=dtype, key=key):
                tmp_path = tmp_path_factory.mktemp("case")
                write_text_model(tmp_path, **{key: dtype})
                assert f"{key} in config.json is" in refusal(tmp_path, "safetensors")


def test_usual_types_of_numbers_are_taken(tmp_path_factory: pytest.TempPathFactory) -> None:
    for dtype in [None, "auto", "bfloat16", "float16", "float32", "torch.float16"]:
        with case(dtype=dtype):
            tmp_path = tmp_path_factory.mktemp("case")
            write_text_model(tmp_path, torch_dtype=dtype)
            assert inspect(local(tmp_path), "safetensors").quantization == ""


def test_quantisation_comes_from_config_json(tmp_path_factory: pytest.TempPathFactory) -> None:
    for config, method in [
        ({"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": []}}, "mxfp4"),
        ({"quantization_config": {"quant_method": "FP8", "weight_block_size": [128, 128]}}, "fp8"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ({"quantization_config": {"load_in_4bit": True}}, "bitsandbytes"),
        ({"compression_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors"),
        ({"text_config": {"quantization_config": {"quant_method": "awq"}}}, "awq"),
        ({"quantization_config": None}, ""),
        ({"quantization_config": {}}, ""),
    ]:
        with case(config=config, method=method):
            tmp_path = tmp_path_factory.mktemp("case")
            write_text_model(tmp_path, **config)
            assert inspect(local(tmp_path), "safetensors").quantization == method


@pytest.mark.parametrize("said", [{"bits": 4}, "fp8", [1], {"quant_method": 8}, {"quant_method": "a b"}])
def test_a_quantisation_without_a_name_is_refused(tmp_path: Path, said: object) -> None:
    write_text_model(tmp_path, quantization_config=said)
    assert "quant_method in config.json's quantization_config is" in refusal(tmp_path, "safetensors")


def test_undeclared_quantisation_is_recognised_by_tensor_type(tmp_path: Path) -> None:
    write_text_model(tmp_path)
    tensors = {"a.weight": ("F8_E4M3", [4]), "b.weight": ("BF16", [4]), "position_ids": ("I64", [4])}
    (tmp_path / "model.safetensors").write_bytes(safetensors(tensors))
    assert inspect(local(tmp_path), "safetensors").quantization == "f8_e4m3"


def test_packed_weights_are_counted_as_what_they_become(tmp_path: Path) -> None:
    write_text_model(tmp_path, model_type="gpt_oss", quantization_config={"quant_method": "mxfp4"})
    tensors = {"x_blocks": ("U8", [2, 3, 16]), "x_scales": ("U8", [2, 3]), "y.weight": ("BF16", [5])}
    (tmp_path / "model.safetensors").write_bytes(safetensors(tensors))
    found = inspect(local(tmp_path), "safetensors")
    rest = sum(file.size for file in found.files) - 2 * 3 * 16 - 2 * 3
    assert found.unpacked_size == rest + 2 * 3 * 32 * 2
    facts = found.facts("m")
    assert (facts.quantization, facts.unpacked_size) == ("mxfp4", found.unpacked_size)


def test_plain_weights_need_no_unpacking(tmp_path: Path) -> None:
    assert inspect(local(write_text_model(tmp_path)), "safetensors").unpacked_size == 0


# --- sentence-transformers

MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
    {"idx": 3, "name": "3", "path": "3_Normalize", "type": "sentence_transformers.models.Normalize"},
]


def write_embedder(folder: Path) -> Path:
    write_text_model(folder, model_type="qwen3", architectures=["Qwen3ForCausalLM"])
    write_json(folder / "modules.json", MODULES)
    write_json(folder / "1_Pooling/config.json", {"pooling_mode_mean_tokens": True})
    write_json(folder / "2_Dense/config.json", {})
    write_safetensors(folder / "2_Dense/model.safetensors", "linear.weight")
    (folder / "2_Dense/pytorch_model.bin").write_bytes(b"pickle")
    return folder


def test_model_with_modules_embeds_with_any_classes(tmp_path: Path) -> None:
    found = inspect(local(write_embedder(tmp_path)), "safetensors")
    assert found.capabilities == {"embeddings"}
    assert paths(found) == [
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "config.json",
        "model.safetensors",
        "modules.json",
        "tokenizer.json",
    ]


def test_missing_parts_of_modules_are_named(tmp_path: Path) -> None:
    write_embedder(tmp_path)
    (tmp_path / "2_Dense/model.safetensors").unlink()
    (tmp_path / "1_Pooling/config.json").unlink()
    assert "1_Pooling/config.json, 2_Dense/model.safetensors are missing" in refusal(tmp_path, "safetensors")


def test_the_weights_of_modules_are_checked(tmp_path: Path) -> None:
    write_embedder(tmp_path)
    path = tmp_path / "2_Dense/model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert "2_Dense/model.safetensors is cut off" in refusal(tmp_path, "safetensors")


def test_modules_that_cannot_be(tmp_path_factory: pytest.TempPathFactory) -> None:
    for modules in [
        [{"path": "../1_Pooling", "type": "x.Pooling"}],
        [{"path": "/1_Pooling", "type": "x.Pooling"}],
        [{"path": "a/b", "type": "x.Pooling"}],
        [{"path": 5, "type": "x.Pooling"}],
        [{"type": "x.Pooling"}],
        [{"path": "1_Pooling"}],
        ["1_Pooling"],
        [None],
        {"path": "1_Pooling"},
        [{"path": "", "type": "x"}] * 33,
    ]:
        with case(modules=modules):
            tmp_path = tmp_path_factory.mktemp("case")
            write_embedder(tmp_path)
            write_json(tmp_path / "modules.json", modules)
            assert refusal(tmp_path, "safetensors").startswith("modules.json ")


def test_each_file_of_a_remote_model_is_opened_once(tmp_path: Path) -> None:
    write_text_model(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    shards = write_shards(tmp_path, 20)
    tree = WatchedTree(tmp_path)
    inspect(tree, "safetensors")
    assert sorted(tree.opened) == sorted(["config.json", "model.safetensors.index.json", *shards])
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "llama"


def write_encoder(folder: Path, *kinds: str) -> Path:
    write_text_model(folder, model_type="bert", architectures=["BertModel"], max_position_embeddings=512)
    modules = [{"path": f"{number}_{kind}" * (number > 0), "type": f"x.{kind}"} for number, kind in enumerate(kinds)]
    for module in modules:
        write_json(folder / module["path"] / "config.json", {"model_type": "bert"}) if module["path"] else None
    write_json(folder / "modules.json", modules)
    return folder


def test_steps_that_are_known(tmp_path: Path) -> None:
    found = inspect(local(write_encoder(tmp_path, "Transformer", "Pooling", "Normalize")), "safetensors")
    assert (found.capabilities, found.context_tokens) == (frozenset({"embeddings"}), 512)


@pytest.mark.parametrize("kind", ["LSTM", "SpladePooling", "StaticEmbedding"])
def test_steps_that_are_not_known_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    write_encoder(tmp_path, "Transformer", "Pooling", kind)
    with pytest.raises(
        Unsupported, match=f"a module '{kind}'; known are Transformer, Pooling, Dense, Normalize"
    ) as caught:
        inspect(local(tmp_path), "safetensors")
    assert (caught.value.param, caught.value.http_status) == ("source", 400)


def test_its_makers_may_set_a_lower_limit(tmp_path_factory: pytest.TempPathFactory) -> None:
    for said, tokens in [(256, 256), (None, 512), (0, 512), (-1, 512), ("x", 512), (True, 512)]:
        with case(said=said, tokens=tokens):
            tmp_path = tmp_path_factory.mktemp("case")
            write_encoder(tmp_path, "Transformer", "Pooling")
            write_json(tmp_path / "sentence_bert_config.json", {"max_seq_length": said})
            assert inspect(local(tmp_path), "safetensors").context_tokens == tokens


def test_a_limit_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    write_encoder(tmp_path, "Transformer", "Pooling")
    (tmp_path / "sentence_bert_config.json").write_text("{")
    with pytest.raises(ModelInvalid, match=r"sentence_bert_config\.json"):
        inspect(local(tmp_path), "safetensors")


def test_a_gguf_file_that_ranks_is_a_reranker_unless_it_needs_token_types(tmp_path: Path) -> None:
    ranks = entry("bert.pooling_type", 4, 4)
    write_gguf(tmp_path / "m.gguf", ranks, architecture="bert")
    assert inspect(local(tmp_path), "gguf").capabilities == {"rerank"}
    write_gguf(tmp_path / "m.gguf", ranks, entry("tokenizer.ggml.token_type_count", 4, 2), architecture="bert")
    with pytest.raises(Unsupported, match="token types") as caught:
        inspect(local(tmp_path), "gguf")
    assert caught.value.http_status == 400


def test_classifiers_of_one_label_and_decoders_that_answer_yes_or_no_rerank(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    cross = {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}
    qwen = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    for config, capabilities in [
        (cross | {"id2label": {"0": "LABEL_0"}}, {"rerank"}),
        (cross | {"num_labels": 1}, {"rerank"}),
        (cross | {"id2label": {"0": "no", "1": "yes"}}, set()),
        (cross, set()),
        (qwen, {"chat"}),
        (qwen | {"is_original_qwen3_reranker": True}, {"rerank"}),
    ]:
        with case(config=config):
            folder = write_text_model(tmp_path_factory.mktemp("case"), **config)
            assert inspect(local(folder), "safetensors").capabilities == capabilities
    folder = write_text_model(tmp_path_factory.mktemp("case"), **qwen)
    (folder / "1_LogitScore").mkdir()
    write_json(folder / "1_LogitScore" / "config.json", {"true_token_id": 9, "false_token_id": 7})
    kinds = {"": "Transformer", "1_LogitScore": "LogitScore"}
    write_json(folder / "modules.json", [{"path": path, "type": f"a.{kind}"} for path, kind in kinds.items()])
    found = inspect(local(folder), "safetensors")
    assert (found.capabilities, "1_LogitScore/config.json" in paths(found)) == ({"rerank"}, True)
