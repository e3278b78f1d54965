"""What operators set beside AMQP: vhosts, their limits and metadata, policies, parameters.

Each change counts at once, and is kept with the next commit of the node's store; `Node.drain`
waits for it. Users and permissions are in `access_control`.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from broker_client.core.engine import Engine
from broker_client.core.global_parameters import INTERNAL_CLUSTER_ID
from broker_client.core.policies import Policy
from broker_client.core.vhost_metadata import CLASSIC, VHostMetadata
from broker_client.node.effect_runner import EffectRunner
from broker_client.runtime.clock import Clock


class Administration:
    """Asks for and changes what an operator sets on a node."""

    def __init__(self, engine: Engine, runner: EffectRunner, clock: Clock) -> None:
        """
        Args:
            engine: of the node.
            runner: carries out what a change brings about, and closes connections.
            clock: the time of the node.
        """
        self._engine, self._runner, self._clock = engine, runner, clock

    def __repr__(self) -> str:
        return f"<Administration vhosts={len(self._engine.state.vhosts)}>"

    # ---------------------------------------------------------------- vhosts

    @property
    def vhosts(self) -> tuple[str, ...]:
        """Names of all vhosts, in order."""
        return tuple(sorted(self._engine.state.vhosts))

    def has_vhost(self, name: str) -> bool:
        """True if there is a vhost of that name."""
        return name in self._engine.state.vhosts

    def add_vhost(self, name: str) -> bool:
        """Create a vhost; returns False if there is one of that name.

        Raises:
            ReplyError: 406 for a name of more than 255 bytes.
        """
        self._runner.wake()
        return self._engine.add_vhost(name)

    def delete_vhost(self, name: str) -> bool:
        """Delete a vhost with everything in it, and close its connections (320).

        Returns:
            False where there is none.
        """
        if not self.has_vhost(name):
            return False
        self._runner.close_connections(
            320,
            f"CONNECTION_FORCED - vhost '{name}' is deleted",
            self._engine.connections_to(name),
        )
        self._engine.delete_vhost(name)
        self._runner.wake()
        return True

    def vhost_metadata(self, name: str) -> VHostMetadata:
        """Description, tags and default queue type of a vhost.

        Raises:
            ReplyError: 530 where there is no such vhost.
        """
        return self._engine.vhost_metadata(name)

    def set_vhost_metadata(
        self,
        name: str,
        *,
        description: str = "",
        tags: Sequence[str] = (),
        default_queue_type: str = CLASSIC,
    ) -> None:
        """Replace the metadata of a vhost; values that are not given are reset.

        Args:
            name: of the vhost.
            description: for people.
            tags: for people.
            default_queue_type: ``classic`` or ``quorum``, for queues that are declared without
                `x-queue-type` from now on. RabbitMQ: those that are exclusive, deleted
                automatically or not durable are classic.

        Raises:
            InvalidVHostError: there is no such queue type; nothing is changed.
            ReplyError: 530 where there is no such vhost.
        """
        self._runner.wake()
        metadata = VHostMetadata(description, tuple(tags), default_queue_type)
        self._engine.set_vhost_metadata(name, metadata)

    # ---------------------------------------------------------------- global parameters

    def global_parameters(self) -> dict[str, Any]:
        """Parameters of the whole broker, by name."""
        return dict(self._engine.state.global_parameters)

    def set_global_parameter(self, name: str, value: Any) -> None:
        """Set a parameter of the broker, or replace its value.

        Args:
            name: of the parameter. The broker itself reads ``cluster_name``, a text, which the
                management API shows.
            value: anything that JSON can have.

        Raises:
            InvalidParameterError: JSON has no such value, or the name is empty or too long.
        """
        self._runner.wake()
        self._engine.state.global_parameters.set(name, value)

    def add_cluster_id(self) -> bool:
        """Give the broker an id of its own, unless it has one; returns whether it is new.

        RabbitMQ: the global parameter ``internal_cluster_id``, made at the first start and kept.
        """
        if INTERNAL_CLUSTER_ID in self._engine.state.global_parameters:
            return False
        unique = urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
        self.set_global_parameter(INTERNAL_CLUSTER_ID, f"rabbitmq-cluster-id-{unique}")
        return True

    def delete_global_parameter(self, name: str) -> bool:
        """Delete a parameter; returns False if there is none of that name."""
        self._runner.wake()
        return self._engine.state.global_parameters.delete(name)

    # ---------------------------------------------------------------- policies
    #
    # Each raises ReplyError 530 where there is no vhost of that name.

    def set_policy(
        self,
        name: str,
        pattern: str,
        definition: Mapping[str, Any],
        *,
        vhost: str = "/",
        priority: int = 0,
        apply_to: str = "all",
        is_operator: bool = False,
    ) -> None:
        """Add a policy, or replace the one of its name; it counts at once.

        Where it changes many queues, the last of them follow in the next turns of the event loop;
        `drain` waits for all.

        Args:
            name: of the policy.
            pattern: a regular expression, found anywhere in the name of a queue or exchange unless
                it is anchored. Any but ``.*`` needs the extra ``server``.
            definition: what holds, as in RabbitMQ: `core.policies.KEYS`; times in milliseconds.
            vhost: where.
            priority: of all that match, the policy with the highest one applies.
            apply_to: `core.policies.APPLY_TO`.
            is_operator: it limits what policies and arguments may ask for; it applies besides.

        Raises:
            InvalidPolicyError: it cannot be as given; nothing is changed.
        """
        policy = Policy(vhost, name, pattern, dict(definition), priority, apply_to, is_operator)
        self._runner.wake()
        self._engine.policies.set_policy(policy, self._clock.now())

    def delete_policy(self, name: str, *, vhost: str = "/", is_operator: bool = False) -> bool:
        """Delete a policy; returns False where there is none of that name."""
        self._runner.wake()
        return self._engine.policies.delete_policy(
            vhost, name, self._clock.now(), is_operator=is_operator
        )

    def policies(self, vhost: str | None = None) -> tuple[Policy, ...]:
        """The policies of a vhost, or of all."""
        return self._engine.policies.policies(vhost)

    def vhost_limits(self, vhost: str) -> dict[str, int]:
        """How many connections (`max-connections`) and queues (`max-queues`) a vhost may have."""
        return self._engine.policies.limits(vhost)

    def set_vhost_limits(self, vhost: str, limits: Mapping[str, int]) -> None:
        """Replace the limits of a vhost; below 0 is no limit, and what is there already stays.

        Raises:
            InvalidPolicyError: a limit is unknown, or not a whole number.
        """
        self._runner.wake()
        self._engine.policies.set_limits(vhost, limits)
