"""What an import is going to do, and what is wrong with its file."""

from __future__ import annotations

from collections.abc import Callable

from broker_client.core.replies import vhost_not_found
from broker_client.core.settings import RabbitMQVersion
from broker_client.core.vhost_metadata import VHostMetadata
from broker_client.core.virtual_host import VirtualHost, check_short
from broker_client.errors import ReplyError
from broker_client.node.definitions.items import Item
from broker_client.node.node import Node


class Plan:
    """Problems, notes, and the steps that import; and what there will be after them."""

    def __init__(self, node: Node, vhost: str | None) -> None:
        self.node: Node = node
        self.vhost: str | None = vhost
        self.goes_into: str | None = None
        """Where everything goes, from a file of one vhost."""
        self.version: RabbitMQVersion = node.engine.state.settings.compatibility
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.steps: list[Callable[[], object]] = []
        self.counts: dict[str, int] = {}
        self.vhosts: set[str] = set(node.administration.vhosts)
        self.users: set[str] = {user.name for user in node.access.users}
        self.queues: set[tuple[str, str]] = set()
        self.exchanges: dict[tuple[str, str], str | None] = {}
        """By vhost and name: how each routes."""
        self.metadata: dict[str, VHostMetadata] = {}
        """Of each vhost, as it will be when its queues are declared."""
        self.left_out: set[tuple[str, str, str]] = set()
        """Queues and exchanges that are not supported, by kind, vhost and name."""
        for name, each in node.engine.state.vhosts.items():
            self.metadata[name] = each.metadata
            self.queues |= {(name, queue) for queue in each.queues}
            self.exchanges |= {(name, key): x.kind for key, x in each.exchanges.items()}

    def vhost_of(self, item: Item) -> str | None:
        """The vhost that `item` belongs to; None where it is left out, or there is none."""
        item.known.add("vhost")
        if self.goes_into is not None:
            return self.goes_into  # whatever it says: RabbitMQ 3.10 names the old one here
        if "vhost" not in item.values:
            if self.vhost is None:
                item.problem("vhost", "is missing: say into which one it goes")
            return self.vhost
        name = item.get("vhost", str)
        if self.vhost is not None and name != self.vhost:
            return None
        if item.is_right and name not in self.vhosts:
            item.problem("vhost", f"there is no vhost {name!r}")
        return name

    def there(self, vhost: str) -> VirtualHost:
        """The vhost while the steps are carried out.

        Raises:
            ReplyError: 530, it was deleted meanwhile.
        """
        found = self.node.view.vhost(vhost)
        if found is None:
            raise vhost_not_found(vhost)
        return found

    def add_vhost(self, name: str, path: str) -> None:
        """Add a vhost where there is none."""
        self.metadata.setdefault(name, VHostMetadata())
        try:
            check_short("vhost name", name)
        except ReplyError as error:
            self.problems.append(f"{path}: {reason_of(error)}")
            return
        if not name:
            self.problems.append(f"{path}: a name must not be empty")
        self.vhosts.add(name)
        self.steps.append(lambda: self.node.administration.add_vhost(name))
        for predeclared, exchange in VirtualHost(name).exchanges.items():
            self.exchanges.setdefault((name, predeclared), exchange.kind)

    def without_effect(self, item: Item, what: str) -> None:
        """Note what nobody has asked `item` for, unless it says nothing."""
        for key, value in item.others():
            if value not in (None, "", [], {}, False, "undefined"):
                self.notes.append(f"{what}: {key} is not supported, left out")


def reason_of(error: ReplyError) -> str:
    """The text of a refusal, without its code."""
    return error.reply_text.partition(" - ")[2] or error.reply_text
