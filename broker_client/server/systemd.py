"""Notifies systemd of the service's state (sd_notify(3)), without a library."""

from __future__ import annotations

import os
import socket

from broker_client.server.event_lines import log


def notify(*states: str) -> None:
    """Send ``READY=1``, ``STOPPING=1``, ``STATUS=...``; no effect outside of systemd."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if not where.startswith(("/", "@")):
        return
    address = "\0" + where[1:] if where.startswith("@") else where
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.connect(address)
            sender.sendall("\n".join(states).encode())
    except OSError as error:
        log.warning("cannot notify systemd at %s: %s", where, error.strerror)
