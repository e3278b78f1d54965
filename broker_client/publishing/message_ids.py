"""Ids for messages without one: 128 random bits, as 32 hexadecimal digits.

Random numbers come by a system call, which costs more than all else that is done for an id, so
one call fetches those of many.
"""

from __future__ import annotations

import os

_ID_BYTES = 16
_AT_A_TIME = 256

_unused: list[str] = []
if hasattr(os, "register_at_fork"):  # a child process must not use the ids of its parent
    os.register_at_fork(after_in_child=_unused.clear)


def new_message_id() -> str:
    """A unique id. May be called in any thread."""
    try:
        return _unused.pop()
    except IndexError:
        digits = os.urandom(_ID_BYTES * _AT_A_TIME).hex()
        width = 2 * _ID_BYTES
        ids = [digits[at : at + width] for at in range(0, len(digits), width)]
        _unused.extend(ids[1:])
        return ids[0]
