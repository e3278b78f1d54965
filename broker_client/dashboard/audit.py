"""The audit: who did what. The latest entries are in memory, each also in the log."""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import asdict
from typing import Any
from urllib.parse import unquote

from broker_client.runtime.slotted import slotted

log: logging.Logger = logging.getLogger("broker_client.dashboard.audit")

_KEPT = 1000
_LONGEST = 500  # characters of a target

_ACTIONS = (
    ("DELETE", "queues/*/*/contents", "purge", "queue {1} in {0}"),
    ("POST", "queues/*/*/purge", "purge", "queue {1} in {0}"),
    ("POST", "queues/*/*/get", "get messages", "queue {1} in {0}"),
    ("PUT", "queues/*/*/pause", "pause", "queue {1} in {0}"),
    ("PUT", "queues/*/*/resume", "resume", "queue {1} in {0}"),
    ("POST", "queues/*/*/deferred/run", "run deferred", "queue {1} in {0}"),
    ("POST", "queues/*/*/deferred/cancel", "cancel deferred", "queue {1} in {0}"),
    ("PUT", "queues/*/*", "declare", "queue {1} in {0}"),
    ("DELETE", "queues/*/*", "delete", "queue {1} in {0}"),
    ("POST", "exchanges/*/*/publish", "publish", "exchange {1} in {0}"),
    ("PUT", "exchanges/*/*", "declare", "exchange {1} in {0}"),
    ("DELETE", "exchanges/*/*", "delete", "exchange {1} in {0}"),
    ("POST", "bindings/*/e/*/q/*", "bind", "exchange {1} to queue {2} in {0}"),
    ("POST", "bindings/*/e/*/e/*", "bind", "exchange {1} to exchange {2} in {0}"),
    ("DELETE", "bindings/*/e/*/q/*/*", "unbind", "exchange {1} from queue {2} in {0}"),
    ("DELETE", "bindings/*/e/*/e/*/*", "unbind", "exchange {1} from exchange {2} in {0}"),
    ("DELETE", "connections/*", "close", "connection {0}"),
    ("PUT", "users/*", "put", "user {0}"),
    ("DELETE", "users/*", "delete", "user {0}"),
    ("PUT", "permissions/*/*", "set permissions", "user {1} in {0}"),
    ("DELETE", "permissions/*/*", "clear permissions", "user {1} in {0}"),
    ("PUT", "policies/*/*", "put", "policy {1} in {0}"),
    ("DELETE", "policies/*/*", "delete", "policy {1} in {0}"),
    ("PUT", "vhosts/*", "put", "vhost {0}"),
    ("DELETE", "vhosts/*", "delete", "vhost {0}"),
    ("PUT", "vhost-limits/*/*", "set limit", "{1} of vhost {0}"),
    ("DELETE", "vhost-limits/*/*", "clear limit", "{1} of vhost {0}"),
    ("POST", "definitions", "import", "definitions"),
)
"""Method and path below /api: the action, and its target with the names of the path."""


@slotted
class AuditEntry:
    """One thing that was done, or refused."""

    time: float
    """Seconds since the epoch."""
    user: str
    address: str
    action: str
    target: str
    outcome: int
    """HTTP's status."""
    detail: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Audit:
    """The latest entries, newest last."""

    def __init__(self) -> None:
        self._entries: deque[AuditEntry] = deque(maxlen=_KEPT)
        self._written = 0

    @property
    def written(self) -> int:
        """Entries since the start."""
        return self._written

    def record(
        self, user: str, address: str, action: str, target: str, outcome: int, detail: str = ""
    ) -> None:
        """Keep an entry, and log it."""
        target = target[:_LONGEST]
        self._entries.append(
            AuditEntry(time.time(), user, address, action, target, outcome, detail)
        )
        self._written += 1
        log.info("user %r from %s: %s %r: %d %s", user, address, action, target, outcome, detail)

    def since(self, written: int) -> list[AuditEntry]:
        """Those kept that came after the first `written`, oldest first."""
        new = min(self._written - written, len(self._entries))
        return list(self._entries)[len(self._entries) - new :] if new > 0 else []

    def latest(self, most: int, user: str | None = None) -> list[AuditEntry]:
        """Newest first; of one user, or of all."""
        found = [each for each in reversed(self._entries) if user in (None, each.user)]
        return found[:most]


def described(method: str, path: str) -> tuple[str, str]:
    """Action and target of a request below ``/api/``."""
    parts = path.split("/")
    for known, pattern, action, target in _ACTIONS:
        wanted = pattern.split("/")
        if method == known and len(wanted) == len(parts):
            pairs = list(zip(wanted, parts, strict=True))
            if all(want in ("*", part) for want, part in pairs):
                names = [unquote(part) for want, part in pairs if want == "*"]
                return action, target.format(*names)
    return method, unquote(path)
