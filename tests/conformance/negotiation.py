"""Adapts the official clients' requests to this server: replaces ids by real ones, and drops refused parameters.

Every refusal is verified: a request is sent as the suite wrote it, except for ids and the model. Each refusal must be a
400 that names a parameter of the table, and every refusal in the table must occur.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from openai import AsyncOpenAI, BadRequestError, OpenAI
from stand_ins import StandIns
from suite_rules import COMPLETE, CONVERSE, NEEDED, REFUSED, RESPOND, TOKENS

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_IDS = re.compile(r"/(responses|models|conversations|items)/([^/]+)")
_WORDS = {"input_tokens"}  # appear in the position of an id, but are none
# The parameters that limit an answer's length, for requests that leave it open.
_LENGTHS = {
    RESPOND: ("max_output_tokens",),
    CONVERSE: ("max_completion_tokens", "max_tokens"),
    COMPLETE: ("max_tokens",),
}


class Negotiation:
    """One request of the suite, adapted step by step."""

    def __init__(self, options: Any, client: NegotiatingOpenAI | AsyncNegotiatingOpenAI) -> None:
        self._stand_ins, self._refusals = client.stand_ins, client.refusals
        self._strict = client._strict_response_validation
        self._options = options
        self._in = "json_data" if options.method == "post" else "params"
        self._asked: dict[str, Any] = copy.deepcopy(dict(getattr(options, self._in) or {}))
        self._route = f"{options.method.upper()} {_IDS.sub(_without_id, options.url)}"
        self._url = _IDS.sub(self._with_id, options.url)
        rules = [rule for rule in REFUSED if rule.route == self._route]
        asked = self._asked
        self._rules = {rule.param: rule for rule in rules if _has(asked, rule.param) and rule.when(asked)}
        needs = [need for need in NEEDED if need.route == self._route and not _has(asked, need.param)]
        self._needs = {need.param: need for need in needs}
        self._open = {*self._rules, *self._needs}
        self._substitute()

    @property
    def options(self) -> Any:
        """Returns the request to send next."""
        asked = {self._in: copy.deepcopy(self._asked)} if self._asked else {}
        return self._options.model_copy(update={"url": self._url, **asked})

    def refused(self, error: BadRequestError) -> None:
        """Removes or adds the parameter that the server named; fails when the table does not list it."""
        named = error.param or ""
        assert error.type == "invalid_request_error", error
        assert named in self._open, f"{self._route} refuses {named!r}, open are {self._open}: {error}"
        assert named.split(".")[-1].split("[")[0] in error.message, error
        self._open.remove(named)
        self._refusals[f"{self._route} {named}"] += 1
        value = self._needs[named].value if named in self._needs else self._rules[named].instead
        _put(self._asked, named, self._stand_ins.filled(value))

    def accepted(self) -> None:
        """Fails when an expected refusal did not occur."""
        assert not self._open, f"{self._route} accepts {self._open}, which the table says is refused"

    def _substitute(self) -> None:
        """Inserts real ids, a bound where the suite leaves an answer's length open, and vectors that can be checked."""
        for name in ("model", "previous_response_id", "after"):
            if name in self._asked:
                self._asked[name] = self._stand_ins.named(name, self._route)
        lengths = _LENGTHS.get(self._route, ())
        if lengths and not any(name in self._asked for name in lengths):
            self._asked[lengths[0]] = TOKENS
        # By default the SDK requests base64 and decodes it later; its strict clients check the type before that.
        if self._strict and self._asked.get("encoding_format") == "base64":
            self._asked["encoding_format"] = "float"

    def _with_id(self, found: re.Match[str]) -> str:
        if found[2] in _WORDS:
            return found[0]
        return f"/{found[1]}/{self._stand_ins.of(self._route, found[1])}"


class NegotiatingOpenAI(OpenAI):
    """The official client; every request goes through a Negotiation."""

    stand_ins: StandIns
    refusals: Counter[str]

    def request(self, cast_to: Any, options: Any, **more: Any) -> Any:  # type: ignore[override]
        """Sends the request until no parameter is refused."""
        negotiation = Negotiation(options, self)
        while True:
            try:
                answer = super().request(cast_to, negotiation.options, **more)
            except BadRequestError as error:
                negotiation.refused(error)
            else:
                negotiation.accepted()
                return answer


class AsyncNegotiatingOpenAI(AsyncOpenAI):
    """The asynchronous variant."""

    stand_ins: StandIns
    refusals: Counter[str]

    async def request(self, cast_to: Any, options: Any, **more: Any) -> Any:  # type: ignore[override]
        """Sends the request until no parameter is refused."""
        negotiation = Negotiation(options, self)
        while True:
            try:
                answer = await super().request(cast_to, negotiation.options, **more)
            except BadRequestError as error:
                negotiation.refused(error)
            else:
                negotiation.accepted()
                return answer


def _without_id(found: re.Match[str]) -> str:
    return found[0] if found[2] in _WORDS else f"/{found[1]}/{{id}}"


def _steps(param: str) -> list[str | int]:
    return [int(number) if number else name for name, number in _STEP.findall(param)]


def _has(asked: Mapping[str, Any], param: str) -> bool:
    value: Any = asked
    for step in _steps(param):
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return False
    return True


def _put(asked: dict[str, Any], param: str, value: Any) -> None:
    """Sets a part of a request; None removes it."""
    *path, last = _steps(param)
    place: Any = asked
    for step in path:
        place = place[step]
    if value is None:
        del place[last]
    else:
        place[last] = value
