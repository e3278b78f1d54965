"""Records for a store, and what it restores: the durable half of the core, as plain values.

Records stand among the effects, in the order in which they must be kept. All records of one
command, and of one `take_effects`, are kept together or not at all; so a dead letter and the
message it was made of can never both be lost. What a command leaves to `LongWork` comes later, such
as the messages that a long purge has dropped; those of a long transaction stand between
`TransactionBegun` and `TransactionEnded`.

Named tuples where one is made a message, frozen dataclasses elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple, Protocol, get_args

from broker_client.core.arguments import Arguments
from broker_client.core.vhost_metadata import VHostMetadata
from broker_client.message import Outgoing
from broker_client.runtime.slotted import slotted

COPY_BITS = 16
"""A record id is the number of its message, shifted by this, and the number of the copy."""


def message_number(record_id: int) -> int:
    """The message of which `record_id` is one queue's copy: it need be kept only once."""
    return record_id >> COPY_BITS


class Append(NamedTuple):
    """Keep a persistent message of a durable queue; a confirm that follows waits for it."""

    vhost: str
    queue: str
    record_id: int
    message: Outgoing
    position: int
    priority: int = 0
    expires_at: float | None = None
    due_at: float | None = None
    """When it becomes ready, where it is deferred."""


class Spilled(NamedTuple):
    """Keep a message that memory is too short for, while the node runs; not over a restart.

    The number of its message is below 0. Nothing but `Settled` follows.
    """

    record_id: int
    message: Outgoing


@slotted
class TransactionBegun:
    """What follows is kept only together with all records up to `TransactionEnded`."""


@slotted
class TransactionEnded:
    """The end of what one `TransactionBegun` began; there is never more than one open."""


class Delivered(NamedTuple):
    """The message was delivered for the `attempts`-th time. Need not be committed first."""

    record_id: int
    attempts: int


class Moved(NamedTuple):
    """The message has another place: at `position`, and not before `due_at` if that is set."""

    record_id: int
    position: int
    due_at: float | None


class Settled(NamedTuple):
    """The message of `record_id` has left its queue for good; it must not come back."""

    vhost: str
    queue: str
    record_id: int


@slotted
class VHostAdded:
    """A vhost was created."""

    vhost: str


@slotted
class VHostRemoved:
    """A vhost is gone, and with it all that was in it: of its queues, nothing else is told."""

    vhost: str


@slotted
class VHostLimitsSet:
    """How many connections and queues a vhost may have; the limits before are gone."""

    vhost: str
    limits: Mapping[str, int]


@slotted
class VHostMetadataSet:
    """What describes a vhost; what did so before is gone."""

    vhost: str
    metadata: VHostMetadata


@slotted
class GlobalParameterSet:
    """A parameter of the whole broker was added or changed."""

    name: str
    value: Any


@slotted
class GlobalParameterRemoved:
    """A parameter of the whole broker is gone."""

    name: str


@slotted
class PolicySet:
    """A policy was added or changed."""

    vhost: str
    name: str
    is_operator: bool
    pattern: str
    apply_to: str
    priority: int
    definition: Mapping[str, Any]


@slotted
class PolicyRemoved:
    """A policy is gone."""

    vhost: str
    name: str
    is_operator: bool


@slotted
class ExchangeAdded:
    """A durable exchange was declared."""

    vhost: str
    name: str
    type: str
    auto_delete: bool
    internal: bool
    arguments: Arguments


@slotted
class ExchangeRemoved:
    """A durable exchange is gone, and with it every binding from and to it."""

    vhost: str
    name: str


@slotted
class QueueAdded:
    """A durable, non-exclusive queue was declared."""

    vhost: str
    name: str
    auto_delete: bool
    arguments: Arguments


@slotted
class QueueRemoved:
    """A durable queue is gone, and with it its messages and every binding to it."""

    vhost: str
    name: str


@slotted
class QueuePaused:
    """A durable queue delivers nothing from now on, or delivers again."""

    vhost: str
    name: str
    paused: bool


@slotted
class BindingAdded:
    """Two durable things were bound."""

    vhost: str
    source: str
    kind: str
    """`queue` or `exchange`."""
    destination: str
    binding_key: str
    arguments: Arguments


@slotted
class BindingRemoved:
    """A binding between durable things was taken away while both are still there."""

    vhost: str
    source: str
    kind: str
    destination: str
    binding_key: str
    arguments: Arguments


@slotted
class UserSet:
    """A user was added or changed."""

    name: str
    password_hash: str = field(repr=False)
    """Base64 of salt and digest; empty where no password is right."""
    hashing_algorithm: str
    tags: tuple[str, ...]


@slotted
class UserRemoved:
    """A user is gone, and with it all its permissions."""

    name: str


@slotted
class PermissionsSet:
    """What a user may do in a vhost, as patterns of names."""

    vhost: str
    user: str
    configure: str
    write: str
    read: str


@slotted
class PermissionsRemoved:
    """A user may do nothing in a vhost any more."""

    vhost: str
    user: str


@slotted
class TopicPermissionsSet:
    """What a user may publish to, and bind to, a topic exchange: patterns of routing keys."""

    vhost: str
    user: str
    exchange: str
    write: str
    read: str


@slotted
class TopicPermissionsRemoved:
    """The routing keys of a topic exchange are free for a user again."""

    vhost: str
    user: str
    exchange: str


TopologyRecord = (
    GlobalParameterSet
    | GlobalParameterRemoved
    | VHostAdded
    | VHostRemoved
    | VHostLimitsSet
    | VHostMetadataSet
    | PolicySet
    | PolicyRemoved
    | ExchangeAdded
    | ExchangeRemoved
    | QueueAdded
    | QueueRemoved
    | QueuePaused
    | BindingAdded
    | BindingRemoved
)
AccessRecord = (
    UserSet
    | UserRemoved
    | PermissionsSet
    | PermissionsRemoved
    | TopicPermissionsSet
    | TopicPermissionsRemoved
)
Boundary = TransactionBegun | TransactionEnded
Record = Append | Spilled | Delivered | Moved | Settled | Boundary | TopologyRecord | AccessRecord

RECORDS: frozenset[type[Any]] = frozenset(get_args(Record))
"""The types of `Record`, to sort effects by."""


class StoredEntry(NamedTuple):
    """One queue's copy of a message, as a store gives it back: without the message itself."""

    record_id: int
    position: int
    attempts: int
    priority: int
    size_bytes: int
    """Of the body."""
    expires_at: float | None
    due_at: float | None


class MessageSource(Protocol):
    """Where the core reads messages back that it does not hold in memory."""

    def load(self, record_ids: Sequence[int]) -> Sequence[Outgoing]:
        """The messages of the first of `record_ids`, at least one, in that order.

        How many of them is up to the source, which knows how large they are.

        Raises:
            StoreError: they cannot be read; the engine must not be used after this.
        """
        ...


class Recovered(Protocol):
    """What a store restores at the start: first topology, then users, then entries, queue by
    queue."""

    def restore_topology(self, records: Iterable[TopologyRecord]) -> None:
        """Vhosts, exchanges, queues and bindings, what is needed before what needs it."""
        ...

    def restore_access(self, records: Iterable[AccessRecord]) -> None:
        """Users, then their permissions."""
        ...

    def restore_entries(self, vhost: str, queue: str, entries: Iterable[StoredEntry]) -> None:
        """What `queue` holds, by position."""
        ...
