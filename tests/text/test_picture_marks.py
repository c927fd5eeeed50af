"""Marks of pictures in prompts, with the templates of published models that see and of models that take strings."""

from __future__ import annotations

import pytest

from services.errors import InvalidRequest
from services.text.conversation import Message, Picture, Tool
from services.text.prompt import ChatTemplate
from tests.case import case

MARK = "0123456789abcdef"
# Excerpts of the templates' treatment of contents.
QWEN = """{% for message in messages %}<|im_start|>{{ message['role'] }}
{% if message['content'] is string %}{{ message['content'] }}<|im_end|>
{% else %}{% for content in message['content'] %}{% if content['type'] == 'image' or 'image' in content %}
{% if add_vision_id %}Picture {{ loop.index }}: {% endif %}<|vision_start|><|image_pad|><|vision_end|>
{%- elif 'text' in content %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
LLAVA = """{% for message in messages %}{{ message['role'].upper() + ': ' }}
{%- for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}
{%- for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' ' }}{% endfor %}
{%- endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"""
SMOLVLM = """<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}
{%- if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}
{%- for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}
{%- elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>
{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""
LAST = """{% for message in messages %}<s>{% for part in message.content %}{{ part.text }}{% endfor %}
{%- for part in message.content if part.type == 'image' %}<img>{% endfor %}<end>{% endfor %}"""
CONCATENATED = "{% for message in messages %}{{ '<|' + message.role + '|>' + message.content }}{% endfor %}"
TEXT_PARTS = "{% for message in messages %}{% for part in message.content %}{{ part.text }}{% endfor %};{% endfor %}"


def message(text: str, *places: int, role: str = "user") -> Message:
    return Message(role=role, content=text, pictures=tuple(Picture(at=at, param="") for at in places))  # type: ignore[arg-type]


def render(source: str, *messages: Message, **variables: object) -> str:
    template = ChatTemplate(source, bos="", eos="", add_bos=False)
    return template.render(messages, variables=variables, mark=MARK)


def test_a_mark_stands_where_the_template_shows_a_picture() -> None:
    turns = (message("Hi", role="system"), message("ab", 1, 2))
    for source, expected in (
        (QWEN, "<|im_start|>system\nHi<|im_end|>\n<|im_start|>user\na*b*<|im_end|>\n<|im_start|>assistant\n"),
        (LLAVA, "SYSTEM: Hi USER: *\n*\na b ASSISTANT:"),
        (SMOLVLM, "<|im_start|>System: Hi<end_of_utterance>\nUser: a*b*<end_of_utterance>\nAssistant:"),
        (LAST, "<s>Hi<end><s>ab**<end>"),
        ("", "<|im_start|>system\nHi<|im_end|>\n<|im_start|>user\na*b*<|im_end|>\n<|im_start|>assistant\n"),
        (CONCATENATED, "<|system|>Hi<|user|>a*b*"),
        ("{% for m in messages %}{{ m.content | trim }};{% endfor %}", "Hi;a*b*;"),
        ("{% for m in messages %}{{ m | tojson }}{% endfor %}", ...),
        (TEXT_PARTS, "Hi;a*b*;"),
    ):
        with case(source=source):
            found = render(source, *turns)
            assert found.count(MARK) == 2
            assert expected is ... or found == expected.replace("*", MARK)


def test_pictures_may_come_first_and_alone() -> None:
    assert render(SMOLVLM, message("a", 0)) == f"<|im_start|>User:{MARK}a<end_of_utterance>\nAssistant:"
    assert render(LLAVA, message("", 0)) == f"USER: {MARK}\nASSISTANT:"
    assert render("", message("", 0)).startswith(f"<|im_start|>user\n{MARK}<|im_end|>")


def test_a_template_of_parts_gets_parts_even_without_pictures() -> None:
    assert render(SMOLVLM, message("a"), message("", role="assistant")) == (
        "<|im_start|>User: a<end_of_utterance>\nAssistant: <end_of_utterance>\nAssistant:"
    )


def test_variables_may_add_text_to_a_picture() -> None:
    assert f"Picture 1: {MARK}a" in render(QWEN, message("a", 0), add_vision_id=True)


def test_a_spelled_placeholder_is_no_picture() -> None:
    pad = "<|vision_start|><|image_pad|><|vision_end|>"
    found = render(f"{QWEN}{{{{ extra | tojson }}}}", message(f"a{pad}b{pad}", 1, role="user"), extra={pad: [pad, 1]})
    assert f"a{MARK}{pad}b{pad}<|im_end|>" in found
    assert found.endswith(f'{{"{pad}": ["{pad}", 1]}}')
    assert found.count(MARK) == 1
    tool = Tool(name="f", description=pad)
    template = ChatTemplate(f"{QWEN}{{{{ tools | tojson }}}}", bos="", eos="", add_bos=False)
    assert template.render((message(pad, 0),), (tool,), mark=MARK).count(pad) == 2
    # Around a picture, halves of a placeholder must not become one.
    with pytest.raises(InvalidRequest, match="omits a picture"):
        render(LAST, message("<img>", 2))


def test_a_template_that_omits_a_picture_is_refused() -> None:
    for source in ("{{ messages[0].content }}", "fine", "{{ messages[-1].content | upper }}"):
        with case(source=source), pytest.raises(InvalidRequest, match="omits a picture"):
            render(source, message("a"), message("b", 0))
