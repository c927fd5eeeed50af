"""Every parser of untrusted bytes that is fuzzed. A parser of a new format takes a line in one of these."""

from __future__ import annotations

from tests.fuzz.body_targets import BODY_TARGETS
from tests.fuzz.form_targets import FORM_TARGETS
from tests.fuzz.fuzz_target import FuzzTarget
from tests.fuzz.identity_targets import IDENTITY_TARGETS
from tests.fuzz.language_targets import LANGUAGE_TARGETS
from tests.fuzz.media_targets import MEDIA_TARGETS
from tests.fuzz.model_targets import MODEL_TARGETS
from tests.fuzz.name_targets import NAME_TARGETS
from tests.fuzz.template_targets import TEMPLATE_TARGETS
from tests.fuzz.words_targets import WORDS_TARGETS

TARGETS: dict[str, FuzzTarget] = {
    target.name: target
    for target in (
        *BODY_TARGETS,
        *FORM_TARGETS,
        *MODEL_TARGETS,
        *WORDS_TARGETS,
        *LANGUAGE_TARGETS,
        *NAME_TARGETS,
        *IDENTITY_TARGETS,
        *TEMPLATE_TARGETS,
        *MEDIA_TARGETS,
    )
}
