"""Maps the core's and the worker's parameter names to the caller's, because errors must name the caller's."""

from __future__ import annotations

from collections.abc import Mapping

REST: Mapping[str, str] = {"width": "size", "height": "size", "count": "n", "negative": "negative_prompt"}
TYPED: Mapping[str, str] = {"size": "width", "n": "count", "negative": "negative_prompt"}
