"""The commands' common form: help that shows only what a user types, and wrong arguments reported in one line."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from services.cli.problem import EXIT_PROBLEM


def command_group(help: str, name: str | None = None, epilog: str | None = None) -> typer.Typer:
    """Returns a command that has subcommands. `help` and `epilog` are Markdown."""
    return _Commands(name=name, help=help, epilog=epilog, cls=_Group, no_args_is_help=True, rich_markup_mode="markdown")


class _Usage(TyperCommand):
    """A command whose usage names its arguments as they are declared, and whose switches show no type."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [self.options_metavar or "", *(_piece(each) for each in self.params if isinstance(each, TyperArgument))]

    def get_params(self, ctx: Any) -> list[Any]:
        return _untyped(super().get_params(ctx))


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _untyped(super().get_params(ctx))

    def main(self, *args: Any, **given: Any) -> NoReturn:
        """Runs the command. A wrong argument ends it with one line, and without the usage."""
        try:
            sys.exit(super().main(*args, **{**given, "standalone_mode": False}) or 0)
        except typer.Abort:
            _end("nothing has been changed", EXIT_PROBLEM)
        except typer.TyperException as error:
            context = getattr(error, "ctx", None)
            problem = error.format_message()
            if not problem.strip():  # the help has been shown instead
                sys.exit(error.exit_code)
            if context:
                mark = "" if problem.endswith("?") else ";"
                problem = f"{problem.rstrip('.')}{mark} `{context.command_path} --help` explains the command"
            _end(problem[0].lower() + problem[1:], error.exit_code)


class _Commands(typer.Typer):
    def command(self, *args: Any, **given: Any) -> Any:
        return super().command(*args, **{"cls": _Usage, **given})


def _piece(argument: TyperArgument) -> str:
    name = argument.display_name_raw
    return name if argument.required else f"[{name}]"


def _untyped(parameters: list[Any]) -> list[Any]:
    """Removes the type from the help of switches: they take no value."""
    for each in parameters:
        if isinstance(each, TyperOption) and each.is_flag:
            each.metavar = ""
    return parameters


def _end(sentence: str, status: int) -> NoReturn:
    print(f"allm: {' '.join(sentence.split())}", file=sys.stderr)
    sys.exit(status)
