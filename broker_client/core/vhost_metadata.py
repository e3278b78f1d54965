"""Metadata of a vhost, and the default type of its queues."""

from __future__ import annotations

from broker_client.core.arguments import Arguments
from broker_client.errors import InvalidVHostError
from broker_client.runtime.slotted import slotted

QUEUE_TYPE = "x-queue-type"
CLASSIC, QUORUM = "classic", "quorum"
DEFAULT_QUEUE_TYPES = (CLASSIC, QUORUM)


@slotted
class VHostMetadata:
    """The metadata of a vhost, as RabbitMQ has it."""

    description: str = ""
    tags: tuple[str, ...] = ()
    default_queue_type: str = CLASSIC

    def check(self, vhost: str) -> None:
        """Refuse values that this broker would ignore.

        Raises:
            InvalidVHostError: this broker does not have the default queue type.
        """
        if problem := queue_type_problem(self.default_queue_type):
            raise InvalidVHostError(vhost, [problem])

    def typed(
        self, arguments: Arguments, *, durable: bool, exclusive: bool, auto_delete: bool
    ) -> Arguments:
        """The arguments of a declaration, with the type that it gets where it names none.

        RabbitMQ: the type is written into the arguments, so that the queue keeps it when the
        default changes; a queue that only a classic one can be is classic.
        """
        if self.default_queue_type == CLASSIC or arguments.get(QUEUE_TYPE) is not None:
            return arguments
        only_classic = exclusive or auto_delete or not durable
        return {**arguments, QUEUE_TYPE: CLASSIC if only_classic else self.default_queue_type}


def split_tags(text: str) -> tuple[str, ...]:
    """Tags that are written as one text, with commas between them."""
    return tuple(tag for part in text.split(",") if (tag := part.strip()))


def queue_type_problem(type: str) -> str | None:
    """Why `type` cannot be a default queue type, or None."""
    if type in DEFAULT_QUEUE_TYPES:
        return None
    what = f"default_queue_type {type!r} is not supported"
    if type == "stream":
        return f"{what}: this broker has no streams; choose {' or '.join(DEFAULT_QUEUE_TYPES)}"
    return f"{what}: it is not a queue type; choose {' or '.join(DEFAULT_QUEUE_TYPES)}"
