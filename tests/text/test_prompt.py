"""Chat templates: output, sandbox and errors."""

from __future__ import annotations

import datetime

import pytest

from services.errors import InvalidRequest, ModelInvalid
from services.models.formats.gguf_header import read_header
from services.text.conversation import Message, ToolCall
from services.text.prompt import (
    DEFAULT_TEMPLATE,
    ChatTemplate,
    one_call_each,
    with_one_system,
    with_thoughts_before_calls,
)
from tests.case import case
from tests.demo_model import demo_model

HELLO = (Message(role="user", content="hello"),)


def template(source: str = "", *, bos: str = "<s>", eos: str = "</s>", add_bos: bool = False) -> ChatTemplate:
    return ChatTemplate(source, bos=bos, eos=eos, add_bos=add_bos)


def render(source: str, messages: tuple[Message, ...] = HELLO, **options) -> str:
    return template(source, **options).render(messages)


def refusal(source: str, messages: tuple[Message, ...] = HELLO) -> InvalidRequest:
    compiled = template(source)
    with pytest.raises(InvalidRequest) as caught:
        compiled.render(messages)
    assert caught.value.param == "messages"
    return caught.value


# --- output


def test_a_model_without_a_template_gets_chatml() -> None:
    conversation = (Message(role="system", content="Be kind."), *HELLO, Message(role="assistant", content="Hi!"))
    assert render("", conversation) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n"
        "<|im_start|>user\nhello<|im_end|>\n"
        "<|im_start|>assistant\nHi!<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert render(DEFAULT_TEMPLATE, conversation) == render("", conversation)


def test_the_demo_models_own_template() -> None:
    source = read_header(demo_model()).metadata["tokenizer.chat_template"]
    assert render(source, bos="<|im_start|>", eos="<|im_end|>") == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhello<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    own = (Message(role="system", content="Be kind."), *HELLO)
    assert render(source, own, bos="<|im_start|>").startswith("<|im_start|>system\nBe kind.<|im_end|>\n")


# Like Llama 2 and Mistral: roles must alternate, and the template writes the first token itself.
ALTERNATING = """{{ bos_token }}{% for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + message['content'].strip() + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}"""


def test_a_template_in_the_manner_of_llama_2() -> None:
    conversation = (Message(role="user", content=" a "), Message(role="assistant", content="b"), *HELLO)
    assert render(ALTERNATING, conversation) == "<s>[INST] a [/INST] b</s>[INST] hello [/INST]"


def test_a_template_refuses_a_conversation_in_its_own_words() -> None:
    error = refusal(ALTERNATING, HELLO * 2)
    assert error.message == (
        "the model's chat template refuses the conversation: "
        "Conversation roles must alternate user/assistant/user/assistant/..."
    )


def test_a_bos_that_the_tokenizer_puts_in_front_is_not_there_twice() -> None:
    assert render(ALTERNATING, add_bos=True) == "[INST] hello [/INST]"
    assert render(ALTERNATING, add_bos=False) == "<s>[INST] hello [/INST]"
    assert render("{{ bos_token }}{{ bos_token }}", add_bos=True) == "<s>", "only its own is taken away"
    assert render("x{{ bos_token }}", add_bos=True) == "x<s>"
    assert render("{{ messages[0].content }}", bos="", add_bos=True) == "hello"


# Like Qwen and Hermes: calls are written as JSON, results have a separate role.
CALLING = """{% for message in messages %}
{% if message.tool_calls %}
{% for call in message.tool_calls %}
<call id={{ call.id }} type={{ call.type }}>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
{% endfor %}
{% elif message.role == 'tool' %}
<result of={{ message.tool_call_id }}>{{ message.content }}
{% else %}
{{ message.role }}{% if message.name is defined %}({{ message.name }}){% endif %}: {{ message.content }}
{% endif %}
{% endfor %}"""  # noqa: E501


def test_tool_calls_are_shown_with_their_arguments_as_an_object() -> None:
    call = ToolCall(id="c1", name="weather", arguments='{"city": "Zürich", "days": [1, 2]}')
    conversation = (
        Message(role="user", content="Rain?", name="ann"),
        Message(role="assistant", content="", tool_calls=(call,)),
        Message(role="tool", content="no", tool_call_id="c1"),
    )
    assert render(CALLING, conversation).splitlines() == [
        "user(ann): Rain?",
        '<call id=c1 type=function>{"name": "weather", "arguments": {"city": "Zürich", "days": [1, 2]}}',
        "<result of=c1>no",
    ]


def test_arguments_that_are_no_object_stay_text() -> None:
    for arguments in ["", "not JSON", '{"cut off', "5", "[1]", '"text"', "null", "9" * 5000]:
        with case(arguments=arguments):
            call = ToolCall(id="c", name="f", arguments=arguments)
            source = "{% set a = messages[0].tool_calls[0].function.arguments %}{{ a is string }} {{ a }}"
            assert render(source, (Message(role="assistant", content="", tool_calls=(call,)),)) == f"True {arguments}"


def test_deeply_nested_arguments_are_refused() -> None:
    call = ToolCall(id="c", name="f", arguments="[" * 100_000)
    refusal("x", (Message(role="assistant", content="", tool_calls=(call,)),))


def test_developers_are_system_to_templates() -> None:
    assert render("{{ messages[0].role }}", (Message(role="developer", content=""),)) == "system"


def test_fields_that_a_message_does_not_have_are_undefined() -> None:
    source = "{% for key in messages[0] %}{{ key }} {% endfor %}{{ messages[0].tool_calls is defined }}"
    assert render(source) == "role content False"


def test_template_functions_of_transformers_are_available() -> None:
    assert render("{{ {'b': 'é<', 'a': none} | tojson }}") == '{"b": "é<", "a": null}'
    assert render("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"
    assert render("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}") == '{"a":2,"b":1}'
    assert (
        render(
            "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}"
            "{{ i }}{% endfor %}"
        )
        == "013"
    )
    assert render("a{% generation %}{{ messages[0].content }}{% endgeneration %}b") == "ahellob"
    assert render("{{ strftime_now('%Y') }}") in {str(datetime.date.today().year + more) for more in (-1, 0, 1)}
    assert (
        render("{{ add_generation_prompt }} {{ tools is none }} {{ bos_token }} {{ eos_token }}")
        == "True True <s> </s>"
    )
    assert (
        render("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}")
        == "1"
    )
    assert (
        render("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m(1) }}{{ messages[-1]['content'] | trim | upper }}")
        == "[1]HELLO"
    )


def test_blocks_leave_no_empty_lines_as_transformers_renders_them() -> None:
    assert render("a\n  {% if true %}\nb\n  {% endif %}\nc") == "a\nb\nc"


def test_text_is_not_escaped_for_html_and_is_no_template_itself() -> None:
    conversation = (Message(role="user", content="<b>&{{ 7 * 7 }}{% if %}</b>"),)
    assert render("{{ messages[0].content }}", conversation) == "<b>&{{ 7 * 7 }}{% if %}</b>"


def test_a_compiled_template_keeps_nothing_between_conversations() -> None:
    compiled = template("{% set seen = seen is defined %}{{ seen }}{{ messages | length }}")
    assert [compiled.render(HELLO * count) for count in (1, 2, 1)] == ["False1", "False2", "False1"]


# --- sandbox


def test_the_sandbox_gives_no_way_out() -> None:
    """The sandbox refuses each expression or prints nothing for it, so no internals come out."""
    for source in [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['datetime'] }}",
        "{{ ''['__class__'] }}",
        "{{ '' | attr('__class__') }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ self.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ messages.clear() }}",
        "{{ open('/etc/passwd') }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os }}",
        "{% extends 'x' %}",
    ]:
        with case(source=source):
            try:
                text = render(source)
            except InvalidRequest as error:
                assert "chat template fails on this conversation" in error.message
            else:
                assert text.strip() == ""


@pytest.mark.parametrize("count", ["100001", "10**18", "-1, 10**18"])
def test_a_loop_cannot_go_on_forever(count: str) -> None:
    assert "Range too big" in refusal("{% for i in range(COUNT) %}x{% endfor %}".replace("COUNT", count)).message


def test_a_template_that_calls_itself_forever_is_refused() -> None:
    refusal("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}")


# --- errors


def test_a_template_that_does_not_compile_is_a_fault_of_the_model() -> None:
    for source in [
        "{% if %}",
        "{{ messages",
        "{% for m in messages %}",
        "{% unknown_tag %}",
        "{{ messages | unknown_filter }}",
        "{% generation %}never ended",
        "{% for a in messages %}" * 30 + "{% endfor %}" * 30,
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    ]:
        with case(source=source), pytest.raises(ModelInvalid, match="chat template does not compile"):
            template(source)


@pytest.mark.parametrize(
    "source",
    ["{{ 1 / 0 }}", "{{ messages[0].nothing.more }}", "{{ messages[0].content + 1 }}", "{{ undefined_function() }}"],
)
def test_a_template_that_fails_says_so_and_names_the_messages(source: str) -> None:
    assert refusal(source).message.startswith("the model's chat template fails on this conversation: ")


USER = Message(role="user", content="hello")
FIRST, SECOND = (ToolCall(id=each, name=each, arguments="{}") for each in ("one", "two"))


def calling(*calls: ToolCall, content: str = "", reasoning: str = "") -> Message:
    return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=calls)


def result(call: ToolCall, content: str = "done") -> Message:
    return Message(role="tool", content=content, tool_call_id=call.id)


def test_calls_and_their_results_are_paired() -> None:
    history = (USER, calling(FIRST, SECOND, content="Look.", reasoning="Hm."), result(SECOND), result(FIRST), USER)
    assert tuple(one_call_each(history)) == (
        USER,
        calling(FIRST, content="Look.", reasoning="Hm."),
        result(FIRST),
        calling(SECOND),
        result(SECOND),
        USER,
    )


def test_results_of_other_calls_stay() -> None:
    stray = Message(role="tool", content="of nobody", tool_call_id="x")
    assert tuple(one_call_each((calling(FIRST, SECOND), stray, result(FIRST)))) == (
        calling(FIRST),
        result(FIRST),
        calling(SECOND),
        stray,
    )


def test_single_calls_and_other_messages_stay_as_they_are() -> None:
    history = (USER, calling(FIRST), result(FIRST), Message(role="assistant", content="Hi."), USER)
    assert tuple(one_call_each(history)) == history
    assert tuple(one_call_each(())) == ()


def test_all_systems_speak_first_and_together() -> None:
    system, developer = Message(role="system", content="A"), Message(role="developer", content="B")
    assert with_one_system((system, USER, developer, USER)) == (Message(role="system", content="A\n\nB"), USER, USER)
    assert with_one_system((USER, developer)) == (developer, USER)
    assert with_one_system((USER,)) == (USER,)


def test_words_before_a_call_join_the_thought() -> None:
    both, said = calling(FIRST, content="Look.", reasoning="Hm."), calling(FIRST, content="Look.")
    plain = Message(role="assistant", content="Hi.", reasoning="Hm.")
    assert with_thoughts_before_calls((both, said, plain)) == (
        calling(FIRST, reasoning="Hm.\n\nLook."),
        said,
        plain,
    )


def test_only_templates_that_need_it_get_it() -> None:
    history = (USER, calling(FIRST, SECOND), result(FIRST), result(SECOND), Message(role="system", content="A"))
    roles = "{% for message in messages %}{{ message.role }}{{ message.tool_calls | length }} {% endfor %}"
    plain = ChatTemplate(roles, bos="", eos="", add_bos=False)
    assert plain.render(history) == "user0 assistant2 tool0 tool0 system0 "
    single = ChatTemplate(roles + "{# tool_calls[0] #}", bos="", eos="", add_bos=False)
    assert single.render(history) == "user0 assistant1 tool0 assistant1 tool0 system0 "
    harmony = ChatTemplate(roles + "{# tool_calls[0] <|channel|><|message|> #}", bos="", eos="", add_bos=False)
    assert harmony.render(history) == "system0 user0 assistant1 tool0 assistant1 tool0 "
