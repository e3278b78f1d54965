"""``broker-client definitions``: the definitions of a broker in a file, as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from broker_client.cli.node_file import FilePath, failed, run_on_file, write_output
from broker_client.cli.options import AsJsonLine
from broker_client.cli.paths import file_path
from broker_client.cli.steering import definitions_of
from broker_client.errors import InvalidDefinitionsError
from broker_client.node.definitions import (
    ImportReport,
    import_definitions,
)
from broker_client.runtime.files import for_owner_only

definitions_app: typer.Typer = typer.Typer(
    help="Export and import a broker's definitions in RabbitMQ's JSON format.",
    no_args_is_help=True,
)

VHost = Annotated[
    str | None, typer.Option("--vhost", metavar="NAME", help="Only queues of this vhost.")
]


def read_definitions(path: Path) -> Any:
    """The JSON in the file at `path`.

    Raises:
        InvalidDefinitionsError: it cannot be read, or is not JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise InvalidDefinitionsError([f"{path}: {error.strerror}"]) from None
    except json.JSONDecodeError as error:
        why = f"{path}:{error.lineno}: is not JSON: {error.msg}"
        raise InvalidDefinitionsError([why]) from None
    except UnicodeDecodeError as error:
        raise InvalidDefinitionsError([f"{path}: is not JSON: {error.reason}"]) from None
    except (RecursionError, ValueError) as error:
        raise InvalidDefinitionsError([f"{path}: cannot be read: {error}"]) from None


@definitions_app.command("export")
def export(
    path: FilePath,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="File to write. Default: standard output."
        ),
    ] = None,
    vhost: VHost = None,
) -> None:
    """Print vhosts, users with hashed passwords, permissions, policies, exchanges, queues and
    bindings.

    Standard error lists what RabbitMQ would refuse.
    """
    exported = definitions_of(path, vhost)
    text = json.dumps(exported["document"], indent=2, ensure_ascii=False)
    write_output(output, f"{text}\n", opener=for_owner_only)
    for note in exported["notes"]:
        typer.echo(f"note: {note}", err=True)


@definitions_app.command("import")
def import_(
    path: FilePath,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="JSON, as RabbitMQ or this command exports it.",
            show_default=False,
            parser=file_path,
        ),
    ],
    vhost: VHost = None,
    as_json: AsJsonLine = False,
) -> None:
    """Add and change what a file defines; delete nothing.

    If the file has problems, prints them all, imports nothing and exits with status 1. Lists
    what is not supported.
    """
    try:
        document = read_definitions(file)
    except InvalidDefinitionsError as error:
        raise failed(str(error)) from None
    report = run_on_file(path, lambda node: import_definitions(node, document, vhost), create=True)
    if as_json:
        typer.echo(json.dumps({"counts": dict(report.counts), "notes": list(report.notes)}))
    else:
        typer.echo("\n".join(lines_of(report)))


def lines_of(report: ImportReport) -> list[str]:
    """The result of an import, as text."""
    counts = ", ".join(f"{count} {section}" for section, count in report.counts.items())
    return [f"imported: {counts or 'nothing'}", *(f"note: {note}" for note in report.notes)]
