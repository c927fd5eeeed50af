"""Parameters as the caller calls them: core and worker have names of their own, and errors must not show them."""

from __future__ import annotations

from collections.abc import Mapping

REST: Mapping[str, str] = {"width": "size", "height": "size", "count": "n", "negative": "negative_prompt"}
TYPED: Mapping[str, str] = {"size": "width", "n": "count", "negative": "negative_prompt"}
