"""The names of all settings, as the code reads them."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Not ours: the hub's client and libraries read them; the last one is for other variables to refer to.
FOREIGN = {
    *("HF_ENDPOINT", "HF_TOKEN", "HOME", "NCCL_DEBUG", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "VLLM_HOST_IP"),
    "POD_NAMESPACE",
}
# Files that are not there in a test; services/settings/tls_settings.py looks into them.
CERTIFICATES = ("ALLM_TLS_", "ALLM_SERVICE_TLS_")


@cache
def settings_names() -> set[str]:
    """Every variable whose name stands in services/settings, where alone settings are read."""
    return {
        node.value
        for path in (ROOT / "services/settings").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"ALLM_[A-Z_]+", node.value)
    }
