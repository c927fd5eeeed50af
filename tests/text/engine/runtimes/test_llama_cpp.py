"""The llama_cpp runtime under the batch loop, on real weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from services.text.engine.kv_cells import BLOCK
from services.text.engine.runtime import TokenSpan
from services.text.engine.runtimes import llama_cpp_streams
from services.text.engine.runtimes.llama_cpp import LlamaEngine
from services.text.engine.sampling import SamplingParams
from services.worker.ggml_devices import ggml_devices
from services.worker.messages import Cancel, EngineError
from tests.demo_model import demo_model
from tests.text.engine.session import Session, options


def ask(engine: LlamaEngine, question: str, **params) -> str:
    return Session(engine).answer(question, **params)


CAPITAL = "What is the capital of France?"
GREEDY = SamplingParams(temperature=0)


def test_tokens_of_requests_side_by_side_interleave(engine: LlamaEngine) -> None:
    session = Session(engine)
    for request, country in enumerate(("France", "Italy", "Spain", "Germany")):
        session.ask(request, f"What is the capital of {country}?", max_tokens=4)
    session.finish(4)
    assert len(set(session.order[:8])) == 4


def test_without_a_seed_no_answer_is_repeated(engine: LlamaEngine) -> None:
    story = "Tell me a story about a fox."
    assert ask(engine, story, temperature=1.0) != ask(engine, story, temperature=1.0)


def test_a_seed_repeats_when_the_prefix_cache_is_warm(engine: LlamaEngine) -> None:
    session = Session(engine)
    story = "Tell me a long story about a fox and a raven that live in the same tree in the wood."
    for request in (1, 2, 3):
        session.ask(request, story, temperature=1.0, seed=5, max_tokens=8)
        session.finish(request)
    assert session.text[1] == session.text[2] == session.text[3]


def test_prefixes_are_reused_and_can_be_switched_off(engine: LlamaEngine) -> None:
    for cached, reused in ((1024, True), (0, False)):
        session = Session(engine, cached)
        question = "Here is a long text that two requests have in common. " * 8
        session.ask(1, question + "What is it?", max_tokens=1)
        session.finish(1)
        session.ask(2, question + "How long is it?", max_tokens=1)
        session.finish(2)
        assert (session.ended[2].cached_tokens > 80) == reused
        assert (session.counters.cached_cells > 0) == reused


def test_a_gpu_that_llama_cpp_does_not_have_is_refused() -> None:
    """It would otherwise compute on the processor without a word."""
    for device in ("cuda", "vulkan", "mps", ""):
        if any(found.kind == device or not device for found in ggml_devices()):
            continue  # this build has it
        with pytest.raises(EngineError, match=r"llama\.cpp cannot compute on") as refusal:
            LlamaEngine(options(demo_model(), gpu=True, device=device), lambda _: None)
        assert refusal.value.code == "UNSUPPORTED"


@pytest.fixture(scope="module")
def small() -> LlamaEngine:
    """An engine with 400 KV cells, which a few requests exhaust."""
    return LlamaEngine(options(demo_model(), context_tokens=256, kv_tokens=400), lambda _: None)


HISTORY = "Here is a long conversation that goes on for some time, and is asked about again and again. " * 5


def churn(session: Session, count: int, client: str = "a") -> None:
    """Sends `count` unrelated requests, each of which leaves its own prefix in the cache."""
    first = len(session.ended)
    for request in range(first, first + count):
        text = f"{request} is the number of this request, which has nothing to do with any other one of them."
        session.ask(request, text, client=client, max_tokens=1)
        if request % 8 == 7:
            session.finish(request + 1)
    session.finish(first + count)


def continued(session: Session, **params) -> int:
    """Returns how many prompt tokens a request of the session finds in the cache."""
    request = len(session.ended)
    session.ask(request, HISTORY + "What comes next?", max_tokens=1, **params)
    session.finish(request + 1)
    return session.ended[request].cached_tokens


@pytest.mark.slow
@pytest.mark.parametrize("begun", [{"cache_key": "session"}, {}])
def test_the_prefix_of_a_session_with_a_key_outlives_many_other_requests(engine: LlamaEngine, begun: dict) -> None:
    session = Session(engine, cached=512)
    continued(session, **begun)
    churn(session, 32)
    most = len(engine.tokenize(HISTORY)) - 32
    assert session.counters.cached_cells > 480, "the cache is full"
    assert (continued(session, cache_key="session") > most) is bool(begun)
    if begun:
        assert continued(session) > most, "the key says only what is kept"
        assert continued(session, cache_key="session", client="b") < most, "and not to whom"


def test_requests_that_need_the_cells_get_those_of_a_session(small: LlamaEngine) -> None:
    session = Session(small, cached=200)
    continued(session, cache_key="session")
    assert session.counters.cached_cells > 64
    first = len(session.ended)
    for request in (first, first + 1):  # together they need all but about 40 of the 400 cells
        session.ask(request, f"{request}" + " word" * 155, max_tokens=16, ignore_eos=True)
    session.finish(first + 2)
    assert not session.refused
    assert {session.ended[request].completion_tokens for request in (first, first + 1)} == {16}
    assert continued(session, cache_key="session") == 0


def test_cells_come_back_on_cancel(engine: LlamaEngine) -> None:
    session = Session(engine, cached=0)
    session.ask(1, CAPITAL, max_tokens=500, ignore_eos=True)
    session.loop.turn()
    assert session.counters.active_cells > 0
    session.inbox.put(Cancel(1))
    session.loop.turn()
    assert session.counters.active_cells == session.counters.running == 0


@pytest.mark.slow
def test_memory_pressure_on_real_weights(small: LlamaEngine) -> None:
    """Eight requests together need more than 400 cells; each still ends with all its tokens."""
    session = Session(small)
    for request in range(8):
        session.ask(request, f"Tell me story number {request}.", max_tokens=50, ignore_eos=True)
    session.finish(8)
    assert session.counters.preempted > 0
    assert {piece.completion_tokens for piece in session.ended.values()} == {50}


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(EngineError) as caught:
        LlamaEngine(options(path), lambda _: None)
    assert caught.value.code == "MODEL_INVALID"
    assert str(path) in caught.value.message


@pytest.fixture(scope="module")
def streams() -> Iterator[LlamaEngine]:
    """The stream layout of the cache: a whole context for each request."""
    loaded = LlamaEngine(options(demo_model(), context_tokens=512, kv_tokens=8 * 512), lambda _: None)
    assert not loaded.shares_cells
    yield loaded


@pytest.fixture(scope="module")
def unified() -> Iterator[LlamaEngine]:
    """The layout of a system that does not allow streams of more cells than there are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llama_cpp_streams, "supported", lambda: False)
        loaded = LlamaEngine(options(demo_model()), lambda _: None)
    assert loaded.shares_cells
    yield loaded


def resident() -> int:
    """Returns the memory of this process in MiB."""
    return psutil.Process().memory_info().rss // 2**20


def test_streams_take_memory_only_for_the_cells_in_use() -> None:
    before = resident()
    loaded = LlamaEngine(options(demo_model(), context_tokens=0, kv_tokens=8 * 8192), lambda _: None)
    assert (loaded.ready.context_tokens, loaded.ready.kv_tokens) == (8192, 8 * 8192)
    empty = resident()
    assert empty - before < 1000, "40 streams of 8,192 cells would take 7,200 MiB"
    tokens = loaded.tokenize("Two foxes talk about a raven. " * 120)
    for start in range(0, len(tokens), 512):
        loaded.step([TokenSpan(1, start, tokens[start : start + 512], None)])
    cells = len(tokens) * 30 * 2 * 3 * 64 * 2 // 2**20  # MiB: layers, keys and values, heads, numbers of a head, bytes
    filled = resident()
    loaded.copy(1, 2, len(tokens) // 2)
    copied = resident()
    assert 0.4 * cells < copied - filled < 0.7 * cells
    for sequence in (1, 2):
        loaded.drop(sequence)
    assert copied - resident() > 1.3 * cells
    loaded.step([TokenSpan(0, 0, tokens[:16], None)])
    assert resident() < filled, "llama.cpp does not copy the rest of the stream in the step after"


def test_a_copied_stream_continues_like_its_source(streams: LlamaEngine) -> None:
    """Also while the source is overwritten at once."""
    prompt = streams.tokenize("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")
    for sequence in range(4):
        streams.drop(sequence)
    streams.step([TokenSpan(0, 0, prompt[:-1], None)])
    streams.copy(0, 3, len(prompt) - 1)
    streams.drop(0)
    streams.step([TokenSpan(0, 0, prompt[::-1], None)])
    said, token = [], prompt[-1]
    for position in range(len(prompt) - 1, len(prompt) + 6):
        ((sampled,),) = streams.step([TokenSpan(3, position, [token], streams.sampler(GREEDY, [], None, None))])
        token = sampled.token
        said.append(streams.piece(token, special=False))
    assert b"".join(said) == b"The capital of France is Paris."


def test_sequences_with_gaps_between_them_answer_alike(streams: LlamaEngine) -> None:
    """Cached and empty sequences between those that run are not changed."""
    prompt = streams.tokenize("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")
    running = (0, 2, 5, 11)  # 1 is cached, 3 and 4 are empty, and 6 to 10 are too many
    for sequence in range(12):
        streams.drop(sequence)
    for sequence in (*running, 1):
        streams.step([TokenSpan(sequence, 0, prompt[:-1], None)])
    said = {sequence: [prompt[-1]] for sequence in running}

    def decode(sequences: Sequence[int]) -> None:
        spans = [
            TokenSpan(one, len(prompt) - 2 + len(said[one]), said[one][-1:], streams.sampler(params, [], None, None))
            for one, params in zip(sequences, (GREEDY, SamplingParams(top_k=1)) * 2, strict=False)
        ]
        for one, (sampled,) in zip(sequences, streams.step(spans), strict=True):
            said[one].append(sampled.token)

    for _ in range(8):
        decode(running)
    said[1] = [prompt[-1]]
    for _ in range(8):
        decode([1])
    for tokens in said.values():
        assert b"".join(streams.piece(token, False) for token in tokens[1:]) == b"The capital of France is Paris."


def test_a_unified_cache_answers_alike(unified: LlamaEngine) -> None:
    session = Session(unified)
    for request in range(8):
        session.ask(request, CAPITAL, client=str(request % 2))
    session.finish(8)
    assert set(session.text.values()) == {"The capital of France is Paris."}
    session.ask(9, HISTORY + CAPITAL, max_tokens=1)
    session.finish(9)
    session.ask(10, HISTORY + CAPITAL, max_tokens=1)
    session.finish(10)
    assert session.ended[10].cached_tokens > 64


def test_streams_answer_alike_and_side_by_side(streams: LlamaEngine) -> None:
    session = Session(streams, cached=4096)
    for request in range(8):
        session.ask(request, CAPITAL, client=str(request))
    session.finish(8)
    assert set(session.text.values()) == {"The capital of France is Paris."}
    assert session.counters.active_cells == 0


def test_streams_reuse_prefixes_by_going_on_and_by_copying(streams: LlamaEngine) -> None:
    session = Session(streams, cached=4096)
    question = "Here is a long text that several requests have in common. " * 14
    for request in range(3):
        session.ask(request, question + f"What is the capital of France? ({request})", max_tokens=8)
    session.finish(3)
    assert min(session.ended[request].cached_tokens for request in (1, 2)) > 128, "copied from the first"
    alone = session.text[0]
    session.ask(9, question + "What is the capital of France? (0)", max_tokens=8)
    session.finish(4)
    assert session.ended[9].cached_tokens > 128
    assert session.text[9].split()[:3] == alone.split()[:3]


def test_a_short_common_beginning_is_copied_to_the_token(streams: LlamaEngine) -> None:
    session = Session(streams, cached=4096)
    beginning = "You are an assistant who knows all about the countries of the world. "
    session.ask(0, beginning + "Here is a long text that no other request contains. " * 6, max_tokens=8)
    session.finish(1)
    for request, client in (1, "a"), (2, "another"):
        session.ask(request, beginning + "What is the capital of France?", max_tokens=8, client=client)
        session.finish(request + 1)
    cached = session.ended[1].cached_tokens
    assert BLOCK < cached < 2 * BLOCK, "not only whole blocks"
    assert session.ended[2].cached_tokens == 0
    assert session.text[1] == session.text[2]
