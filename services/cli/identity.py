"""`allm identity`: makes the keys with which the processes of a deployment sign their identities."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.auth.identity_keys import PUBLIC_NAME, ROLES, KeysUnusable, create_keys
from services.cli.ending import plainly
from services.cli.problem import Problem

identity_app = typer.Typer(
    help="Make the keys that sign identities inside a deployment (not API keys: those are `allm keys`).",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@identity_app.command()
def create(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder that is new or empty.")],
) -> None:
    """Create a private key for every role, `ROLE.key`, and the file of their public keys, `public.keys`.

    `allm serve` makes its own. Deployments of several containers need them beforehand. To replace keys, create new ones
    in another folder (docs/keys.md).
    """
    with plainly():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise Problem(f"{folder} must be a new or an empty folder: keys in use are never overwritten")
        try:
            create_keys({role: folder / f"{role}.key" for role in ROLES}, folder / PUBLIC_NAME)
        except KeysUnusable as error:
            raise Problem(str(error)) from error
        typer.echo(f"{folder}: {', '.join(f'{role}.key' for role in ROLES)}, {PUBLIC_NAME}")
