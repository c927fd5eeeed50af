"""gpt-oss's tokenizer, template and channels on the torch runtime, with random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from services.text.chat import grammar_of
from services.text.conversation import (
    CallArguments,
    CallStarted,
    ChatRequest,
    Message,
    OutputFormat,
    ParsedEvent,
    ReasoningDelta,
    TextDelta,
    Tool,
    ToolCall,
    ToolChoice,
)
from services.text.engine.sampling import SamplingParams
from services.text.parsers.dialect import HARMONY, choose
from services.text.parsers.tool_grammar import ToolShape
from services.text.prompt import ChatTemplate
from tests.late import late
from tests.text.checked_request import checked_request
from tests.text.families.published_words import (
    CALL,
    END,
    END_OF_TEXT,
    MESSAGE,
    RETURN,
    gpt_oss_template,
    published_tokenizer,
    spellings,
    write_gpt_oss,
)
from tests.text.families.torch_session import TorchSession, load

if TYPE_CHECKING:
    from services.text.engine.runtimes.torch.engine import SafetensorsEngine

transformers = late("transformers")

pytestmark = pytest.mark.slow  # with the published vocabulary, from npm

TOOL = Tool(
    name="get_weather",
    description="Tells the weather.",
    parameters={
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"enum": [1, 2]}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
    strict=True,
)
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"enum": ["yes", "no"]}},
    "required": ["answer"],
    "additionalProperties": False,
}
ASKED = (Message(role="developer", content="Be brief."), Message(role="user", content="What is the weather?"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gpt_oss(tmp_path_factory.mktemp("gpt-oss") / "words", packed=True)


@pytest.fixture(scope="module")
def engine(folder: Path) -> SafetensorsEngine:
    return load(folder, context_tokens=1024, kv_tokens=2048)


@pytest.fixture(scope="module")
def template(engine: SafetensorsEngine) -> ChatTemplate:
    ready = engine.ready
    return ChatTemplate(ready.chat_template, bos=ready.bos, eos=ready.eos, add_bos=ready.add_bos)


@pytest.fixture(scope="module")
def theirs() -> transformers.PreTrainedTokenizerBase:
    """Loads the tokenizer with transformers."""
    found: transformers.PreTrainedTokenizerBase = transformers.AutoTokenizer.from_pretrained(
        published_tokenizer("gptoss")
    )
    return found


def request(**changes: Any) -> ChatRequest:
    return ChatRequest(**({"model": "m", "messages": ASKED, "sampling": SamplingParams()} | changes))


def answer(engine: SafetensorsEngine, template: ChatTemplate, asked: ChatRequest, **params: Any) -> str:
    """Returns the text of an answer under the grammar that the service would build."""
    session = TorchSession(engine)
    prompt = template.render(asked.messages, asked.callable_tools, asked.reasoning_effort)
    session.ask_text(1, prompt, grammar_of(checked_request(asked), HARMONY, reasoning_open=False), **params)
    session.finish(1)
    return session.answers[1].text


def events(text: str) -> list[ParsedEvent]:
    reader = HARMONY.parser([ToolShape(TOOL.name, TOOL.parameters)], reasoning_open=False)
    return [*reader.push(text), *reader.finish()]


def bias(folder: Path, *words: str) -> tuple[tuple[int, float], ...]:
    return tuple((int(token), -100.0) for word in words for token in spellings(folder, word))


# --- tokens and template


def test_end_of_turn_tokens(engine: SafetensorsEngine) -> None:
    assert all(map(engine.is_end, (RETURN, CALL, END_OF_TEXT)))
    assert not engine.is_end(END), "a message ends with it, and another one follows"
    for mark in ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"):
        (token,) = engine.tokenize(mark)
        assert not engine.is_end(token)
        assert engine.piece(token, special=True) == mark.encode()
        assert engine.piece(token, special=False) == b""
    assert engine.piece(RETURN, special=True) == b""


def test_texts_are_tokenized_as_by_transformers(
    engine: SafetensorsEngine, template: ChatTemplate, theirs: transformers.PreTrainedTokenizerBase
) -> None:
    for text in (template.render(ASKED, (TOOL,)), "naïve 東京 🙂🎉 it's  12345.6789\n\n\tx", ""):
        ours = engine.tokenize(text)
        assert ours == theirs(text, add_special_tokens=False)["input_ids"]
        assert b"".join(engine.piece(token, special=True) for token in ours).decode() == text


def test_the_template_is_the_published_one(engine: SafetensorsEngine) -> None:
    assert engine.ready.chat_template == gpt_oss_template()
    assert choose(engine.ready.chat_template, "gpt_oss") is HARMONY
    assert choose("", "gpt_oss") is HARMONY


def test_a_history_with_calls_is_printed_as_by_transformers(
    template: ChatTemplate, theirs: transformers.PreTrainedTokenizerBase
) -> None:
    call = ToolCall(id="a", name=TOOL.name, arguments='{"city": "Paris", "days": 1}')
    history = (
        *ASKED,
        Message(role="assistant", content="", reasoning="I must look.", tool_calls=(call,)),
        Message(role="tool", content="sunny", tool_call_id="a"),
        Message(role="assistant", content="It is sunny.", reasoning="Forgotten later."),
        Message(role="user", content="And in Rome?"),
    )
    function = {"name": TOOL.name, "description": TOOL.description, "parameters": TOOL.parameters}
    expected = theirs.apply_chat_template(
        [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "What is the weather?"},
            {
                "role": "assistant",
                "thinking": "I must look.",
                "content": "",
                "tool_calls": [{"function": {"name": TOOL.name, "arguments": {"city": "Paris", "days": 1}}}],
            },
            {"role": "tool", "content": "sunny"},
            {"role": "assistant", "content": "It is sunny.", "thinking": "Forgotten later."},
            {"role": "user", "content": "And in Rome?"},
        ],
        tools=[{"type": "function", "function": function}],
        chat_template=gpt_oss_template(),
        tokenize=False,
        add_generation_prompt=True,
        reasoning_effort="high",
    )
    ours = template.render(history, (TOOL,), "high")
    # The date may change between the two renderings.
    assert [line for line in ours.splitlines() if "Current date" not in line] == [
        line for line in expected.splitlines() if "Current date" not in line
    ]
    assert "Forgotten later." not in ours


@pytest.mark.parametrize(
    ("effort", "level"), [("", "medium"), ("low", "low"), ("minimal", "low"), ("high", "high"), ("xhigh", "high")]
)
def test_the_effort_stands_in_the_prompt(template: ChatTemplate, effort: str, level: str) -> None:
    assert template.thinks
    assert f"Reasoning: {level}\n" in template.render(ASKED, (), effort)  # type: ignore[arg-type]


def test_nothing_of_a_conversation_is_left_out_or_refused(template: ChatTemplate) -> None:
    calls = tuple(ToolCall(id=each, name=each, arguments="{}") for each in ("first", "second"))
    history = (
        Message(role="system", content="ONE"),
        *ASKED,
        Message(role="assistant", content="TWO", reasoning="THREE", tool_calls=calls),
        Message(role="tool", content="for second", tool_call_id="second"),
        Message(role="tool", content="for first", tool_call_id="first"),
        Message(role="system", content="FOUR"),
    )
    text = template.render(history)
    assert all(word in text for word in ("ONE", "Be brief.", "TWO", "THREE", "FOUR"))
    assert '<|start|>functions.first to=assistant<|channel|>commentary<|message|>"for first"' in text
    assert '<|start|>functions.second to=assistant<|channel|>commentary<|message|>"for second"' in text
    assert text.index("for first") < text.index("functions.second")


# --- grammars with random weights


def test_a_schema_constrains_the_final_channel_only(
    engine: SafetensorsEngine, template: ChatTemplate, folder: Path
) -> None:
    asked = request(output=OutputFormat(kind="json_schema", schema=SCHEMA))
    text = answer(engine, template, asked, logit_bias=bias(folder, "analysis"))
    assert text.startswith("<|channel|>final<|message|>")
    (content,) = [event for event in events(text) if isinstance(event, TextDelta)]
    assert json.loads(content.text) in ({"answer": "yes"}, {"answer": "no"})


def test_a_thought_before_it_is_free(engine: SafetensorsEngine, template: ChatTemplate, folder: Path) -> None:
    asked = request(output=OutputFormat(kind="json_schema", schema=SCHEMA))
    text = answer(engine, template, asked, logit_bias=bias(folder, "final"), max_tokens=24)
    assert text.startswith("<|channel|>analysis<|message|>")
    assert {type(event) for event in events(text)} >= {ReasoningDelta}


def test_a_call_that_is_asked_for_comes_in_its_channel(
    engine: SafetensorsEngine, template: ChatTemplate, folder: Path
) -> None:
    asked = request(tools=(TOOL,), tool_choice=ToolChoice(mode="required"))
    text = answer(engine, template, asked, logit_bias=(*bias(folder, "analysis"), (MESSAGE, -100.0)))
    assert text.startswith("<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>")
    found = events(text)
    assert [event.name for event in found if isinstance(event, CallStarted)] == [TOOL.name]
    arguments = json.loads("".join(event.text for event in found if isinstance(event, CallArguments)))
    assert arguments["city"] in ("Paris", "Rome")
    assert arguments["days"] in (1, 2)
