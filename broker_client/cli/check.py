"""``broker-client check``."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from broker_client.cli.paths import file_path
from broker_client.cli.summary import summary
from broker_client.config import BrokerConfig
from broker_client.config.loader import load_config
from broker_client.errors import ConfigError, Problem


def check(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Configurations, YAML or JSON.",
            show_default=False,
            parser=file_path,
        ),
    ],
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as problems.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print lines of JSON.")] = False,
) -> None:
    """Check configurations without connecting, and show what one declares.

    Prints all problems of all files, and exits with status 1 if there is one. With a single
    file, prints tables of what it declares, then warnings.
    """
    # They are printed below; without a handler, logging would print them as well.
    logging.getLogger("broker_client.config").addHandler(logging.NullHandler())
    passed = [_check(file, alone=len(files) == 1, strict=strict, as_json=as_json) for file in files]
    if not all(passed):
        raise typer.Exit(1)


def _check(file: Path, *, alone: bool, strict: bool, as_json: bool) -> bool:
    """Report on one file; True if nothing is wrong with it."""
    problems: Sequence[Problem] = ()
    warnings: Sequence[Problem] = ()
    config: BrokerConfig | None = None
    try:
        config = load_config(file)
        warnings = config.warnings
    except ConfigError as error:
        problems = error.problems
    passed = not problems and not (strict and warnings)
    if as_json:
        told = {"file": str(file), "ok": passed, "problems": _told(problems)}
        typer.echo(json.dumps({**told, "warnings": _told(warnings)}))
    elif config is None:
        _print_problems(file, problems)
    else:
        if alone:
            console = Console(file=sys.stdout)
            for table in summary(config):
                console.print(table)
        for warning in warnings:
            typer.echo(f"warning: {warning}")
        typer.echo(f"{file}: {_verdict(len(warnings))}")
    return passed


def _told(problems: Sequence[Problem]) -> list[dict[str, object]]:
    return [asdict(problem) for problem in problems]


def _print_problems(file: Path, problems: Sequence[Problem]) -> None:
    for problem in problems:
        typer.echo(str(problem), err=True)
    if sum(_is_of_rascal(problem.message) for problem in problems) > 1:
        typer.echo(
            f"{file}: looks like a configuration of Node's rascal; "
            f"broker-client import-rascal {file} -o app.yaml converts it",
            err=True,
        )


def _is_of_rascal(message: str) -> bool:
    """True for the complaint about a key or a value as rascal has it."""
    return re.search(r"is rascal's|[a-z][A-Z]\w* is written|\(in rascal", message) is not None


def _verdict(warnings: int) -> str:
    if not warnings:
        return "ok"
    return f"ok, with {warnings} warning{'s' if warnings > 1 else ''}"
