"""The commands' help and their usage errors, for all commands and every option."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from services.cli.command import command_group
from services.cli.main import app
from tests.case import case


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields the command and all its subcommands, each with its words."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


def help_of(*words: str) -> str:
    done = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}, prog_name="allm")
    assert done.exit_code == 0
    return done.stdout


def test_the_help_of_every_command_explains_all_of_it() -> None:
    """Every command begins with a sentence; every option says what it does, and what it takes in capitals."""
    for words, command in commands(typer.main.get_command(app)):
        shown = help_of(*words)
        with case(words=words):
            assert f"Usage: {' '.join(('allm', *words))} " in shown
            assert command.help.strip().partition("\n\n")[0].rstrip().endswith(".")
            assert "<bool>" not in shown and "<int" not in shown
            for each in command.params:
                if not each.hidden:
                    assert each.help[0].isupper() or each.help[0] in "`$", each.name
                    assert each.help.rstrip(".") != each.help, each.name


def test_usage_names_the_arguments_as_they_are_typed() -> None:
    assert "Usage: allm run [OPTIONS] MODEL [PROMPT...] " in help_of("run")
    assert "Usage: allm pull [OPTIONS] [ID] SOURCE " in help_of("pull")
    assert "Usage: allm models update [OPTIONS] ID [SOURCE] " in help_of("models", "update")


@pytest.fixture
def shop() -> typer.Typer:
    group = command_group("Sells.", name="shop")

    @group.command()
    def sell(count: int) -> None:
        """Sell."""
        typer.confirm("Really?", abort=True, err=True)
        raise typer.Exit(count)

    @group.command()
    def buy() -> None:
        """Buy."""

    return group


def test_an_exit_status_is_that_of_the_command(shop: typer.Typer) -> None:
    for words, typed, status in (("sell 3", "y\n", 3), ("sell 0", "y\n", 0), ("buy", "", 0)):
        assert CliRunner().invoke(shop, words.split(), input=typed).exit_code == status


def test_a_wrong_word_or_a_no_ends_it_with_one_line(shop: typer.Typer) -> None:
    for words, line in (
        ("sel", "no such command 'sel'. Did you mean 'sell'? `shop --help` explains the command"),
        ("sell", "missing argument 'count'; `shop sell --help` explains the command"),
        ("sell 1 2", "got unexpected extra argument(s) (2); `shop sell --help` explains the command"),
    ):
        done = CliRunner().invoke(shop, words.split(), prog_name="shop")
        assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"allm: {line}\n")
    for typed in ("n\n", ""):
        done = CliRunner().invoke(shop, ["sell", "1"], input=typed)
        assert done.exit_code == 1
        assert done.stderr.endswith("allm: nothing has been changed\n")


def test_without_words_it_shows_its_help(shop: typer.Typer) -> None:
    done = CliRunner().invoke(shop, [], prog_name="shop")
    assert (done.exit_code, done.stderr) == (2, "")
    assert "Sells." in done.stdout
