"""Makes nodes as a configuration asks for them."""

from __future__ import annotations

import socket
from pathlib import Path

from broker_client.config.node import EventLogConfig, NodeConfig
from broker_client.core.scan import ScanSettings
from broker_client.core.settings import EngineSettings
from broker_client.events.log import EventLog
from broker_client.node.node import Node
from broker_client.runtime.clock import Clock
from broker_client.store.base import Store

_VERSIONS = {"3.10": (3, 10), "4.3": (4, 3)}


def make_node(
    name: str,
    *,
    durable: bool = False,
    clock: Clock | None = None,
    settings: EngineSettings | None = None,
    scan: ScanSettings | None = None,
    event_log: EventLogConfig | None = None,
) -> Node:
    """A node that is yet to be recovered.

    Args:
        name: of the node; where `durable`, the path of its file.
        durable: it has a file.
        clock: its time source.
        settings: its limits.
        scan: how it looks for what is due.
        event_log: where it writes what happens to each message.
    """
    log = None
    if event_log is not None and event_log.path is not None:
        log = EventLog(
            event_log.path,
            (Path(name).stem if durable else name) or socket.gethostname(),
            max_bytes=event_log.max_bytes,
            max_age=event_log.max_age,
            buffer=event_log.buffer,
        )
    store: Store | None = None
    if durable:
        from broker_client.store.writer import SqliteStore  # a node in memory needs no SQLite

        store = SqliteStore(name, clock)
    return Node(name, store=store, clock=clock, settings=settings, scan=scan, event_log=log)


def engine_settings(config: NodeConfig) -> EngineSettings:
    """The limits that a configuration sets."""
    return EngineSettings(
        message_timeout=config.message_timeout,
        max_message_timeout=config.max_message_timeout,
        max_requeue_timeout=config.max_requeue_timeout,
        max_publish_delay=config.max_publish_delay,
        max_message_size=config.max_message_size,
        memory_limit=config.memory_limit,
        memory_high_watermark=config.memory_high_watermark,
        compatibility=_VERSIONS[config.compatibility],
    )


def scan_settings(config: NodeConfig) -> ScanSettings:
    """The settings of the scan loop that a configuration sets."""
    return ScanSettings(**dict(config.scan))
