"""What policies have made of a queue."""

from __future__ import annotations

from broker_client.core.policies import EffectivePolicy
from broker_client.node.node import Node


def effective_policy(node: Node, queue: str, vhost: str = "/") -> EffectivePolicy:
    """The policy settings of a queue, in addition to its arguments."""
    [found] = [each for each in node.view.queues() if (each.vhost, each.name) == (vhost, queue)]
    return found.policy
