"""The checks of ``broker-client doctor``, and their advice."""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Iterator, Mapping
from typing import Any, Literal
from urllib.parse import quote

from broker_client.cli.steering import ByFile, ByManagement, QueueRow
from broker_client.cli.where import Place
from broker_client.config import BrokerConfig, VhostConfig
from broker_client.errors import (
    AuthenticationRefusedError,
    BrokerClientError,
    ManagementError,
    StoreError,
    way_out_of_mismatch,
)
from broker_client.planning.inventory import Inventory
from broker_client.planning.plan import Change, plan_vhost
from broker_client.planning.reading import read_passively
from broker_client.runtime.slotted import slotted
from broker_client.store.maintenance import check as check_store

Verdict = Literal["ok", "warning", "problem", "unknown"]

_OLDEST_TESTED = (3, 10)
_CLOCKS_MAY_DIFFER = 5  # seconds; HTTP tells whole ones
_ASK_MANAGEMENT = "name the management API: --management http://user:password@host:15672"
_DEFAULT_EXCHANGE = "amq.default"  # RabbitMQ: its name in permissions
_NOT_FOUND = 404
_REFUSED = (401, 403)


@slotted
class Finding:
    """The result of one check."""

    check: str
    verdict: Verdict
    text: str
    advice: str = ""
    """What to do; "" if nothing needs to be done."""


# --------------------------------------------------------------------------- a file


def examine_file(place: Place) -> Iterator[Finding]:
    """The built-in broker of a file, in its process or without one."""
    by_file = ByFile(place, place.vhost)
    if by_file.is_running:
        yield Finding("connect", "ok", f"{place.path}: its process answers")
    else:
        damaged = yield from _examine_closed(place.path)
        if damaged:
            return
    told = by_file.overview()
    if place.vhost not in told["vhosts"]:
        names = ", ".join(told["vhosts"])
        advice = f"give one of them with --vhost: {names}"
        yield Finding("login", "problem", f"there is no vhost {place.vhost!r}", advice)
        return
    yield Finding("login", "ok", "the user of this command may do everything")
    yield from _alarms(", ".join(told["alarms"]))
    yield Finding("quorum", "ok", "one node, and no quorum to lose")
    if place.declared is not None:
        yield _topology(place.declared, by_file.inventory(place.vhost))
    yield from _consumers(place, by_file.queues() if by_file.is_running else [])


def _examine_closed(path: str) -> Generator[Finding, None, bool]:
    """Check a file that no process has open; returns whether it cannot be used."""
    try:
        report = check_store(path)
    except StoreError as error:
        yield Finding("connect", "problem", str(error), "name the file of a built-in broker")
        return True
    if report.problems:
        advice = (
            f"broker-client store check {path} shows it, store compact --drop-damaged repairs it"
        )
        yield Finding("connect", "problem", f"{path} is damaged: {report.problems[0]}", advice)
        return True
    yield Finding("connect", "ok", f"{path} is sound; no process has it open")
    return False


# --------------------------------------------------------------------------- an address


async def examine_address(place: Place, *, passively: bool) -> list[Finding]:
    """Checks of a broker over AMQP.

    Args:
        place: where it is.
        passively: compare the topology as well as AMQP allows.
    """
    began = time.monotonic()
    found: list[Finding] = []
    try:
        async with place.link() as link:
            took = 1000 * (time.monotonic() - began)
            found.append(Finding("connect", "ok", f"{place.shown} answered in {took:.0f} ms"))
            found.append(Finding("login", "ok", f"the user may open the vhost {place.vhost!r}"))
            if passively and place.declared is not None:
                inventory = await read_passively(link, place.declared)
                found.append(_topology(place.declared, inventory))
    except AuthenticationRefusedError as error:
        advice = (
            "check user, password and vhost, and that the user has permissions in the vhost; the "
            "log of the broker says which it is"
        )
        found.append(Finding("login", "problem", str(error), advice))
    except BrokerClientError as error:
        what = "topology" if found else "connect"
        advice = "check host, port and TLS, and that the broker runs" if not found else ""
        found.append(Finding(what, "problem", str(error), advice))
    return found


def examine_management(place: Place, management: ByManagement | None) -> Iterator[Finding]:
    """Checks of a broker over its management API."""
    if management is None:
        for what in ("permissions", "alarms", "quorum", "version", "clock"):
            yield Finding(what, "unknown", "AMQP does not show this", _ASK_MANAGEMENT)
        return
    try:
        overview = management.overview()
        yield from _version(overview)
        yield _clock(management.clock_ahead)
        yield from _alarms(management.check("health/checks/alarms"))
        yield from _quorum(management)
        if place.config is not None and place.declared is not None:
            yield from _permissions(place, place.config, place.declared, management)
            yield _topology(place.declared, management.inventory(place.vhost))
        yield from _consumers(place, management.queues())
    except ManagementError as error:
        advice = "check user and password, and that the user has the tag monitoring"
        if error.status not in _REFUSED:
            advice = "check host and port, and that the management plugin is enabled"
        yield Finding("management", "problem", str(error), advice)


def _version(overview: Mapping[str, Any]) -> Iterator[Finding]:
    name = str(overview.get("product_name", "RabbitMQ"))
    version = str(overview.get("product_version") or overview.get("rabbitmq_version"))
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    if "RabbitMQ" in name and numbers < _OLDEST_TESTED:
        advice = "upgrade it: 3.10 and newer are tested"
        yield Finding("version", "warning", f"{name} {version}", advice)
    else:
        yield Finding("version", "ok", f"{name} {version}")


def _clock(ahead: float) -> Finding:
    if abs(ahead) <= _CLOCKS_MAY_DIFFER:
        return Finding("clock", "ok", "the broker's and this machine's agree")
    text = f"the broker's is {abs(ahead):,.0f} s {'ahead' if ahead > 0 else 'behind'}"
    advice = "synchronise both machines: ages, expiries and time stamps are wrong"
    return Finding("clock", "warning", text, advice)


def _alarms(why: str) -> Iterator[Finding]:
    if why:
        advice = "free memory or disk of the broker, or consume: it blocks publishers until then"
        yield Finding("alarms", "problem", why, advice)
    else:
        yield Finding("alarms", "ok", "none")


def _quorum(management: ByManagement) -> Iterator[Finding]:
    why = management.check("health/checks/node-is-quorum-critical")
    if why:
        advice = "start the other nodes before this one stops, or queues lose their quorum"
        yield Finding("quorum", "warning", why, advice)
    lost = [
        f"{each['vhost']}: {each['name']} ({len(each['online'])} of {len(each['members'])} online)"
        for each in management.objects("queues")
        if each.get("members") and len(each.get("online") or ()) * 2 <= len(each["members"])
    ]
    if lost:
        yield Finding("quorum", "problem", f"lost by {_few(lost)}", "start the missing nodes")
    elif not why:
        yield Finding("quorum", "ok", "every quorum queue has one")


# --------------------------------------------------------------------------- permissions


def _permissions(
    place: Place, config: BrokerConfig, declared: VhostConfig, management: ByManagement
) -> Iterator[Finding]:
    user, vhost = place.user, quote(place.vhost, safe="")
    try:
        path = f"permissions/{vhost}/{quote(user, safe='')}"
        granted = management.object(path, "configure", "write", "read")
    except ManagementError as error:
        if error.status in _REFUSED:
            advice = "have --management log in with the tag administrator"
            yield Finding("permissions", "unknown", "only administrators may see them", advice)
        elif error.status == _NOT_FOUND:
            advice = f"rabbitmqctl set_permissions -p {place.vhost} {user} '.*' '.*' '.*'"
            yield Finding("permissions", "problem", f"{user} has none in {place.vhost}", advice)
        else:
            raise
        return
    missing = [
        f"{operation} {name}"
        for operation, names in _needed(config, declared).items()
        for name in sorted(names)
        if re.search(granted[operation], name) is None
    ]
    if missing:
        text = f"{user} may not {_few(missing)}"
        yield Finding(
            "permissions", "problem", text, "widen the patterns of the user's permissions"
        )
    else:
        yield Finding("permissions", "ok", f"{user} may do what the configuration needs")


def _needed(config: BrokerConfig, declared: VhostConfig) -> dict[str, set[str]]:
    """The names that the configuration needs for each operation of RabbitMQ's access control."""
    queues, exchanges = declared.queues, declared.exchanges
    configure = {each.qualified_name for each in queues.values() if each.assert_}
    configure |= {each.qualified_name for each in exchanges.values() if each.assert_ and each.name}
    read = {each.qualified_source for each in declared.bindings}
    write = {each.qualified_destination for each in declared.bindings}
    for subscription in config.subscriptions.values():
        if subscription.vhost == declared.name and subscription.queue in queues:
            read.add(queues[subscription.queue].qualified_name)
    for publication in config.publications.values():
        if publication.vhost == declared.name:
            exchange = exchanges.get(publication.exchange or "")
            write.add((exchange and exchange.qualified_name) or _DEFAULT_EXCHANGE)
    return {"configure": configure, "write": write, "read": read}


# --------------------------------------------------------------------------- topology


def _topology(declared: VhostConfig, inventory: Inventory) -> Finding:
    wrong = [each for each in plan_vhost(declared, inventory) if each.action != "left"]
    if not wrong:
        beyond = "" if inventory.is_complete else ", as far as AMQP shows"
        return Finding("topology", "ok", f"as the configuration has it{beyond}")
    first = next((each for each in wrong if each.action == "differs"), wrong[0])
    advice = "start the application, or broker-client apply, to declare it"
    if first.action == "differs":
        advice = way_out_of_mismatch(first.kind)
    elif first.action == "missing":
        advice = "it is only checked: its owner has to declare it"
    return Finding("topology", "problem", _few([_change(each) for each in wrong]), advice)


def _change(change: Change) -> str:
    if change.action == "differs":
        return f"{change.kind} {change.name}: {'; '.join(map(str, change.differences))}"
    return f"{change.kind} {change.name} is not there"


def _consumers(place: Place, rows: list[QueueRow]) -> Iterator[Finding]:
    """Of the queues that the configuration subscribes to."""
    if place.config is None or place.declared is None:
        return
    read = _needed(place.config, place.declared)["read"]
    waiting = [
        f"{row.name} ({row.ready:,} ready)"
        for row in rows
        if row.vhost == place.vhost and row.name in read and row.ready and not row.consumers
    ]
    if waiting:
        advice = "start the application that consumes them"
        yield Finding("consumers", "warning", f"no consumer on {_few(waiting)}", advice)


def _few(items: list[str]) -> str:
    more = f" and {len(items) - 5:,} more" if len(items) > 5 else ""
    return ", ".join(items[:5]) + more
