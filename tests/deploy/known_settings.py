"""The names of all settings that the code reads."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Variables of the hub's client and libraries; the last one exists for references from other variables.
FOREIGN = {
    *("HF_ENDPOINT", "HF_TOKEN", "HOME", "NCCL_DEBUG", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "VLLM_HOST_IP"),
    "POD_NAMESPACE",
}
# Files that do not exist in a test; services/settings/tls_settings.py reads them.
CERTIFICATES = ("ALLM_TLS_", "ALLM_SERVICE_TLS_")


@cache
def settings_names() -> set[str]:
    """Returns every variable named in services/settings, the only folder that reads settings."""
    return {
        node.value
        for path in (ROOT / "services/settings").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"ALLM_[A-Z_]+", node.value)
    }
