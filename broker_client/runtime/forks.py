"""How many forks lie between this process and the one that the program began in.

What belongs to one process remembers the number, and so notices that it was copied into another;
to ask for the id of the process would be a system call each time.
"""

from __future__ import annotations

import os

count: int = 0


def _forked() -> None:
    global count
    count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
