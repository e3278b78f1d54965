"""Files that others must not read."""

from __future__ import annotations

import os


def for_owner_only(path: str, flags: int) -> int:
    """An opener for `open`: a new file gets mode 0600, since it will hold bodies or secrets."""
    return os.open(path, flags, 0o600)
