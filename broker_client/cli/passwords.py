"""Where a command gets a password: a file, the environment, or the terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from broker_client.cli.node_file import failed

PASSWORD_VARIABLE = "BROKER_CLIENT_PASSWORD"  # noqa: S105 - the name of a variable

PasswordFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="File with the password in its first line; - is standard input.",
        show_default=False,
    ),
]


def password_of(name: str, file: Path | None, *, is_new: bool) -> str:
    """The password of a user, from the file, the environment or the terminal.

    Args:
        name: of the user.
        file: where it stands, if anywhere.
        is_new: have it typed twice.

    Raises:
        typer.Exit: there is no password.
    """
    if file is not None:
        return _first_line(file)
    if PASSWORD_VARIABLE in os.environ:
        return os.environ[PASSWORD_VARIABLE]
    if sys.stdin.isatty():
        typed: str = typer.prompt(
            f"Password of {name}", hide_input=True, confirmation_prompt=is_new, err=True
        )
        return typed
    raise failed(
        f"no password: give --password-file FILE (- is standard input), set "
        f"{PASSWORD_VARIABLE}, or run it in a terminal"
    )


def _first_line(file: Path) -> str:
    try:
        if str(file) == "-":
            text = sys.stdin.readline()
        else:
            with file.open(encoding="utf-8") as opened:
                text = opened.readline()
    except OSError as error:
        raise failed(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise failed(f"{file}: is not UTF-8 text") from None
    return text.rstrip("\r\n")
