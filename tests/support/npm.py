"""Packages of npm for tests."""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.support.left_out import installed_program


def npm_home(home: Path, packages: Sequence[str]) -> Path:
    """`home`, with `packages` in its `node_modules`; installed there the first time."""
    installed_program("node")
    home.mkdir(parents=True, exist_ok=True)
    with (home / ".lock").open("w") as lock:  # another run may be installing it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "node_modules" / packages[0].rpartition("@")[0]).is_dir():
            options = ("--no-save", "--no-package-lock", "--no-audit", "--no-fund")
            subprocess.run(
                [installed_program("npm"), "install", *options, *packages],
                cwd=home,
                check=True,
                capture_output=True,
                timeout=300,
            )
    return home
