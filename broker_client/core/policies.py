"""Policies: settings for all queues and exchanges whose names match, without declaring them again.

As in RabbitMQ (https://www.rabbitmq.com/docs/policies): of the policies that match, the one of the
highest priority applies, and no other. An operator policy applies besides; where both set a key,
the lower number holds. The arguments of a declaration come in last: the lower number of limits and
times holds, and of anything else the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any

from broker_client.core.access_pattern import AccessPattern
from broker_client.core.arguments import (
    DROP_HEAD,
    LONGEST_EXPIRATION,
    REJECT_PUBLISH,
    REJECT_PUBLISH_DLX,
    Arguments,
)
from broker_client.core.names import MAX_NAME_BYTES, name_problem
from broker_client.core.records import PolicyRemoved, PolicySet
from broker_client.core.settings import RabbitMQVersion
from broker_client.errors import InvalidPolicyError, UsageError
from broker_client.runtime.slotted import slotted

ALL = "all"
EXCHANGES = "exchanges"
QUEUE_KINDS: Mapping[str, str | None] = {
    "queues": None,
    "classic_queues": "classic",
    "quorum_queues": "quorum",
    "streams": "stream",
}
"""What `apply_to` may say of queues, and the type that each is for."""
APPLY_TO = (ALL, EXCHANGES, *QUEUE_KINDS)
ALTERNATE_EXCHANGE = "alternate-exchange"
_DEAD_LETTER_EXCHANGE = "x-dead-letter-exchange"
_DEAD_LETTER_ROUTING_KEY = "x-dead-letter-routing-key"


def _is_number(least: int, most: int | None = None) -> Callable[[Any], bool]:
    def is_right(value: Any) -> bool:
        return (
            isinstance(value, int)
            and not isinstance(value, bool)
            and value >= least
            and (most is None or value <= most)
        )

    return is_right


_is_priority = _is_number(-(1 << 63), (1 << 63) - 1)  # that a file can keep


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and name_problem(value) is None


def _is_overflow(value: Any) -> bool:
    return value in (DROP_HEAD, REJECT_PUBLISH, REJECT_PUBLISH_DLX)


KEYS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "message-ttl": (_is_number(0, LONGEST_EXPIRATION), "message TTL"),
    "expires": (_is_number(1, LONGEST_EXPIRATION), "queue expiry"),
    "max-length": (_is_number(0), "maximum length"),
    "max-length-bytes": (_is_number(0), "maximum length in bytes"),
    "delivery-limit": (_is_number(-1), "delivery limit"),
    "consumer-timeout": (_is_number(0), "consumer timeout"),
    "overflow": (_is_overflow, "overflow value"),
    "dead-letter-exchange": (_is_name, "dead letter exchange name"),
    "dead-letter-routing-key": (_is_name, "dead letter routing key"),
    ALTERNATE_EXCHANGE: (_is_name, "alternate exchange name"),
}
"""The keys of a definition that have an effect, what their values must be, and RabbitMQ's word."""
OPERATOR_KEYS = frozenset(
    ("message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit", "overflow")
)
_SMALLER = frozenset(
    (
        "message-ttl",
        "expires",
        "max-length",
        "max-length-bytes",
        "delivery-limit",
        "consumer-timeout",
    )
)
"""Keys of which the lower number holds, where several say one."""
WITHOUT_EFFECT = frozenset(
    (
        "dead-letter-strategy",
        "federation-upstream",
        "federation-upstream-pattern",
        "federation-upstream-set",
        "ha-mode",
        "ha-params",
        "ha-promote-on-failure",
        "ha-promote-on-shutdown",
        "ha-sync-batch-size",
        "ha-sync-mode",
        "initial-cluster-size",
        "max-age",
        "max-in-memory-bytes",
        "max-in-memory-length",
        "queue-leader-locator",
        "queue-master-locator",
        "queue-mode",
        "queue-version",
        "stream-filter-size-bytes",
        "stream-max-segment-size-bytes",
        "target-group-size",
    )
)
"""Keys of RabbitMQ that are kept, and change nothing here."""


@slotted
class Policy:
    """One policy of a vhost."""

    vhost: str
    name: str
    pattern: str
    """A regular expression, found anywhere in a name unless it is anchored."""
    definition: Mapping[str, Any]
    priority: int = 0
    apply_to: str = ALL
    is_operator: bool = False
    """An operator's: it limits what a user's policy and arguments may ask for."""

    @property
    def without_effect(self) -> tuple[str, ...]:
        """The keys of its definition that change nothing here."""
        return tuple(key for key in self.definition if key not in KEYS)

    def problems(self) -> list[str]:
        """Problems with it, in RabbitMQ's words where it has some."""
        found = []
        if not self.name:
            found.append(f"the name has 0 bytes; 1 to {MAX_NAME_BYTES} are allowed")
        if problem := name_problem(self.name):
            found.append(f"the name {problem}")
        try:
            _compiled(self.pattern).check()
        except UsageError as error:
            found.append(str(error))
        if self.apply_to not in APPLY_TO:
            choice = ", ".join(map(repr, APPLY_TO))
            found.append(f"apply-to {self.apply_to!r} unrecognised; should be one of {choice}")
        if not _is_priority(self.priority):
            found.append(f"priority should be a number, actually was {self.priority!r}")
        if not self.definition:
            found.append("no policy provided: the definition is empty")
        for key, value in self.definition.items():
            if key in WITHOUT_EFFECT:
                continue
            if key not in KEYS or (self.is_operator and key not in OPERATOR_KEYS):
                known = ", ".join(sorted(OPERATOR_KEYS if self.is_operator else KEYS))
                found.append(f"{key!r} is not a recognised policy setting; there are {known}")
                continue
            is_right, word = KEYS[key]
            if not is_right(value):
                found.append(f"{value!r} is not a valid {word} ({key})")
        return found


@slotted
class EffectivePolicy:
    """The policy settings of one queue or exchange."""

    policy: str | None = None
    """Name of the policy that applies."""
    operator_policy: str | None = None
    """Name of the operator policy that applies."""
    definition: Mapping[str, Any] = field(default_factory=dict)
    """Both, merged."""


NO_POLICY = EffectivePolicy()


def _compiled(pattern: str) -> AccessPattern:
    # RabbitMQ: an empty pattern of a policy matches every name, that of a permission none.
    return AccessPattern(pattern or ".*")


class Policies:
    """The policies of one vhost, and which of them apply to what."""

    __slots__ = ("_note", "_policies", "_vhost")

    def __init__(self, vhost: str, note: Callable[[PolicySet | PolicyRemoved], None]) -> None:
        """
        Args:
            vhost: name of the vhost.
            note: takes a record of every change.
        """
        self._vhost, self._note = vhost, note
        self._policies: dict[tuple[bool, str], tuple[Policy, AccessPattern]] = {}
        """By whether it is an operator's, and name; in the order in which they are tried."""

    def __iter__(self) -> Iterator[Policy]:
        """Every policy: the users' first, each kind from the highest priority down."""
        return (policy for policy, _ in self._policies.values())

    def __len__(self) -> int:
        return len(self._policies)

    def set(self, policy: Policy) -> None:
        """Add a policy, or replace the one of its name.

        Raises:
            InvalidPolicyError: it cannot be as given; nothing is changed.
        """
        assert policy.vhost == self._vhost, "a policy belongs to one vhost"
        if problems := policy.problems():
            raise InvalidPolicyError(policy.name, policy.vhost, problems)
        self.restore(policy)
        self._note(
            PolicySet(
                policy.vhost,
                policy.name,
                policy.is_operator,
                policy.pattern,
                policy.apply_to,
                policy.priority,
                policy.definition,
            )
        )

    def restore(self, policy: Policy) -> None:
        """Add a policy that a store has kept, or replace the one of its name."""
        self._policies[policy.is_operator, policy.name] = policy, _compiled(policy.pattern)
        ordered = sorted(self._policies.items(), key=lambda item: _rank(item[1][0]))
        self._policies = dict(ordered)

    def delete(self, name: str, *, is_operator: bool = False) -> bool:
        """Remove a policy; returns False where there is none of that name."""
        if self._policies.pop((is_operator, name), None) is None:
            return False
        self._note(PolicyRemoved(self._vhost, name, is_operator))
        return True

    def of_queue(self, name: str, type: str) -> EffectivePolicy:
        """The policy settings of the queue `name` of this type (`classic`, `quorum`)."""
        return self._effective(
            name, lambda to: to == ALL or QUEUE_KINDS.get(to, "") in (None, type)
        )

    def of_exchange(self, name: str) -> EffectivePolicy:
        """The policy settings of the exchange `name`."""
        return self._effective(name, lambda to: to in (ALL, EXCHANGES))

    def _effective(self, name: str, is_for: Callable[[str], bool]) -> EffectivePolicy:
        if not self._policies:
            return NO_POLICY
        chosen: dict[bool, Policy] = {}
        for each, pattern in self._policies.values():
            if each.is_operator not in chosen and is_for(each.apply_to) and pattern.matches(name):
                chosen[each.is_operator] = each
        policy, operator = chosen.get(False), chosen.get(True)
        merged = dict(policy.definition) if policy is not None else {}
        for key, value in (operator.definition if operator is not None else {}).items():
            merged[key] = _lower(key, value, merged[key]) if key in merged else value
        return EffectivePolicy(
            policy.name if policy is not None else None,
            operator.name if operator is not None else None,
            merged,
        )


def _rank(policy: Policy) -> tuple[bool, int, str]:
    # RabbitMQ leaves open which of two of the same priority applies; here the order of the names.
    return policy.is_operator, -policy.priority, policy.name


def _lower(key: str, value: Any, other: Any) -> Any:
    """The effective one of two values of `key`: the lower number, else the first."""
    if key not in _SMALLER:
        return value
    if key == "delivery-limit" and min(value, other) < 0:
        return max(value, other)  # RabbitMQ 4: below 0 is no limit
    return min(value, other)


def with_policy(
    arguments: Arguments, definition: Mapping[str, Any], type: str, version: RabbitMQVersion
) -> Arguments:
    """The arguments that a queue would have to be declared with to behave as it does under a
    policy.

    Args:
        arguments: of the queue.
        definition: of the policy.
        type: of the queue.
        version: the RabbitMQ that is followed.
    """
    merged = dict(arguments)
    for key, value in definition.items():
        argument = f"x-{key}"
        if key not in KEYS or key == ALTERNATE_EXCHANGE:
            continue
        if key == "delivery-limit" and type != "quorum":
            continue  # RabbitMQ: of quorum queues only
        if key == "consumer-timeout" and (not value or (type != "quorum" and version >= (4, 3))):
            continue  # RabbitMQ 4.3: of quorum queues only
        own = merged.get(argument)
        merged[argument] = value if own is None else _lower(key, own, value)
    if _DEAD_LETTER_EXCHANGE not in merged:
        merged.pop(_DEAD_LETTER_ROUTING_KEY, None)  # RabbitMQ: no error, where a policy says so
    return merged
