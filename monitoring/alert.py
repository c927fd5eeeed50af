"""An alert: its condition, and the steps for the engineer on call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["critical", "warning"]
RUNBOOK = "docs/alerts.md"


@dataclass(frozen=True, slots=True)
class Alert:
    """A Prometheus rule. `summary` may use labels, as `{{ $labels.model }}`."""

    name: str
    expression: str
    lasting: str  # how long the expression must hold before the alert fires, such as 5m
    severity: Severity
    summary: str  # one sentence: the problem
    meaning: str  # for the runbook: the effect on users, and the cause
    action: str  # for the runbook: the steps to take, in order

    @property
    def anchor(self) -> str:
        """The alert's section of the runbook."""
        return f"{RUNBOOK}#{self.name.lower()}"

    def as_rule(self) -> dict[str, Any]:
        """Returns the rule in Prometheus's format."""
        return {
            "alert": self.name,
            "expr": self.expression,
            "for": self.lasting,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "description": self.action, "runbook_url": self.anchor},
        }
