"""`allm models test` and `allm models verify-families`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.models.catalog import session
from services.cli.models.options import Address, Json, LoadRuntime, ModelId
from services.cli.models.page import Page, print_document
from services.cli.problem import EXIT_PROBLEM
from services.cli.verify.check import record, write
from services.cli.verify.families import PREFIX, FamilyRun, Result, chosen_families
from services.cli.verify.suite import show_outcomes, verify

HEADERS = ("FAMILY", "MODEL", "FORMAT", "RUNTIME", "RESULT", "DETAIL")
Checks = Annotated[
    list[str] | None, typer.Option("--check", metavar="NAME", help="Run only this check, after loading; repeatable.")
]


def verify_model(
    model_id: ModelId,
    runtime: LoadRuntime = "",
    check: Checks = None,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Skip the checks that need trained weights.")
    ] = False,
    prompt_tokens: Annotated[
        int, typer.Option(min=64, max=1_000_000, metavar="N", help="Approximate tokens of the long prompt.")
    ] = 1000,
    record_file: Annotated[
        Path | None, typer.Option("--record", metavar="FILE", help="Also write the result to this file, as JSON.")
    ] = None,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """Check that a text model answers correctly: its template, stop tokens, batches, tools and likelihoods.

    The exit status is 1 if a check failed.
    """
    with session(address) as at:
        subject, outcomes = verify(
            at.connection,
            model_id,
            Page(error=True).say,
            runtime=runtime,
            names=check or [],
            random=random_weights,
            prompt_tokens=prompt_tokens,
        )
        found = record(subject, outcomes)
        if record_file:
            write(found, record_file)
        if as_json:
            print_document(found)
        else:
            show_outcomes(Page(), subject.model.id, outcomes)
        if not found["passed"]:
            raise typer.Exit(EXIT_PROBLEM)


def verify_families(
    family: Annotated[
        list[str] | None,
        typer.Option("--family", metavar="NAME", help="Test only this family, such as one of `--list`; repeatable."),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option("--into", metavar="DIR", help="The folder for the results. Default: `$ALLM_HOME/verified`."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help=f"Keep the models, as `{PREFIX}NAME`, and their files.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Also test what passed in an earlier run.")] = False,
    check: Checks = None,
    only_list: Annotated[bool, typer.Option("--list", help="List the models, and fetch nothing.")] = False,
    as_json: Json = False,
    address: Address = "",
) -> None:
    """Fetch the smallest published models of each family, test them on every runtime, and record the results.

    Models that this machine cannot hold are reported as not run. The same command continues an interrupted run. The
    exit status is 1 if a check failed, or if no model was tested.
    """
    page = Page()
    with session(address) as at:
        models = chosen_families(family or [])
        if only_list:
            for each in models:
                page.say(f"{each.family}: {each.source} ({each.format})")
            return
        run = FamilyRun(
            at=at,
            into=(into or at.settings.home / "verified").expanduser(),
            say=Page(error=True).say,
            names=check or [],
            keep=keep,
            again=again,
            local=not address,
        )
        results = []
        for result in run.results(models):
            run.say(f"{result.published.source} on {result.runtime}: {result.verdict}: {result.detail}")
            results.append(result)
        if as_json:
            print_document({"results": [each.document() for each in results]})
        else:
            _show(page, results, run.into)
        verdicts = [each.verdict for each in results]
        if "failed" in verdicts or "passed" not in verdicts:
            raise typer.Exit(EXIT_PROBLEM)


def _show(page: Page, results: list[Result], into: Path) -> None:
    page.table(
        HEADERS,
        [
            (of.family, of.repository, of.format, each.runtime, each.verdict, each.detail)
            for each in results
            for of in [each.published]
        ],
    )
    counts = {word: sum(each.verdict == word for each in results) for word in ("passed", "failed", "not run")}
    page.say(", ".join(f"{count} {word}" for word, count in counts.items()))
    page.say(f"Records: {into}")
