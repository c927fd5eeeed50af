"""`allm models test`: turns arguments into outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from allm.models.v1 import model_pb2

from services.cli.models.bench import able_runtimes
from services.cli.models.catalog import Catalog
from services.cli.models.connection import Connection
from services.cli.models.restoring import as_it_was
from services.cli.models.words import modality_word
from services.cli.problem import Problem
from services.cli.verify.check import Outcome
from services.cli.verify.screen import CheckScreen
from services.cli.verify.subject import Subject
from services.cli.verify.suite import chosen, run


def verify(
    connection: Connection,
    model_id: str,
    say: Callable[[str], None],
    *,
    runtime: str = "",
    names: Sequence[str] = (),
    random: bool = False,
    prompt_tokens: int = 1000,
) -> tuple[Subject, list[Outcome]]:
    """Runs the named checks, or all, on a model, and restores the model's state.

    Raises:
        Problem: it is not a chat model, there is no such check or runtime, or allm stopped answering.
    """
    checks = chosen(names)
    catalog = Catalog(connection)
    explained = catalog.explain(model_id)
    model = explained.model
    if model.modality != model_pb2.MODALITY_TEXT:
        kind = modality_word(model.modality)
        raise Problem(f"{model.id} is a model for {kind}: `allm models test` is only for text models so far")
    if "chat" not in model.capabilities:
        raise Problem(f"{model.id} cannot chat: `allm models test` is only for models that can so far")
    if runtime:
        able_runtimes(explained, runtime)
    subject = Subject(
        model=model,
        catalog=catalog,
        chat=connection.chat,
        text=connection.text,
        runtime=runtime,
        random=random,
        prompt_tokens=prompt_tokens,
    )
    with as_it_was(catalog, model.id, say), CheckScreen(model.id, len(checks)) as screen:
        return subject, run(subject, checks, screen.begun, screen.done)
