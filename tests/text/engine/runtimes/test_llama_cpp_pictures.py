"""Pictures on the llama_cpp runtime: a random encoder before the demo model."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from services.text.engine.__main__ import _prepare
from services.text.engine.messages import Pixels, Submit, TokenLogprob
from services.text.engine.runtime import PicturePart, TokenSpan
from services.text.engine.runtimes.llama_cpp import LlamaEngine
from services.text.engine.runtimes.llama_cpp_pictures import Tile
from services.text.engine.sampling import SamplingParams
from services.worker.messages import EngineError
from tests.demo_model import demo_model_f32, demo_safetensors
from tests.late import late
from tests.text.engine.prepared import prepared
from tests.text.engine.runtimes.random_projector import SIDE, TOKENS, RandomProjector
from tests.text.engine.session import Session, options
from tests.verification import random_gguf

torch = late("torch")
transformers = late("transformers")

GREEDY = SamplingParams(temperature=0)
WORDS = "The quick brown fox jumps over the lazy dog, and the dog sleeps on in the warm sun of the afternoon."
CLOSE = 0.02  # nats


def noise(seed: int, width: int = SIDE, height: int = SIDE) -> Pixels:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8).tobytes()
    return Pixels(width=width, height=height, pixels=pixels, param=f"picture {seed}")


@pytest.fixture(scope="module")
def projector() -> RandomProjector:
    return RandomProjector()


@pytest.fixture(scope="module")
def file(projector: RandomProjector, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return projector.write(tmp_path_factory.mktemp("projector") / "mmproj.gguf")


@pytest.fixture(scope="module")
def engine(file: Path) -> LlamaEngine:
    return LlamaEngine(options(demo_model_f32(), projector=str(file)), lambda _: None)


@pytest.fixture(scope="module")
def unified(file: Path) -> LlamaEngine:
    """With the layout of a GPU's cache, in which sequences share cells."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("services.text.engine.runtimes.llama_cpp.has_streams", lambda *_, **__: False)
        return LlamaEngine(options(demo_model_f32(), projector=str(file)), lambda _: None)


@pytest.fixture(scope="module")
def table() -> np.ndarray[Any, Any]:
    """The demo model's embeddings of its tokens [vocabulary, width]."""
    reader = gguf.GGUFReader(demo_model_f32())
    found = next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight")
    return np.array(found.data, np.float32)


def next_logprob(engine: LlamaEngine, spans: list[TokenSpan]) -> TokenLogprob:
    """Computes spans one after the other; returns the logprobs after the last one."""
    spans[-1].sampler = engine.sampler(GREEDY, [], None, 5)
    for span in spans:
        outcomes = engine.step([span])
    engine.drop(spans[0].sequence)
    return outcomes[0][0].logprob


def assert_close(found: TokenLogprob, expected: TokenLogprob) -> None:
    assert [piece for piece, _ in found.top[:2]] == [piece for piece, _ in expected.top[:2]]
    assert [value for _, value in found.top] == pytest.approx([value for _, value in expected.top], abs=CLOSE)


def test_pictures_are_encoded_as_transformers_does(engine: LlamaEngine, projector: RandomProjector) -> None:
    pixels = noise(1)
    tokens, [part] = engine.see(pixels)
    assert (tokens, part.count, part.whole) == ([tokens[0]] * TOKENS, TOKENS, False)
    assert tokens[0] < 0
    assert engine.see(noise(2))[0] != tokens
    engine.encode(part)
    expected = projector.embeddings(pixels.pixels)
    assert np.abs(part.embeddings - expected).max() < 1e-3 * np.abs(expected).max()


def test_the_class_embedding_comes_before_the_patches(tmp_path: Path) -> None:
    """LLaVA 1.5's. llama.cpp's source puts it after them; our builds correct that."""
    clip = RandomProjector("clip")
    path = clip.write(tmp_path / "mmproj.gguf")
    engine = LlamaEngine(options(demo_model_f32(), projector=str(path), max_sequences=1), lambda _: None)
    pixels = noise(1)
    _, [part] = engine.see(pixels)
    engine.encode(part)
    expected = clip.embeddings(pixels.pixels)
    assert np.abs(part.embeddings - expected).max() < 1e-3 * np.abs(expected).max()


def test_every_shape_of_picture_is_taken(engine: LlamaEngine) -> None:
    for width, height in ((1, 1), (1, 2000), (2000, 1), (500, 300)):
        tokens, [part] = engine.see(noise(1, width, height))
        engine.encode(part)
        assert len(tokens) == TOKENS
        assert np.isfinite(part.embeddings).all()


@pytest.mark.parametrize("layout", ["engine", "unified"])
def test_embeddings_are_computed_like_tokens(
    layout: str, table: np.ndarray[Any, Any], request: pytest.FixtureRequest
) -> None:
    """In one batch with tokens of other sequences, in pieces, and after a copy and a cut."""
    engine: LlamaEngine = request.getfixturevalue(layout)
    tokens = engine.tokenize(WORDS)
    expected = next_logprob(engine, [TokenSpan(0, 0, tokens, None)])
    part = PicturePart(3, 12, Tile(None, None, False, None), table[tokens[3:15]])

    def span(sequence: int, start: int, end: int, sampler: Any = None) -> TokenSpan:
        shown = part if part.start <= start < part.end else None
        found = part.embeddings[start - 3 : end - 3] if shown else None
        return TokenSpan(sequence, start, tokens[start:end], sampler, embeddings=found, part=shown)

    assert_close(next_logprob(engine, [span(0, 0, 3), span(0, 3, 15), span(0, 15, len(tokens))]), expected)
    engine.step([span(0, 0, 3), span(1, 0, 3), span(2, 0, 3)])
    engine.step([span(0, 3, 10), span(1, 3, 15)])
    assert engine.step([span(0, 10, 15), span(2, 3, 15)]) == [[], []]
    sampler = engine.sampler(GREEDY, [], None, 5)
    first, _ = engine.step([span(0, 15, len(tokens), sampler), span(2, 15, 16)])
    assert_close(first[0].logprob, expected)
    engine.copy(1, 3, 12)
    engine.drop(2, 5)
    found = engine.step([span(1, 15, len(tokens), sampler), span(2, 5, 15), span(3, 12, 15)])
    assert_close(found[0][0].logprob, expected)
    found = engine.step([span(2, 15, len(tokens), sampler), span(3, 15, len(tokens), sampler)])
    for outcomes in found:
        assert_close(outcomes[0].logprob, expected)
    for sequence in range(4):
        engine.drop(sequence)


@pytest.mark.slow
def test_attention_in_both_directions_is_transformers(engine: LlamaEngine, table: np.ndarray[Any, Any]) -> None:
    tokens = engine.tokenize(WORDS)
    part = PicturePart(3, 12, Tile(None, None, True, None), table[tokens[3:15]], whole=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(demo_safetensors(), dtype=torch.float32)
    mask = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
    mask[3:15, 3:15] = True
    with torch.inference_mode():
        logits = model(torch.tensor([tokens]), attention_mask=mask[None, None]).logits[0, -1]
        causal = model(torch.tensor([tokens])).logits[0, -1]
    spans = [
        TokenSpan(0, 0, tokens[:3], None),
        TokenSpan(0, 3, tokens[3:15], None, embeddings=part.embeddings, part=part),
        TokenSpan(0, 15, tokens[15:], None),
    ]
    found = next_logprob(engine, spans)
    values = [value for _, value in found.top]
    assert values == pytest.approx(logits.log_softmax(-1).topk(5).values.tolist(), abs=0.1)
    assert values != pytest.approx(causal.log_softmax(-1).topk(5).values.tolist(), abs=0.2)


def reference_logprobs(path: Path, embeddings: np.ndarray[Any, Any], places: list[list[int]]) -> list[float]:
    """Returns the five highest logprobs after embeddings [tokens, width] at places [3, tokens], by transformers."""
    tensors = {one.name: torch.tensor(np.array(one.data)) for one in gguf.GGUFReader(path).tensors}
    config = transformers.Qwen2VLTextConfig(
        vocab_size=len(tensors["token_embd.weight"]),
        hidden_size=random_gguf.WIDTH,
        intermediate_size=random_gguf.HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=random_gguf.HEADS,
        num_key_value_heads=random_gguf.KV_HEADS,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": list(random_gguf.AXES)},
    )
    model = transformers.models.qwen2_vl.modeling_qwen2_vl.Qwen2VLTextModel(config).eval()
    names = {"embed_tokens": "token_embd", "norm": "output_norm", "layers": "blk", "input_layernorm": "attn_norm"}
    names |= {"post_attention_layernorm": "ffn_norm", "self_attn.o_proj": "attn_output"}
    names |= {f"self_attn.{one}_proj": f"attn_{one}" for one in "qkv"}
    names |= {f"mlp.{one}_proj": f"ffn_{one}" for one in ("up", "gate", "down")}
    weights = {}
    for name in model.state_dict():
        theirs = re.sub(r"^([a-z_]+)|(?<=\d\.)([a-z_.]+)(?=\.)", lambda part: names[part[0]], name)
        weights[name] = tensors[theirs]
    model.load_state_dict(weights)
    with torch.inference_mode():
        inputs = torch.tensor(embeddings)[None]
        hidden = model(inputs_embeds=inputs, position_ids=torch.tensor(places)[:, None]).last_hidden_state[0, -1]
        values: list[float] = (tensors["output.weight"] @ hidden).log_softmax(-1).topk(5).values.tolist()
    return values


def test_rows_and_columns_are_transformers(tmp_path: Path) -> None:
    """M-RoPE, also after a copy and a cut behind a picture, and beside other sequences."""
    path = random_gguf.write_qwen2vl(tmp_path)
    engine = LlamaEngine(options(path, context_tokens=256, threads=1), lambda _: None)
    rng = np.random.default_rng(5)
    picture = rng.standard_normal((12, random_gguf.WIDTH)).astype(np.float32)
    grid = np.array([[0] * 12, [at // 4 for at in range(12)], [at % 4 for at in range(12)], [0] * 12], np.int32)
    parts = [
        PicturePart(start, 12, Tile(None, None, False, grid), picture * scale, whole=True, advance=4)
        for start, scale in ((3, 1.0), (20, 0.5))
    ]
    tokens = [*range(40, 43), *[-1] * 12, *range(50, 55), *[-2] * 12, *range(60, 70)]
    first = [0, 1, 2, *[3] * 12, *range(7, 12), *[12] * 12, *range(16, 26)]
    places = [list(first) for _ in range(3)]
    for part in parts:
        for axis in (1, 2):
            places[axis][part.start : part.end] = (first[part.start] + grid[axis]).tolist()
    words = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}["token_embd.weight"].data
    embeddings = np.array([words[max(token, 0)] for token in tokens], np.float32)
    for part in parts:
        embeddings[part.start : part.end] = part.embeddings
    expected = reference_logprobs(path, embeddings, places)
    assert expected != pytest.approx(reference_logprobs(path, embeddings, [first] * 3), abs=2 * CLOSE)
    sampler = engine.sampler(GREEDY, [], None, 5)

    def run(sequence: int, start: int, end: int) -> list[float]:
        """Computes a sequence's tokens span by span, beside one more token of sequence 7."""
        edges = [place for place in (0, 3, 15, 20, 32, len(tokens)) if start < place < end]
        for begin, stop in pairwise([start, *edges, end]):
            part = next((part for part in parts if part.start == begin), None)
            shift = 8 * sum(part.end <= begin for part in parts)
            found = sampler if stop == len(tokens) else None
            span = TokenSpan(sequence, begin, tokens[begin:stop], found, shift=shift, part=part)
            span.embeddings = part.embeddings if part else None
            other = TokenSpan(7, engine._end(7), [44], None)
            outcomes = engine.step([span, other])
        return [value for _, value in outcomes[0][0].logprob.top] if outcomes[0] else []

    assert run(0, 0, len(tokens)) == pytest.approx(expected, abs=CLOSE)
    engine.copy(0, 2, 34)
    assert run(2, 34, len(tokens)) == pytest.approx(expected, abs=CLOSE)
    engine.copy(0, 3, 17)
    assert run(3, 17, len(tokens)) == pytest.approx(expected, abs=CLOSE)
    engine.drop(2, 18)
    assert run(2, 18, len(tokens)) == pytest.approx(expected, abs=CLOSE)


def ask(session: Session, request: int, prompt: str, *pictures: Pixels, client: str = "a") -> None:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    submit = Submit(request, client, prompt, params, pictures=pictures, mark="<mark>")
    session.inbox.put(prepared(_prepare(session.engine, submit, lambda _: None)))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["engine", "unified"])
def test_pictures_side_by_side_give_the_answers_that_each_gives_alone(
    layout: str, request: pytest.FixtureRequest
) -> None:
    engine: LlamaEngine = request.getfixturevalue(layout)
    prompts = [f"<|im_start|>user\n<mark>What is in picture {n}?<mark><|im_end|>\n" for n in range(6)]
    alone = []
    for number, prompt in enumerate(prompts):
        session = Session(engine)
        ask(session, 1, prompt, noise(number), noise(number % 2))
        session.finish(1)
        alone.append(session.text[1])
    assert len(set(alone)) > 3
    session = Session(engine)
    for number, prompt in enumerate(prompts):
        ask(session, number, prompt, noise(number), noise(number % 2), client="ab"[number % 2])
    session.finish(6)
    for number, prompt in enumerate(prompts):
        assert session.text[number] == alone[number]
        ask(session, 10 + number, prompt, noise(number), noise(number % 2), client="ab"[number % 2])
    session.finish(12)
    for number in range(6):
        assert session.text[10 + number] == alone[number]
        assert session.ended[10 + number].cached_tokens > TOKENS


def test_pictures_with_rows_and_columns_under_the_batch_loop(tmp_path: Path) -> None:
    """Of Qwen2-VL: answers are those that each request gets alone, also with prefixes that hold pictures."""
    path, mmproj = random_gguf.write_qwen2vl(tmp_path), random_gguf.write_qwen2vl_projector(tmp_path)
    engine = LlamaEngine(options(path, context_tokens=512, threads=1, projector=str(mmproj)), lambda _: None)
    begin, end = engine.tokenize("<|vision_start|>"), engine.tokenize("<|vision_end|>")
    tokens, [part] = engine.see(noise(1, 168, 112))
    assert (len(tokens), part.start, part.count) == (len(begin) + 24 + len(end), len(begin), 24)
    assert (part.whole, part.advance) == (True, 6)
    sizes = [(168, 112), (112, 112), (84, 196)]
    prompts = [f"{'words ' * number}<mark>and<mark>what is it? {number}" for number in range(6)]

    def asked(session: Session, request: int, number: int) -> None:
        pictures = (noise(number, *sizes[number % 3]), noise(number + 9, *sizes[number % 2]))
        ask(session, request, prompts[number], *pictures, client="ab"[number % 2])

    alone = []
    for number in range(6):
        session = Session(engine)
        asked(session, 1, number)
        session.finish(1)
        alone.append(session.text[1])
    assert len(set(alone)) > 3
    session = Session(engine)
    for turn in range(2):
        for number in range(6):
            asked(session, 10 * turn + number, number)
        session.finish(6 * (turn + 1))
        assert [session.text[10 * turn + number] for number in range(6)] == alone
    assert all(session.ended[10 + number].cached_tokens > 16 for number in range(6))


def test_projectors_that_do_not_fit_are_refused_by_name(file: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(file.read_bytes()[:5000])
    for path in (broken, demo_model_f32(), tmp_path / "missing.gguf"):
        with pytest.raises(EngineError, match=rf"cannot use the projector {path}") as refusal:
            LlamaEngine(options(demo_model_f32(), projector=str(path)), lambda _: None)
        assert refusal.value.code == "MODEL_INVALID"
