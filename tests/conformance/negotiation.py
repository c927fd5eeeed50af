"""Adapts an official client's requests to this server: replaces ids by real ones, and drops refused parameters.

Every refusal is verified: a request is sent as the suite wrote it, except for ids, the model and the answer's length.
Each refusal must be a 400 that names a parameter of the table, and every refusal in the table must occur.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from suite_rules import Rules

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_IDS = re.compile(r"/(responses|models|conversations|items)/([^/?]+)")
_WORDS = {"input_tokens"}  # appear in the position of an id, but are none


class StandIns(Protocol):
    """Real values for the invented ones of a suite."""

    def of(self, route: str, kind: str) -> str:
        """Returns the id of a `kind` for a path."""

    def substitute(self, asked: dict[str, Any], route: str, *, strict: bool) -> None:
        """Inserts real ids, and limits the answer's length. `strict`: the client validates types."""

    def filled(self, value: Any) -> Any:
        """Returns a value of the table with the model's name filled in."""


@dataclass
class Suite:
    """The tests of one SDK: its rules, its error of status 400, and the parameter that such an error names."""

    rules: Rules
    stand_ins: StandIns
    bad_request: type[Exception]
    named: Callable[[Any], str]
    omitted: tuple[type, ...] = ()  # values that the client removes before it sends a body
    refusals: Counter[str] = field(default_factory=Counter)


class Negotiation:
    """One request of the suite, adapted step by step."""

    def __init__(self, options: Any, suite: Suite, *, strict: bool) -> None:
        self._suite = suite
        self._options = options
        self._in = "json_data" if options.method == "post" else "params"
        given = dict(getattr(options, self._in) or {})
        self._asked = copy.deepcopy({name: one for name, one in given.items() if not isinstance(one, suite.omitted)})
        self._route = f"{options.method.upper()} {_IDS.sub(_without_id, options.url).partition('?')[0]}"
        self._url = _IDS.sub(self._with_id, options.url)
        rules = [rule for rule in suite.rules.refused if rule.route == self._route]
        asked = self._asked
        self._rules = {rule.param: rule for rule in rules if _has(asked, rule.param) and rule.when(asked)}
        needs = [need for need in suite.rules.needed if need.route == self._route and not _has(asked, need.param)]
        self._needs = {need.param: need for need in needs}
        self._open = {*self._rules, *self._needs}
        suite.stand_ins.substitute(asked, self._route, strict=strict)

    @property
    def options(self) -> Any:
        """Returns the request to send next."""
        asked = {self._in: copy.deepcopy(self._asked)} if self._asked else {}
        return self._options.model_copy(update={"url": self._url, **asked})

    def refused(self, error: Exception) -> None:
        """Removes or adds the parameter that the server named; fails when the table does not list it."""
        named = self._suite.named(error)
        assert named in self._open, f"{self._route} refuses {named!r}, open are {self._open}: {error}"
        assert named.split(".")[-1].split("[")[0] in str(error), error
        self._open.remove(named)
        self._suite.refusals[f"{self._route} {named}"] += 1
        value = self._needs[named].value if named in self._needs else self._rules[named].instead
        _put(self._asked, named, self._suite.stand_ins.filled(value))

    def accepted(self) -> None:
        """Fails when an expected refusal did not occur."""
        assert not self._open, f"{self._route} accepts {self._open}, which the table says is refused"

    def _with_id(self, found: re.Match[str]) -> str:
        if found[2] in _WORDS:
            return found[0]
        return f"/{found[1]}/{self._suite.stand_ins.of(self._route, found[1])}"


class Negotiating:
    """A base before an official client; every request goes through a Negotiation."""

    suite: Suite
    _strict_response_validation: bool

    def request(self, cast_to: Any, options: Any, **more: Any) -> Any:
        """Sends the request until no parameter is refused."""
        negotiation = Negotiation(options, self.suite, strict=self._strict_response_validation)
        while True:
            try:
                answer = super().request(cast_to, negotiation.options, **more)  # type: ignore[misc]
            except self.suite.bad_request as error:
                negotiation.refused(error)
            else:
                negotiation.accepted()
                return answer


class AsyncNegotiating:
    """The asynchronous variant."""

    suite: Suite
    _strict_response_validation: bool

    async def request(self, cast_to: Any, options: Any, **more: Any) -> Any:
        """Sends the request until no parameter is refused."""
        negotiation = Negotiation(options, self.suite, strict=self._strict_response_validation)
        while True:
            try:
                answer = await super().request(cast_to, negotiation.options, **more)  # type: ignore[misc]
            except self.suite.bad_request as error:
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
