"""Commands that set policies and limits, which also apply to existing objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from broker_client.core.policies import Policy
from broker_client.core.replies import vhost_not_found
from broker_client.core.state import State
from broker_client.core.transitions import Transitions, cost_so_far
from broker_client.core.virtual_host import MAX_CONNECTIONS, MAX_QUEUES, VirtualHost
from broker_client.errors import InvalidPolicyError

_LOOK = 3
_CHANGE = 10
"""What it costs to look whether a policy changes a queue, and to change it; see `LongWork`."""
LIMITS = (MAX_CONNECTIONS, MAX_QUEUES)


class PolicyCommands:
    """Set and delete policies and the limits of vhosts.

    Every command raises `ReplyError` 530 where there is no such vhost.
    """

    def __init__(self, state: State, transitions: Transitions) -> None:
        self._state, self._transitions = state, transitions

    def policies(self, vhost: str | None = None) -> tuple[Policy, ...]:
        """The policies of a vhost, or of all by name: first those of users, each kind from the
        highest priority down."""
        if vhost is not None:
            return tuple(self._vhost(vhost).policies)
        vhosts = sorted(self._state.vhosts.items())
        return tuple(policy for _, each in vhosts for policy in each.policies)

    def set_policy(self, policy: Policy, now: float) -> None:
        """Add a policy, or replace the one of its name.

        Raises:
            InvalidPolicyError: it cannot be as given; nothing is changed.
        """
        vhost = self._vhost(policy.vhost)
        vhost.policies.set(policy)
        self._state.long_work.begin(self._apply(vhost), now)

    def delete_policy(self, vhost: str, name: str, now: float, *, is_operator: bool) -> bool:
        """Delete a policy; returns False where there is none of that name."""
        owner = self._vhost(vhost)
        if not owner.policies.delete(name, is_operator=is_operator):
            return False
        self._state.long_work.begin(self._apply(owner), now)
        return True

    def limits(self, vhost: str) -> dict[str, int]:
        """The limits of a vhost."""
        return dict(self._vhost(vhost).limits)

    def set_limits(self, vhost: str, limits: Mapping[str, int]) -> None:
        """Replace the limits of a vhost; what is there already stays.

        Raises:
            InvalidPolicyError: a name is not in `LIMITS`, or a value is not a whole number.
        """
        if problems := limit_problems(limits):
            raise InvalidPolicyError("limits", vhost, problems)
        self._vhost(vhost).set_limits(limits)

    def _apply(self, vhost: VirtualHost) -> Iterator[int]:
        """Have everything in `vhost` do as its policies say when its turn comes.

        What is declared meanwhile does from its start.
        """
        queues = list(vhost.queues.values())
        for exchange in list(vhost.exchanges.values()):
            vhost.apply_policy(exchange)
            yield _LOOK
        for queue in queues:
            if queue.deleted:
                continue
            before = queue.policy
            queue.policy = vhost.policies.of_queue(queue.name, queue.type)
            if queue.policy.definition != before.definition:
                cost = cost_so_far(queue)
                self._transitions.reconfigure(
                    queue, vhost.settings_of(queue), self._state.long_work.now
                )
                yield _CHANGE + cost_so_far(queue) - cost
            else:
                yield _LOOK

    def _vhost(self, name: str) -> VirtualHost:
        vhost = self._state.vhosts.get(name)
        if vhost is None:
            raise vhost_not_found(name)
        return vhost


def limit_problems(limits: Mapping[str, object]) -> list[str]:
    """Problems with the limits of a vhost; empty if there are none."""
    return [
        f"{name!r} is not a limit; there are {', '.join(LIMITS)}"
        if name not in LIMITS
        else f"{name} should be a number, actually was {value!r}"
        for name, value in limits.items()
        if name not in LIMITS or not isinstance(value, int) or isinstance(value, bool)
    ]
