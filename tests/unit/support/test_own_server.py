"""Ports for servers that tests start."""

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[3]
_DRAW = """
from tests.support.own_server import free_port

print(*(free_port() for _ in range(600)), flush=True)
input()
"""


def test_two_processes_that_draw_ports_at_once_never_draw_the_same() -> None:
    """A server listens seconds after its port was chosen."""
    drawing = [
        subprocess.Popen(
            [sys.executable, "-c", _DRAW],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    drawn: list[set[str]] = []
    for process in drawing:
        assert process.stdout is not None
        drawn.append(set(process.stdout.readline().split()))
    for process in drawing:
        process.communicate("\n")
        assert process.returncode == 0
    assert all(drawn)
    assert drawn[0].isdisjoint(drawn[1])
