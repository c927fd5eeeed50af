"""The exceptions to the tests of Anthropic's SDK (suite_rules.py). Every case of these files runs."""

from __future__ import annotations

from suite_rules import Refusal, Rules

_FILES = ("test_messages.py", "test_models.py", "beta/test_messages.py", "beta/test_models.py")
CREATE, COUNT = "POST /v1/messages", "POST /v1/messages/count_tokens"

_PLATFORM = "only Anthropic's platform has it"
_REFUSED = (
    Refusal(CREATE, "compaction", _PLATFORM),
    Refusal(CREATE, "container", _PLATFORM),
    Refusal(CREATE, "mcp_servers", _PLATFORM),
    Refusal(CREATE, "thread", _PLATFORM),
    Refusal(CREATE, "tools[0].defer_loading", _PLATFORM),
    Refusal(CREATE, "tools[0].input_schema", "the suite's properties are no schemas", instead={"type": "object"}),
    Refusal(COUNT, "mcp_servers", _PLATFORM),
    Refusal(COUNT, "tools[0].defer_loading", _PLATFORM),
)
RULES = Rules(_FILES, {}, _REFUSED)
