"""What a configuration declares, as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.table import Table
from rich.text import Text

from broker_client.config import (
    BrokerConfig,
    Forward,
    Nack,
    PublicationConfig,
    QueueConfig,
    Republish,
    ScheduleConfig,
    Strategy,
    SubscriptionConfig,
    VhostConfig,
)


def summary(config: BrokerConfig) -> Iterator[Table]:
    """Tables of vhosts, exchanges, queues, bindings, publications, subscriptions and shovels.

    Kinds of which nothing is declared are left out. Passwords are masked.
    """
    vhosts = config.vhosts.values()
    yield from _table("Vhosts", ("name", "connections"), map(_vhost, vhosts))
    exchanges = (
        (vhost.name, each.name, each.type, _durable(each.options.durable))
        for vhost in vhosts
        for each in vhost.exchanges.values()
        if each.name
    )
    yield from _table("Exchanges", ("vhost", "name", "type", ""), exchanges)
    queues = (
        (vhost.name, each.name, _queue(each)) for vhost in vhosts for each in vhost.queues.values()
    )
    yield from _table("Queues", ("vhost", "name", ""), queues)
    bindings = (
        (vhost.name, each.source, ", ".join(each.binding_keys), each.destination)
        for vhost in vhosts
        for each in vhost.bindings
    )
    yield from _table("Bindings", ("vhost", "source", "keys", "destination"), bindings)
    publications = map(_publication, config.publications.values())
    yield from _table("Publications", ("name", "vhost", "to", "routing key", ""), publications)
    subscriptions = map(_subscription, config.subscriptions.values())
    yield from _table(
        "Subscriptions", ("name", "vhost", "queue", "prefetch", "recovery"), subscriptions
    )
    shovels = ((each.name, each.subscription, each.publication) for each in config.shovels.values())
    yield from _table("Shovels", ("name", "from", "to"), shovels)
    schedules = (
        (each.name, each.publication, _times(each), each.missed)
        for each in config.schedules.values()
    )
    yield from _table("Schedules", ("name", "to", "when", "missed"), schedules)


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[Table]:
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        # As Text, since names like "flights[flight.#]" would be read as markup.
        table.add_row(*map(Text, row))
    if table.row_count:
        yield table


def _times(schedule: ScheduleConfig) -> str:
    if schedule.every is not None:
        return f"every {schedule.every:g} s"
    return f"{schedule.cron} {schedule.timezone}"


def _vhost(vhost: VhostConfig) -> tuple[str, str]:
    return vhost.name, "\n".join(each.masked_url for each in vhost.connections)


def _durable(durable: bool) -> str:
    return "durable" if durable else "transient"


def _queue(queue: QueueConfig) -> str:
    marks = [_durable(queue.options.durable)]
    marks += [name for name in ("exclusive", "auto_delete") if getattr(queue.options, name)]
    marks += ["purged"] if queue.purge else []
    marks += [f"{key}={value}" for key, value in queue.options.all_arguments.items()]
    return ", ".join(marks)


def _publication(publication: PublicationConfig) -> tuple[str, ...]:
    if publication.queue is not None:
        target = f"queue {publication.queue}"
    else:
        target = f"exchange {publication.exchange or '(default)'}"
    mode = "confirmed" if publication.confirm else "unconfirmed"
    return publication.name, publication.vhost, target, publication.routing_key, mode


def _subscription(subscription: SubscriptionConfig) -> tuple[str, ...]:
    if subscription.recovery is None:
        recovery = "requeue, deferred"
    else:
        recovery = ", then ".join(map(_strategy, subscription.recovery))
    prefetch = str(subscription.prefetch) if subscription.prefetch else "no limit"
    return subscription.name, subscription.vhost, subscription.queue, prefetch, recovery


def _strategy(strategy: Strategy) -> str:
    text: str = strategy.strategy
    if isinstance(strategy, Forward):
        text += f" to {strategy.publication}"
    if isinstance(strategy, Nack) and strategy.requeue:
        text += " with requeue"
    if strategy.defer:
        text += f" after {strategy.defer:g}s"
    if isinstance(strategy, Republish | Forward) and strategy.attempts:
        text += f", {strategy.attempts} times"
    return text
