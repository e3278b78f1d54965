"""Tests that need what is not installed: left out, or failed where CI is set."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest

IN_CI = bool(os.environ.get("CI"))


def missing(what: str) -> NoReturn:
    """Leave the test out for want of `what`; where CI is set, fail it."""
    text = f"this machine has no {what}: see scripts/install-servers"
    if IN_CI:
        pytest.fail(text)
    pytest.skip(f"LEFT OUT: {text}")


def installed_program(name: str) -> str:
    """The path of a program; without it, the test is left out."""
    return shutil.which(name) or missing(name)
