"""Small tokenizers with the special tokens of a family, and templates in the form that the family publishes.

The templates are written for the tests: they format conversations like the published ones, and describe tools in fewer
words.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

GLM_TOKENS = ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>")
GLM_TEMPLATE = """[gMASK]<sop>
{%- if tools %}<|system|>
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call them so: <tool_call>NAME
<arg_key>KEY</arg_key>
<arg_value>VALUE</arg_value>
</tool_call>{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}<|observation|>
<tool_response>
{{ message.content }}
</tool_response>
{%- elif message.role == 'assistant' %}<|assistant|>
<think></think>
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ call.function.name }}
{% for key, value in call.function.arguments.items() %}<arg_key>{{ key }}</arg_key>
<arg_value>{{ value }}</arg_value>
{% endfor %}</tool_call>{% endfor %}
{%- else %}<|{{ message.role }}|>
{{ message.content }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{{ '\n<think></think>' if enable_thinking is false else '' }}{% endif %}"""

NEMOTRON_TOKENS: tuple[str, ...] = ()  # <|im_start|> and <|im_end|>, which every small tokenizer has
NEMOTRON_TEMPLATE = """{%- if messages[0].role == 'system' or tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
{%- if tools %}# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call them so:
<tool_call>
<function=NAME>
<parameter=KEY>
VALUE
</parameter>
</function>
</tool_call>{% endif %}<|im_end|>
{% endif %}
{%- for message in messages if message.role != 'system' %}
{%- if message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif message.role == 'assistant' %}<|im_start|>assistant
<think></think>{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
<function={{ call.function.name }}>
{% for key, value in call.function.arguments.items() %}<parameter={{ key }}>
{{ value }}
</parameter>
{% endfor %}</function>
</tool_call>
{% endfor %}<|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{{ '<think></think>' if enable_thinking is false else '<think>\n' }}{% endif %}"""


def give_words(folder: Path, tokens: Sequence[str], template: str, eos: str) -> None:
    """Renames some of the small tokenizer's reserved tokens, and writes the template."""
    path = folder / "tokenizer.json"
    said = path.read_text(encoding="utf-8")
    for number, token in enumerate(tokens):
        reserved = f'"<|reserved_{number}|>"'
        assert reserved in said
        said = said.replace(reserved, json.dumps(token))
    path.write_text(said, encoding="utf-8")
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings |= {"chat_template": template, "eos_token": eos}
    del settings["bos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
