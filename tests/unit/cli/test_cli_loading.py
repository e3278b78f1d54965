"""The command loads what it is asked for, and no more."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer.main

from broker_client.cli.main import app, every_command

LOADED = """
import sys
from broker_client.cli.main import app
try:
    app(sys.argv[1:])
except SystemExit:
    pass
print(*[name for name in sys.modules if name.startswith("broker_client.")], file=sys.stderr)
"""


def loaded_by(*arguments: str) -> set[str]:
    """The modules of the package that a new interpreter has loaded after the command."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return set(done.stderr.splitlines()[-1].split())


def of_commands(modules: set[str]) -> set[str]:
    return {name for name in modules if name.startswith("broker_client.cli.")}


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_list_of_commands_and_version_load_no_command(option: str) -> None:
    loaded = loaded_by(option)
    assert of_commands(loaded) == {"broker_client.cli.main"}
    assert not loaded & {"broker_client.broker", "broker_client.config"}


def test_command_loads_no_other() -> None:
    loaded = of_commands(loaded_by("schema"))
    assert loaded == {"broker_client.cli.main", "broker_client.cli.schema"}


def test_list_of_commands_says_what_their_own_helps_say() -> None:
    lines = {name: each.help for name, each in typer.main.get_group(app).commands.items()}
    own = {
        name: " ".join((command.help or "").split("\n\n")[0].split())
        for name, command in every_command().items()
    }
    assert list(lines) == list(own)
    assert lines == own
