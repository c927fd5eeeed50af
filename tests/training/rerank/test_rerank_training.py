"""The training of the reranker: its pairs, its adapter, and a few steps that already learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.models.demo.conversion import adapt
from services.models.demo.copied_demo import RERANKER
from tests.late import late
from tests.minilm import minilm

adapter = late("training.rerank.adapter")
candidates = late("training.rerank.candidates")
evaluation = late("training.rerank.evaluation")
pairs = late("training.rerank.pairs")
torch = late("torch")
training = late("training.rerank.training")
transformers = late("transformers")

QUERIES = 60
MARGIN = 0.02


def test_a_docstring_becomes_a_query_and_its_passage() -> None:
    text = (
        "Return the mean of the given numbers.\n\n"
        + "It is computed in one pass. " * 4
        + "\n\nParameters\n------\nx: y"
    )
    (pair,) = pairs._split("code", "module", text)
    assert pair.query == "Return the mean of the given numbers"
    assert pair.passage == " ".join(["It is computed in one pass."] * 4)
    assert list(pairs._split("code", "module", "Too short.\n\nNothing.")) == []


def test_a_country_becomes_questions_about_its_fields(tmp_path: Path) -> None:
    (tmp_path / "data" / "europe").mkdir(parents=True)
    country = {
        "Government": {
            "Country name": {"conventional short form": {"text": "France"}},
            "Capital": {"name": {"text": "<b>Paris</b>, on the Seine"}},
        }
    }
    (tmp_path / "data" / "europe" / "fr.json").write_text(json.dumps(country))
    (pair,) = pairs.countries(tmp_path)
    assert pair.query in ("What is the capital of France?", "In which city does the government of France sit?")
    assert pair.passage == "France, capital, name: Paris , on the Seine"


def test_groups_are_held_out_as_a_whole() -> None:
    made = [pairs.Pair("code", f"module{at % 40}", str(at), str(at)) for at in range(400)]
    held = {pair.group for pair in made if pair.held_out}
    assert 0 < len(held) < 20
    assert not held & {pair.group for pair in made if not pair.held_out}


@pytest.mark.slow
def test_an_adapter_is_small_and_merges_to_the_same_scores(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = adapter.cross_encoder(minilm()).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.01)
    adapter.save_adapter(model, tmp_path / "adapter.safetensors")
    assert (tmp_path / "adapter.safetensors").stat().st_size < 4_000_000
    adapt(minilm(), tmp_path / "adapter.safetensors", tmp_path / "merged")
    merged = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "merged").eval()
    assert merged.config.num_labels == 1
    given: Any = training.PairTokens(minilm())(["where is rome"] * 2, ["rome is in italy", "cats purr"])
    with torch.inference_mode():
        assert merged(**given).logits == pytest.approx(model(**given).logits, abs=2e-2), "half precision"


def test_figures_of_a_ranking() -> None:
    figures = evaluation.Figures.of([0, 0, 1, 3])
    assert (figures.first, figures.reciprocal) == (0.5, (1 + 1 + 0.5 + 0.25) / 4)


@pytest.mark.slow
def test_the_demo_model_ranks_better_than_the_cosine_of_its_embedding_model(tmp_path: Path) -> None:
    """Docstrings of modules that it was not trained on, each among the nine most similar others."""
    folder = RERANKER.install(tmp_path, print)
    assert folder is not None
    held_out = pairs.unique(pairs.package_pairs("networkx", only_held_out=True))
    queries = candidates.rank(candidates.MiniLM(minilm()), held_out, 9)[:QUERIES]
    model = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
    ours = evaluation.Figures.of(evaluation.ranks(model, folder, queries))
    cosine = evaluation.Figures.of(evaluation.baseline(queries))
    assert len(queries) == QUERIES
    assert ours.first > cosine.first, (ours, cosine)
    assert ours.reciprocal > cosine.reciprocal + MARGIN, (ours, cosine)
