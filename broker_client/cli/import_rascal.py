"""``broker-client import-rascal``: converts a configuration of Node's rascal."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated

import typer

from broker_client.cli.paths import file_path
from broker_client.config.loader import load_text
from broker_client.config.rascal.conversion import converted
from broker_client.config.rascal.draft import written
from broker_client.errors import ConfigError
from broker_client.runtime.files import for_owner_only

_MODULES = (".js", ".cjs", ".mjs", ".ts")


def import_rascal(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Rascal's configuration, JSON.",
            show_default=False,
            parser=file_path,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="File to write. Default: standard output."),
    ] = None,
) -> None:
    """Convert a configuration of Node's rascal to YAML for this client.

    Keys without a counterpart become comments with the reason. Standard error lists likely
    mistakes, and what RabbitMQ 4 refuses.
    """
    text = written(converted(_read(file)))
    if output is None:
        typer.echo(text, nl=False)
    else:
        try:
            with open(output, "w", encoding="utf-8", opener=for_owner_only) as written_to:
                written_to.write(text)  # with the passwords of the original
        except OSError as error:
            raise _failed(f"{output}: cannot be written: {error.strerror}") from None
    logging.getLogger("broker_client.config").addHandler(logging.NullHandler())
    try:
        config = load_text(text, str(output or "result"))
    except ConfigError as error:
        # Mistakes that rascal does not see, or sees later.
        raise _failed(str(error)) from None
    for warning in config.warnings:
        typer.echo(f"warning: {warning}", err=True)


def _read(file: Path) -> dict[str, object]:
    try:
        document = json.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise _failed(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _failed(f"{file}: is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        text = f"{file}:{error.lineno}: not valid JSON: {error.msg}"
        if file.suffix in _MODULES:
            text += (
                "; from a JavaScript module, write it as JSON first: "
                f"node -p 'JSON.stringify(require(\"./{file.name}\"))' > rascal.json"
            )
        raise _failed(text) from None
    except RecursionError:
        raise _failed(f"{file}: is nested too deeply") from None
    if not isinstance(document, dict):
        raise _failed(f"{file}: must be an object with the key 'vhosts'")
    return document


def _failed(text: str) -> typer.Exit:
    typer.echo(text, err=True)
    return typer.Exit(1)
