"""Runs a program of the checkout in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.documents import ROOT

TIMEOUT = 90.0


def run_python(
    *arguments: str, cwd: Path = ROOT, timeout: float = TIMEOUT
) -> subprocess.CompletedProcess[str]:
    """``python ARGUMENTS``, with this checkout's package, and every warning an error."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    environment.pop("FORCE_COLOR", None)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
