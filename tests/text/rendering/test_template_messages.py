"""Conversations for templates that expect single calls: nothing is lost, and every result stays with its call."""

from __future__ import annotations

from services.text.conversation import Message, ToolCall
from services.text.prompt import ChatTemplate
from services.text.rendering.template_messages import one_call_each, with_one_system, with_thoughts_before_calls

USER = Message(role="user", content="hello")
FIRST, SECOND = (ToolCall(id=each, name=each, arguments="{}") for each in ("one", "two"))


def calling(*calls: ToolCall, content: str = "", reasoning: str = "") -> Message:
    return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=calls)


def result(call: ToolCall, content: str = "done") -> Message:
    return Message(role="tool", content=content, tool_call_id=call.id)


def test_calls_and_their_results_are_paired() -> None:
    history = (USER, calling(FIRST, SECOND, content="Look.", reasoning="Hm."), result(SECOND), result(FIRST), USER)
    assert one_call_each(history) == (
        USER,
        calling(FIRST, content="Look.", reasoning="Hm."),
        result(FIRST),
        calling(SECOND),
        result(SECOND),
        USER,
    )


def test_results_of_other_calls_stay() -> None:
    stray = Message(role="tool", content="of nobody", tool_call_id="x")
    assert one_call_each((calling(FIRST, SECOND), stray, result(FIRST))) == (
        calling(FIRST),
        result(FIRST),
        calling(SECOND),
        stray,
    )


def test_single_calls_and_other_messages_stay_as_they_are() -> None:
    history = (USER, calling(FIRST), result(FIRST), Message(role="assistant", content="Hi."), USER)
    assert one_call_each(history) == history
    assert one_call_each(()) == ()


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
