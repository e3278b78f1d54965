"""Health of a Broker for probes, as frozen snapshots."""

from __future__ import annotations

from dataclasses import field

from broker_client.runtime.slotted import slotted

_REFUSED_FOR_GOOD = 60.0  # seconds; a password that is being changed is refused for a moment


@slotted
class ConnectionHealth:
    """One connection of a vhost."""

    role: str
    """publishing, consuming, or both."""
    url: str
    """Masked."""
    state: str
    """up, down or closed; closed is final."""
    down_for: float = 0.0
    """Seconds since it was lost; 0 while it is up, or has never been."""
    last_error: str = ""
    """Why it is down."""
    blocked: str = ""
    """Why it cannot publish at the moment: the broker blocks it, or all channels are in use."""

    refused_for: float = 0.0
    """Seconds for which the broker has refused every login; 0 if the last one succeeded."""

    @property
    def is_live(self) -> bool:
        """False once the client has given it up, or the broker has refused every login for a
        minute."""
        return self.state != "closed" and self.refused_for < _REFUSED_FOR_GOOD

    @property
    def is_ready(self) -> bool:
        """True while it is up and not blocked."""
        return self.state == "up" and not self.blocked


@slotted
class VhostHealth:
    """One vhost."""

    name: str
    connections: tuple[ConnectionHealth, ...] = ()
    """The existing connections: the one for consumers is opened with the first subscription."""
    problems: tuple[str, ...] = ()
    """What could not be declared; everything else works. This does not affect `ready`, since
    taking the process out of service would not help."""

    @property
    def live(self) -> bool:
        """False once the client has given up a connection, or every login is refused: a restart
        may help."""
        return all(each.is_live for each in self.connections)

    @property
    def ready(self) -> bool:
        """True while messages can be published and consumed."""
        return all(each.is_ready for each in self.connections)


@slotted
class Health:
    """What `Broker.health()` returns."""

    live: bool
    """False if the Broker is closed or has given up, or the store of its built-in broker has
    failed: restart the process."""
    ready: bool
    """True while every vhost is ready."""
    vhosts: dict[str, VhostHealth] = field(default_factory=dict)
