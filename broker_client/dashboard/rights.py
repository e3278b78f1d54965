"""The permissions of a user for queues and exchanges, as far as an API reports them.

The broker decides; this only spares people controls that it would refuse. What is not known counts
as permitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from broker_client.core.access import DEFAULT_EXCHANGE
from broker_client.core.access_pattern import AccessPattern

_KINDS = ("configure", "write", "read")
_NO_NAME = ("", "^$")
"""Patterns that no queue's name matches."""


class Rights:
    """The permissions of one user, by vhost."""

    def __init__(
        self,
        permissions: Iterable[Mapping[str, Any]] | None = None,
        granted_elsewhere: Iterable[str] = (),
    ) -> None:
        """
        Args:
            permissions: as an API lists them; None where it does not tell.
            granted_elsewhere: vhosts that the user may use though no permissions are listed: the
                broker has them from another source, such as LDAP.
        """
        self._patterns: dict[str, dict[str, AccessPattern]] | None = None
        if permissions is not None:
            self._patterns = {
                str(each["vhost"]): {kind: AccessPattern(str(each[kind])) for kind in _KINDS}
                for each in permissions
            }
        self._elsewhere = frozenset(granted_elsewhere)

    def may(self, kind: str, vhost: str, name: str) -> bool:
        """True unless the user is known to lack a permission.

        Args:
            kind: `configure`, `write` or `read`.
            vhost: name of the vhost.
            name: of the queue or exchange.
        """
        if self._patterns is None:
            return True
        patterns = self._patterns.get(vhost)
        if patterns is None:
            return vhost in self._elsewhere
        pattern = patterns[kind]
        return pattern.matches(name) or pattern.problem is not None

    def lacking_for_queue(self, vhost: str, queue: str) -> list[str]:
        """Permissions that the user lacks: `configure` and `read` for the queue, and `publish` for
        the default exchange, by which a queue is published to."""
        lacking = [kind for kind in ("configure", "read") if not self.may(kind, vhost, queue)]
        return [*lacking, *self.lacking_for_exchange(vhost, DEFAULT_EXCHANGE)]

    def lacking_for_exchange(self, vhost: str, exchange: str) -> list[str]:
        """`publish`, where the user may not publish to an exchange."""
        return [] if self.may("write", vhost, exchange or DEFAULT_EXCHANGE) else ["publish"]

    def may_declare_in(self, vhost: str) -> bool:
        """True unless the user is known to lack the permission to declare any queue in a vhost."""
        if self._patterns is None or vhost not in self._patterns:
            return self._patterns is None or vhost in self._elsewhere
        return self._patterns[vhost]["configure"].text not in _NO_NAME
