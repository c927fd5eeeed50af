"""Tokenizers and chat templates of the torch runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from services.text.engine.runtimes.torch.vocabulary import TokenVocabulary, chat_template, end_tokens
from services.text.prompt import ChatTemplate
from services.worker.messages import EngineError
from tests.demo_model import demo_safetensors
from tests.text.families.random_models import write_json
from tests.text.families.small_tokenizer import write_tokenizer

TEXT = "Zażółć gęślą jaźń, 12345 🙂\n\tdef f(x): return x<|im_end|>ok"


def demo() -> TokenVocabulary:
    return TokenVocabulary(demo_safetensors(), 49152, frozenset({2}))


def sentence_piece(folder: Path, **settings: Any) -> TokenVocabulary:
    """Builds a tokenizer like a converted SentencePiece model: marks for spaces, byte tokens by name."""
    words = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], "▁", "▁the", "e", "a"]
    model = models.BPE(
        vocab={word: number for number, word in enumerate(words)}, merges=[], unk_token="<unk>", byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"bos_token": "<s>", "eos_token": {"content": "</s>"}} | settings)
    return TokenVocabulary(folder, 300, frozenset())


def test_pieces_put_together_are_the_text() -> None:
    known = demo()
    tokens = known.tokenize(TEXT)
    assert b"".join(known.text_of(token) for token in tokens).decode() == TEXT
    parts = [known.text_of(token) for token in known.tokenize("🙂")]
    assert len(parts) > 1
    with pytest.raises(UnicodeDecodeError):
        parts[0].decode()


def test_spelled_out_special_tokens_are_single_ones() -> None:
    known = demo()
    assert known.tokenize("<|im_start|>user\n<|im_end|>")[0] == 1
    assert known.tokenize("<|im_start|>user\n<|im_end|>")[-1] == 2
    assert known.is_control(1)
    assert not known.add_bos
    assert (known.bos, known.eos) == ("<|im_start|>", "<|im_end|>")


def test_every_token_has_bytes_and_ids_beyond_have_none() -> None:
    known = demo()
    assert all(known.text_of(token) for token in range(49152))
    assert known.text_of(60_000) == b""


def test_bytes_of_sentence_piece(tmp_path: Path) -> None:
    known = sentence_piece(tmp_path)
    assert known.text_of(3 + 0xC3) == b"\xc3"
    assert known.text_of(3 + 256 + 1) == b" the"
    assert b"".join(known.text_of(token) for token in known.tokenize("a é e")[1:]) == "a é e".encode()


def test_the_first_token_is_put_in_front_and_nothing_behind(tmp_path: Path) -> None:
    known = sentence_piece(tmp_path)
    assert known.add_bos
    assert known.tokenize("a")[0] == 1
    assert known.tokenize("a").count(1) == 1
    assert 2 not in known.tokenize("a")


def test_ends_come_from_metadata_and_names() -> None:
    assert end_tokens({"eos_token_id": 5}) == {5}
    assert end_tokens({"eos_token_id": [5, 6]}) == {5, 6}
    assert end_tokens({"eos_token_id": None}) == end_tokens({}) == set()
    assert demo().ends == {0, 2}, "<|endoftext|> and <|im_end|>"


def test_ends_of_the_tokenizers_own(tmp_path: Path) -> None:
    assert sentence_piece(tmp_path).ends == {2}


@pytest.mark.parametrize(
    ("names", "ends"),
    [
        (["<|start|>", "<|end|>", "<|return|>", "<|call|>"], {"<|return|>", "<|call|>"}),
        (["<|user|>", "<|end|>"], {"<|end|>"}),
        (["<|eot_id|>", "<|eom_id|>", "<|start_header_id|>"], {"<|eot_id|>", "<|eom_id|>"}),
    ],
)
def test_names_that_end_a_turn(tmp_path: Path, names: list[str], ends: set[str]) -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    tokenizer.add_special_tokens(names)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    known = TokenVocabulary(tmp_path, 100, frozenset())
    assert {known.text_of(token).decode() for token in known.ends} == ends


def test_tokens_that_only_the_configuration_names(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings["added_tokens_decoder"] = {"320": {"content": "<|call_me|>", "special": True}}
    write_json(tmp_path / "tokenizer_config.json", settings)
    known = TokenVocabulary(tmp_path, 321, frozenset())
    assert known.tokenize("a<|call_me|>")[-1] == 320
    assert known.is_control(320)


def test_markup_is_not_text_to_a_grammar(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    tokenizer.add_special_tokens(["<|im_end|>", "<tool_call>"])
    tokenizer.add_tokens(["<|box|>", "<think>", "word"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    known = TokenVocabulary(tmp_path, 100, frozenset())
    markup = {known.text_of(token).decode() for token in range(6) if known.is_markup(token)}
    assert markup == {"<|im_end|>", "<|box|>"}, "marks of calls and thoughts are text"


@pytest.mark.parametrize("content", [None, "{", '{"version": "1.0"}'])
def test_a_tokenizer_that_cannot_be_read_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(EngineError) as caught:
        TokenVocabulary(tmp_path, 100, frozenset())
    assert caught.value.code == "MODEL_INVALID"
    assert str(tmp_path / "tokenizer.json") in caught.value.message


def test_chat_templates_by_where_they_are(tmp_path: Path) -> None:
    assert chat_template(tmp_path) == ""
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": "configured"})
    assert chat_template(tmp_path) == "configured"
    write_json(tmp_path / "chat_template.json", {"chat_template": "json"})
    assert chat_template(tmp_path) == "json"
    (tmp_path / "chat_template.jinja").write_text("jinja")
    assert chat_template(tmp_path) == "jinja"


def test_a_template_for_tools_is_used_with_tools(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "{{ tools | length }} tools"}, {"name": "default", "template": "plain"}]
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": [*named, {"name": "rag", "template": "{"}]})
    source = chat_template(tmp_path)
    template = ChatTemplate(source, bos="", eos="", add_bos=False)
    assert template.render(()) == "plain"
    assert "1 tools" in template._template.render(messages=[], tools=[{}])
