"""Ctrl-C while the command is still loading, and at a question."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.command_line import ready, run

ROOT = Path(__file__).parents[3]
LOADS_FOR_LONG = """
import signal
print("loading", flush=True)
signal.pause()
"""


AS_COMMAND = (str(ROOT / "broker_client_command.py"),)
AS_MODULE = ("-m", "broker_client")


def started(
    *arguments: str, url: str = "", path: str = "", program: Sequence[str] = AS_COMMAND
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *program, *arguments],
        env={**os.environ, "BROKER_CLIENT_URL": url, "PYTHONPATH": f"{path}:{ROOT}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # In the background of a shell SIGINT is ignored, also by children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.parametrize("program", [AS_COMMAND, AS_MODULE], ids=["command", "module"])
def test_an_interrupt_while_the_command_line_loads_ends_it_quietly(
    program: Sequence[str], tmp_path: Path
) -> None:
    (tmp_path / "typer.py").write_text(LOADS_FOR_LONG)
    with started("--version", path=str(tmp_path), program=program) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize("program", [AS_COMMAND, AS_MODULE], ids=["command", "module"])
def test_an_interrupt_while_the_chosen_command_loads_ends_it_without_a_traceback(
    program: Sequence[str], tmp_path: Path
) -> None:
    (tmp_path / "pamqp.py").write_text(LOADS_FOR_LONG)
    with started("serve", path=str(tmp_path), program=program) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (130, "", "interrupted\n")


def test_an_interrupt_at_a_question_is_no_answer(url: str) -> None:
    run(url, "publish", "q", input="1\n")
    with started("purge", "q", url=url) as process:
        assert process.stdout is not None
        asked = ""
        while not asked.endswith("[y/N]: "):
            asked += process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "interrupted\n")
    assert not output.strip()
    assert ready(url, "q") == 1
