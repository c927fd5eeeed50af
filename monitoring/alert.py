"""An alert: when it fires, and what whoever is on call does then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["critical", "warning"]
RUNBOOK = "docs/alerts.md"


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule of Prometheus. `summary` may name labels, as `{{ $labels.model }}`."""

    name: str
    expression: str
    lasting: str  # how long that must be so before it fires, such as 5m
    severity: Severity
    summary: str  # one sentence: what is wrong
    meaning: str  # for the runbook: what users notice, and why it happens
    action: str  # for the runbook: what to do, in order

    @property
    def anchor(self) -> str:
        """Where the runbook tells of it."""
        return f"{RUNBOOK}#{self.name.lower()}"

    def as_rule(self) -> dict[str, Any]:
        """The rule, as Prometheus reads it."""
        return {
            "alert": self.name,
            "expr": self.expression,
            "for": self.lasting,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "description": self.action, "runbook_url": self.anchor},
        }
