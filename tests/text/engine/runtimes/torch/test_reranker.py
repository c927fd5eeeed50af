"""The torch runtime for rerankers: every architecture against transformers' own scores, and Qwen3-Reranker's form."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.models.runtimes import RUNTIMES
from services.worker.messages import EngineError
from tests.case import case
from tests.late import late
from tests.minilm import minilm
from tests.text.engine.tiny_encoders import PLACES, options, write_model

torch = late("torch")
torch_reranker = late("services.text.engine.runtimes.torch.reranker")
transformers = late("transformers")

(RERANKS,) = [runtime.architectures["rerank"] for runtime in RUNTIMES if runtime.name == "torch"]
QUERY = "hello world"
DOCUMENTS = ["abc", "the quick brown fox", "a", "ba ba CC"]
QWEN_TEMPLATE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
    'answer can only be "yes" or "no".'
)


def loaded(folder: Path, **changes: Any) -> Any:
    return torch_reranker.TorchReranker(options(folder, **changes), lambda _: None)


def scores(reranker: Any, query: str, documents: list[str]) -> np.ndarray:
    return reranker.encode([reranker.pair(query, document, 0) for document in documents])[:, 0]


def write_reranker(folder: Path, architecture: str, **changes: Any) -> Any:
    """Writes a random cross-encoder of one label; returns transformers' model and tokenizer."""
    write_model(folder, architecture, **{"num_labels": 1, "initializer_range": 0.5, **changes})
    config = transformers.AutoConfig.from_pretrained(folder)
    torch.manual_seed(2)
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    spread(model, tokenizer)
    model.save_pretrained(folder)
    return model, tokenizer


def spread(model: Any, tokenizer: Any) -> None:
    """Scales a random head, whose scores would all be alike, to logits of mean 0 and deviation 1."""
    weight, bias = list(model.parameters())[-2:]
    with torch.no_grad():
        logits = model(**tokenizer([QUERY] * len(DOCUMENTS), DOCUMENTS, padding=True, return_tensors="pt")).logits
        scale = 1 / logits[:, 0].std()
        weight.mul_(scale)
        bias.sub_(logits.mean(0)).mul_(scale)


def write_decoder(folder: Path, *, classifies: bool = False, **config: Any) -> Any:
    """Writes a random Qwen3 that answers yes or no, or the same converted to a classifier; returns the model."""
    write_model(folder, "qwen3", decoder=True, vocab_size=64, max_position_embeddings=2048)
    given = transformers.AutoConfig.from_pretrained(folder)
    given.num_labels = 1
    torch.manual_seed(3)
    kind = transformers.Qwen3ForSequenceClassification if classifies else transformers.Qwen3ForCausalLM
    model = kind(given).eval()
    model.save_pretrained(folder)
    if config:  # written as it is: transformers would leave out what it does not know
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return model


def refusal(folder: Path) -> EngineError:
    with pytest.raises(EngineError) as caught:
        loaded(folder)
    return caught.value


def test_scores_of_every_encoder_are_those_of_transformers(tmp_path_factory: pytest.TempPathFactory) -> None:
    for architecture in sorted(RERANKS - {"qwen3"}):
        with case(architecture=architecture):
            folder = tmp_path_factory.mktemp("model")
            model, tokenizer = write_reranker(folder, architecture)
            reranker = loaded(folder)
            assert (reranker.ready.dimensions, reranker.normalised) == (1, False)
            assert PLACES - 2 <= reranker.ready.context_tokens <= PLACES
            with torch.inference_mode():
                given = tokenizer([QUERY] * len(DOCUMENTS), DOCUMENTS, padding=True, return_tensors="pt")
                expected = torch.sigmoid(model(**given).logits[:, 0]).numpy()
            ours = scores(reranker, QUERY, DOCUMENTS)
            assert np.ptp(ours) > 1e-4, "documents differ"
            assert ours == pytest.approx(expected, abs=1e-4)
            alone = [scores(reranker, QUERY, [document])[0] for document in DOCUMENTS]
            assert ours == pytest.approx(np.array(alone), abs=1e-4)


def test_segments_tell_query_from_document(tmp_path: Path) -> None:
    """With the real tokenizer of BERT: the same ids and segments as transformers', also with special tokens as text."""
    shutil.copytree(minilm(), tmp_path, dirs_exist_ok=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = transformers.AutoConfig.from_pretrained(tmp_path, num_labels=1, **small)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    reranker = loaded(tmp_path)
    for query, document in [("who is he", "He is nobody."), ("a [SEP] b", "c [SEP] d"), ("größe", "北京 x" * 5)]:
        expected = tokenizer(query, document, truncation=False)
        pair = reranker.pair(query, document, 0)
        assert pair[:, 0].tolist() == expected["input_ids"]
        assert pair[:, 1].tolist() == expected["token_type_ids"]


def test_documents_are_cut_only_if_asked(tmp_path: Path) -> None:
    write_reranker(tmp_path, "bert")
    reranker = loaded(tmp_path)
    whole = reranker.pair("ab", "abcdef", 0)
    assert len(whole) == 3 + 2 + 6
    assert reranker.pair("ab", "abcdef", 3).tolist() == reranker.pair("ab", "abc", 0).tolist()
    assert reranker.pair("ab", "abcdef", 60).tolist() == whole.tolist()


def test_qwen_answers_yes_or_no_as_its_card_computes(tmp_path: Path) -> None:
    """The probability of yes, by softmax over the logits of no and yes after the prompt."""
    model = write_decoder(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(QWEN_TEMPLATE)
    (tmp_path / "1_LogitScore").mkdir()
    (tmp_path / "1_LogitScore" / "config.json").write_text(json.dumps({"true_token_id": 9, "false_token_id": 17}))
    kinds = {"": "transformer.Transformer", "1_LogitScore": "cross_encoder.modules.logit_score.LogitScore"}
    modules = [{"path": path, "type": f"sentence_transformers.{kind}"} for path, kind in kinds.items()]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    reranker = loaded(tmp_path)
    pairs = [reranker.pair(QUERY, document, 0) for document in DOCUMENTS]
    text = f"<Query>: {QUERY}\n<Document>: {DOCUMENTS[0]}<|im_end|>"
    letters = reranker._plain(text)
    assert letters[:-10] == pairs[0][:, 0].tolist()[-len(letters) - len(reranker._frame[1]) + 10 :][: len(letters) - 10]
    with torch.inference_mode():
        expected = []
        for pair in pairs:
            logits = model(torch.from_numpy(pair[None, :, 0]).long()).logits[0, -1]
            expected.append(float(torch.softmax(logits[[17, 9]], 0)[1]))
    assert reranker.encode(pairs)[:, 0] == pytest.approx(np.array(expected), abs=1e-5)


def test_qwen_as_a_classifier_gives_the_sigmoid_of_its_label(tmp_path: Path) -> None:
    model = write_decoder(tmp_path, classifies=True, is_original_qwen3_reranker=True)
    reranker = loaded(tmp_path)
    pairs = [reranker.pair(QUERY, document, 0) for document in DOCUMENTS]
    with torch.inference_mode():
        ids = [torch.from_numpy(pair[None, :, 0]).long() for pair in pairs]
        expected = [float(torch.sigmoid(model.score(model.model(each).last_hidden_state[0, -1]))) for each in ids]
    assert reranker.encode(pairs)[:, 0] == pytest.approx(np.array(expected), abs=1e-5)


def test_what_cannot_rerank_is_refused_by_its_reason(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("labels")
    write_reranker(folder, "bert", num_labels=3)
    found = refusal(folder)
    assert (found.code, "3 labels" in found.message) == ("UNSUPPORTED", True)
    folder = tmp_path_factory.mktemp("prompt")
    write_decoder(folder)
    found = refusal(folder)
    assert (found.code, "prompt" in found.message) == ("UNSUPPORTED", True)
    folder = tmp_path_factory.mktemp("words")
    write_decoder(folder, is_original_qwen3_reranker=True)
    found = refusal(folder)
    assert found.code == "MODEL_INVALID", "its tokenizer has neither word"
