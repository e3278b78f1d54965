"""The version of the installed package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from broker_client.errors import DISTRIBUTION


def package_version() -> str:
    """Version of the installed package; ``unknown`` when run from a bare checkout."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"
