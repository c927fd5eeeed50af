"""The exceptions to the tests of OpenAI's SDK (suite_rules.py)."""

from __future__ import annotations

from suite_rules import Asked, Need, Refusal, Rules

CHAT = "chat/test_completions.py"
MESSAGES = "chat/completions/test_messages.py"
RESPONSES = "test_responses.py"
_FILES = (
    "test_models.py",
    "test_embeddings.py",
    "test_completions.py",
    CHAT,
    MESSAGES,
    RESPONSES,
    "responses/test_input_items.py",
    "responses/test_input_tokens.py",
    "test_conversations.py",
    "conversations/test_items.py",
)

_STORED_CHAT = "stored chat completions: a feature of OpenAI's platform; Responses are what is kept here"
_LEFT_OUT = {
    (CHAT, "retrieve"): _STORED_CHAT,
    (CHAT, "update"): _STORED_CHAT,
    (CHAT, "list"): _STORED_CHAT,
    (CHAT, "delete"): _STORED_CHAT,
    (MESSAGES, "list"): _STORED_CHAT,
    (RESPONSES, "compact"): "compaction: the platform's encrypted form of a conversation",
}

RESPOND, CONVERSE, COMPLETE = "POST /responses", "POST /chat/completions", "POST /completions"
COUNT, RETRIEVE, ITEMS = "POST /responses/input_tokens", "GET /responses/{id}", "GET /responses/{id}/input_items"
EMBED, TALKED = "POST /embeddings", "GET /conversations/{id}/items"
TOKENS = 4  # limit of an answer that the suite leaves open

_PLATFORM = "only OpenAI's platform has it"
_BEFORE = "the suite gives it together with `previous_response_id`, which OpenAI refuses as well"
_VERBOSITY = "the models here know of no verbosity"
_STREAM_ONLY = "the suite gives it without a stream, which OpenAI refuses as well"


def _whole(asked: Asked) -> bool:
    return not asked.get("stream")


_REFUSED = (
    Refusal(CONVERSE, "audio", "text models speak in text"),
    Refusal(CONVERSE, "functions", "the suite gives their successor `tools` besides"),
    Refusal(CONVERSE, "logit_bias", "the suite's key is no token id"),
    Refusal(CONVERSE, "max_tokens", "the suite gives `max_completion_tokens` besides, which says the same"),
    Refusal(CONVERSE, "max_completion_tokens", "the suite asks for no tokens at all", instead=TOKENS),
    Refusal(CONVERSE, "moderation", _PLATFORM),
    Refusal(CONVERSE, "store", _STORED_CHAT),
    Refusal(CONVERSE, "stream_options", _STREAM_ONLY, when=_whole),
    Refusal(CONVERSE, "verbosity", _VERBOSITY),
    Refusal(CONVERSE, "web_search_options", _PLATFORM),
    Refusal(COMPLETE, "best_of", "the suite asks for the best of none"),
    Refusal(COMPLETE, "echo", "together with `logprobs`: those of a prompt are not computed"),
    Refusal(COMPLETE, "logit_bias", "the suite's key is no token id"),
    Refusal(COMPLETE, "stream_options", _STREAM_ONLY, when=_whole),
    Refusal(COMPLETE, "suffix", "the suite's model has no fill-in-the-middle tokens"),
    Refusal(RESPOND, "access_programs", _PLATFORM),
    Refusal(RESPOND, "background_options", _PLATFORM),
    Refusal(RESPOND, "context_management", _PLATFORM),
    Refusal(RESPOND, "conversation", _BEFORE),
    Refusal(RESPOND, "moderation", _PLATFORM),
    Refusal(RESPOND, "prompt", _PLATFORM),
    Refusal(RESPOND, "prompt_cache_options.comparison_response_id", _PLATFORM),
    Refusal(RESPOND, "prompt_cache_options.prewarm", "every request is answered"),
    Refusal(RESPOND, "stream_options", _STREAM_ONLY, when=_whole),
    Refusal(RESPOND, "text.verbosity", _VERBOSITY),
    Refusal(RESPOND, "tools[0].async", _PLATFORM),
    Refusal(RESPOND, "tools[0].defer_loading", _PLATFORM),
    Refusal(COUNT, "conversation", _BEFORE),
    Refusal(COUNT, "personality", _PLATFORM),
    Refusal(COUNT, "text.verbosity", _VERBOSITY),
    Refusal(COUNT, "tools[0].async", _PLATFORM),
    Refusal(COUNT, "tools[0].defer_loading", _PLATFORM),
    Refusal(RETRIEVE, "starting_after", _STREAM_ONLY, when=_whole),
    Refusal(ITEMS, "limit", "the suite asks for a page of nothing"),
    Refusal(TALKED, "limit", "the suite asks for a page of nothing"),
)

_NEEDED = (
    Need(RESPOND, "model", "{model}"),
    Need(RESPOND, "input", "Say hello."),
    Need(COUNT, "model", "{model}"),
    Need(COUNT, "input", "Say hello."),
)
RULES = Rules(_FILES, _LEFT_OUT, _REFUSED, _NEEDED)
