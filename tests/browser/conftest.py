"""One Chromium for the session, and axe-core, installed once beside the virtual environment."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import Browser, chromium_programs

_AXE = "axe-core@4.14.1"
_HOME = Path(os.environ.get("AXE_HOME") or Path(sys.prefix) / "share" / "axe")


def _left_out(what: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"{what} is not installed, and CI is set: see scripts/install-servers")
    pytest.skip(f"LEFT OUT: {what} is not installed: see scripts/install-servers")


@pytest.fixture(scope="session")
def axe_script() -> Path:
    """The script of axe-core."""
    npm = shutil.which("npm")
    script = _HOME / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists() and npm is None:
        _left_out("npm")
    _HOME.mkdir(parents=True, exist_ok=True)
    with (_HOME / ".lock").open("w") as lock:  # another run may be installing it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not script.exists():
            assert npm is not None
            options = ("--no-save", "--no-package-lock", "--no-audit", "--no-fund")
            subprocess.run(
                [npm, "install", *options, _AXE],
                cwd=_HOME,
                check=True,
                capture_output=True,
                timeout=120,
            )
    return script


@pytest.fixture(scope="session")
def _chromium(axe_script: Path) -> Iterator[Browser]:
    programs = chromium_programs()
    if programs is None:
        _left_out("chromium with chromium-driver")
    assert programs is not None
    with Browser(programs, axe_script) as browser:
        yield browser


@pytest.fixture
def browser(_chromium: Browser) -> Browser:
    """The browser, without what the test before left in it."""
    _chromium.fresh()
    return _chromium
