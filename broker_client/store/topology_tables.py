"""What was declared, in a file: statements that write it, and how it is read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import asdict

from broker_client.amqp.table_decoding import decode_arguments
from broker_client.amqp.tables import encode_arguments
from broker_client.core.records import (
    BindingAdded,
    BindingRemoved,
    ExchangeAdded,
    ExchangeRemoved,
    GlobalParameterRemoved,
    GlobalParameterSet,
    PolicyRemoved,
    PolicySet,
    QueueAdded,
    QueuePaused,
    QueueRemoved,
    TopologyRecord,
    VHostAdded,
    VHostLimitsSet,
    VHostMetadataSet,
    VHostRemoved,
)
from broker_client.core.vhost_metadata import VHostMetadata
from broker_client.errors import StoreCorruptError
from broker_client.store.tables import TOPOLOGY, Statement, put, summed_rows


def topology_statements(record: TopologyRecord, queue_id: int) -> Iterator[Statement]:
    """What `record` changes; `queue_id` is the number of the queue it is about, if of one."""
    match record:
        case GlobalParameterSet(name, value):
            yield put("global_parameters", name, json.dumps(value))
        case GlobalParameterRemoved(name):
            yield "DELETE FROM global_parameters WHERE name = ?", (name,)
        case VHostAdded(vhost):
            yield put("vhosts", vhost)
        case VHostRemoved(vhost):
            yield "DELETE FROM vhosts WHERE name = ?", (vhost,)
            yield _RESUME_ALL, (vhost,)
            for table in _OF_VHOST:
                yield f"DELETE FROM {table} WHERE vhost = ?", (vhost,)  # noqa: S608 - our own words
        case VHostLimitsSet(vhost, limits):
            yield put("vhost_limits", vhost, json.dumps(dict(limits)))
        case VHostMetadataSet(vhost, metadata):
            yield put("vhost_metadata", vhost, json.dumps(asdict(metadata)))
        case PolicySet(vhost, name, is_operator, pattern, apply_to, priority, definition):
            text = json.dumps(dict(definition))
            yield put("policies", vhost, name, int(is_operator), pattern, apply_to, priority, text)
        case PolicyRemoved(vhost, name, is_operator):
            yield (
                "DELETE FROM policies WHERE vhost = ? AND name = ? AND is_operator = ?",
                (vhost, name, int(is_operator)),
            )
        case ExchangeAdded(vhost, name, type, auto_delete, internal, arguments):
            encoded = encode_arguments(arguments)
            yield put("exchanges", vhost, name, type, int(auto_delete), int(internal), encoded)
        case ExchangeRemoved(vhost, name):
            yield "DELETE FROM exchanges WHERE vhost = ? AND name = ?", (vhost, name)
            yield "DELETE FROM bindings WHERE vhost = ? AND source = ?", (vhost, name)
            yield _UNBIND_DESTINATION, (vhost, "exchange", name)
        case QueueAdded(vhost, name, auto_delete, arguments):
            encoded = encode_arguments(arguments)
            yield put("queues", queue_id, vhost, name, int(auto_delete), encoded, or_else="")
        case QueueRemoved(vhost, name):
            yield "DELETE FROM queues WHERE id = ?", (queue_id,)
            yield "DELETE FROM paused WHERE queue_id = ?", (queue_id,)
            yield _UNBIND_DESTINATION, (vhost, "queue", name)
        case QueuePaused(paused=True):
            yield put("paused", queue_id)
        case QueuePaused():
            yield "DELETE FROM paused WHERE queue_id = ?", (queue_id,)
        case BindingAdded(vhost, source, kind, destination, key, arguments):
            encoded = encode_arguments(arguments)
            yield put("bindings", vhost, source, kind, destination, key, encoded)
        case BindingRemoved(vhost, source, kind, destination, key, arguments):
            yield _UNBIND, (vhost, source, kind, destination, key, encode_arguments(arguments))


_OF_VHOST = ("vhost_limits", "vhost_metadata", "policies", "exchanges", "bindings", "queues")
_RESUME_ALL = "DELETE FROM paused WHERE queue_id IN (SELECT id FROM queues WHERE vhost = ?)"
_UNBIND = (
    "DELETE FROM bindings WHERE vhost = ? AND source = ? AND kind = ? AND destination = ? "
    "AND binding_key = ? AND arguments = ?"
)
_UNBIND_DESTINATION = "DELETE FROM bindings WHERE vhost = ? AND kind = ? AND destination = ?"


def read_topology(connection: sqlite3.Connection, path: str) -> Iterator[TopologyRecord]:
    """Everything that was declared, what is needed before what needs it.

    Raises:
        StoreCorruptError: a row is damaged.
    """
    names: dict[int, tuple[str, str]] = {}
    for table in TOPOLOGY:
        for row, sound in summed_rows(connection, table):
            if not sound:
                raise StoreCorruptError(path, f"a row of {table} is damaged")
            match table:
                case "global_parameters":
                    yield GlobalParameterSet(row[0], json.loads(row[1]))
                case "vhosts":
                    yield VHostAdded(*row)
                case "vhost_limits":
                    yield VHostLimitsSet(row[0], json.loads(row[1]))
                case "vhost_metadata":
                    values = json.loads(row[1])
                    values["tags"] = tuple(values["tags"])
                    yield VHostMetadataSet(row[0], VHostMetadata(**values))
                case "policies":
                    vhost, name, is_operator, pattern, apply_to, priority, text = row
                    definition = json.loads(text)
                    yield PolicySet(
                        vhost, name, bool(is_operator), pattern, apply_to, priority, definition
                    )
                case "exchanges":
                    vhost, name, type, auto_delete, internal, raw = row
                    arguments = decode_arguments(raw)
                    yield ExchangeAdded(
                        vhost, name, type, bool(auto_delete), bool(internal), arguments
                    )
                case "queues":
                    id, vhost, name, auto_delete, raw = row
                    names[id] = vhost, name
                    yield QueueAdded(vhost, name, bool(auto_delete), decode_arguments(raw))
                case "paused":
                    if row[0] not in names:
                        raise StoreCorruptError(path, f"an unknown queue {row[0]} is paused")
                    yield QueuePaused(*names[row[0]], True)
                case "bindings":
                    vhost, source, kind, destination, key, raw = row
                    arguments = decode_arguments(raw)
                    yield BindingAdded(vhost, source, kind, destination, key, arguments)
