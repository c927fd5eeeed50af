"""Parameters that an endpoint does not declare: of vLLM and llama.cpp, without effect here, and unknown ones.

A parameter of vLLM or llama.cpp that would change the answer is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from google.api import httpbody_pb2

from services.errors import Unsupported
from services.rest.openai import body
from services.rpc.call import Call
from services.text.api.openai_sampling import refuse_others

# Parameters that change no answer, whatever their value.
_LABELS = frozenset(
    (
        # OpenAI's, and Codex's
        *("user", "safety_identifier", "prompt_cache_retention", "prompt_cache_options", "client_metadata"),
        # vLLM's
        *("request_id", "priority", "guided_decoding_backend"),
        # llama.cpp's, and those that only tune a sampler that is off
        *("cache_prompt", "id_slot", "timings_per_token", "return_progress", "mirostat_tau", "mirostat_eta"),
        *("dynatemp_exponent", "xtc_threshold", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
        "dry_sequence_breakers",
    )
)
# Parameters that are refused, except with these values, which change nothing.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    # vLLM's
    "add_generation_prompt": (True,),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "guided_whitespace_pattern": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    # llama.cpp's
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "lora": ([],),
    "mirostat": (0,),
    "n_predict": (-1,),
    "n_probs": (0,),
    "post_sampling_probs": (False,),
    "thinking_forced_open": (False,),
    "top_n_sigma": (-1, 0),
    "typical_p": (1,),
    "xtc_probability": (0,),
}


def unknown_parameters(
    raw: httpbody_pb2.HttpBody,
    kind: type[msgspec.Struct],
    neutral: Mapping[str, tuple[Any, ...]] = MappingProxyType({}),
) -> list[str]:
    """Returns the names of a request's unknown parameters. The body is one that `kind` has been decoded from.

    `neutral`: more parameters that are refused, except with the values given.

    Raises:
        Unsupported: a known parameter cannot be honoured; the error names it.
    """
    found = body.undeclared(raw, kind)
    known = [(name, found.pop(name), values) for name, values in {**_NEUTRAL, **neutral}.items() if name in found]
    refuse_others((name, msgspec.json.decode(value), values) for name, value, values in known)
    return [name for name in found if name not in _LABELS]


def leave_out_tools(call: Call, tools: Mapping[int, str], *, refused: bool) -> None:
    """Names the tools that are left out in the response; `tools`: their types by index.

    Raises:
        Unsupported: there are any, and they are `refused`.
    """
    if tools and refused:
        at, kind = next(iter(tools.items()))
        message = f"'tools[{at}]': tools of type {kind!r} are not supported (ALLM_PLATFORM_TOOLS=refuse)."
        raise Unsupported(message, param=f"tools[{at}]")
    call.ignore(f"tools[{at}].{kind}" for at, kind in tools.items())
