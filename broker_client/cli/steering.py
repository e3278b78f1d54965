"""What AMQP cannot do with a broker: list queues and definitions, pause and resume.

The built-in broker is reached through its control socket, any broker through its management API.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Annotated, Any, Protocol
from urllib.parse import quote

import typer
from pydantic import SecretStr

from broker_client.cli.node_file import failed, run_on_file
from broker_client.cli.where import Place, place_of
from broker_client.config import ManagementConfig
from broker_client.config.url import parse_management_url
from broker_client.connection.management import fetch, object_of, objects_of
from broker_client.errors import ManagementError
from broker_client.node.node import Node
from broker_client.planning.inventory import Inventory
from broker_client.runtime.slotted import slotted

MANAGEMENT_VARIABLE = "BROKER_CLIENT_MANAGEMENT"
_TIMEOUT = 10.0
_NOT_FOUND = 404

Management = Annotated[
    str | None,
    typer.Option(
        "--management",
        metavar="URL",
        envvar=MANAGEMENT_VARIABLE,
        help="The management API of the broker: http://user:password@host:15672.",
        show_envvar=True,
        show_default=False,
    ),
]


@slotted
class QueueRow:
    """One queue now; None is what this broker does not report. Counts are since its start."""

    vhost: str
    name: str
    state: str
    ready: int
    in_flight: int
    deferred: int | None
    consumers: int
    published: int
    delivered: int
    acked: int
    dead_letters: int | None
    oldest: float | None
    """Seconds since the message at the head became ready."""


class Steering(Protocol):
    """One broker, to look at and control."""

    vhost: str | None

    def queues(self) -> list[QueueRow]: ...

    def inventory(self, vhost: str) -> Inventory:
        """The exchanges, queues and bindings of a vhost."""
        ...

    def set_paused(self, vhost: str, queue: str, *, paused: bool) -> None: ...


def steering_of(
    url: str | None, config: Path | None, vhost: str | None, management: str | None
) -> Steering:
    """What the options name.

    Raises:
        typer.Exit: with status 1, once it was said what is missing.
    """
    if management:
        return ByManagement(management, vhost)
    place = place_of(url, config, vhost)
    if not place.path:
        raise failed(
            f"{place.shown}: AMQP does not list queues: give the management API, "
            "--management http://user:password@host:15672"
        )
    return ByFile(place, place.vhost if config is not None else vhost)


# --------------------------------------------------------------------------- by control socket


class ByFile:
    """The built-in broker of a file: in the process that has it open, or opened by the command."""

    def __init__(self, place: Place, vhost: str | None) -> None:
        """
        Args:
            place: has the path.
            vhost: the only one that is asked for.
        """
        self._path = place.path
        self.vhost: str | None = vhost

    @property
    def is_running(self) -> bool:
        """True while a process answers for the file."""
        from broker_client.server.control import connected_socket

        local = connected_socket(self._path)
        if local is None:
            return False
        local.close()
        return True

    def queues(self) -> list[QueueRow]:
        """All of them, by vhost and name."""
        shown = self.overview()
        if self.vhost not in (None, *shown["vhosts"]):
            raise failed(f"{self._path}: there is no vhost {self.vhost!r}")
        rows = [
            QueueRow(
                vhost=each["vhost"],
                name=each["name"],
                state="paused" if each["paused"] else "running",
                ready=each["ready"],
                in_flight=each["in_flight"],
                deferred=each["deferred"],
                consumers=each["consumers"],
                published=each["message_count"],
                delivered=each["deliver_count"],
                acked=each["ack_count"],
                dead_letters=each["dead_letter_count"],
                oldest=each["oldest"] if each["ready"] else None,
            )
            for each in shown["queues"]
            if self.vhost in (None, each["vhost"])
        ]
        return sorted(rows, key=lambda row: (row.vhost, row.name))

    def overview(self) -> dict[str, Any]:
        """Its alarms, vhosts and time, besides the queues."""
        found: dict[str, Any] = self._ask({"do": "stats"})
        return found

    def definitions(self, vhost: str | None = None) -> dict[str, Any]:
        """The `document` in RabbitMQ's form, of one vhost or of all, and `notes` on it."""
        found: dict[str, Any] = self._ask({"do": "definitions", "vhost": vhost})
        return found

    def inventory(self, vhost: str) -> Inventory:
        """The exchanges, queues and bindings of a vhost."""
        document = self.definitions()["document"]
        if vhost not in [each["name"] for each in document["vhosts"]]:
            return Inventory(has_vhost=False)
        held = {row.name: row for row in self.queues() if row.vhost == vhost}
        exchanges, queues, bindings = (
            [each for each in document[kind] if each["vhost"] == vhost]
            for kind in ("exchanges", "queues", "bindings")
        )
        for each in queues:
            row = held.get(each["name"])
            if row is not None:
                waiting = row.ready + row.in_flight + (row.deferred or 0)
                each |= {"messages": waiting, "consumers": row.consumers}
        return Inventory.of_lists(exchanges, queues, bindings)

    def set_paused(self, vhost: str, queue: str, *, paused: bool) -> None:
        self._ask({"do": "pause" if paused else "resume", "vhost": vhost, "queue": queue})

    def _ask(self, request: Mapping[str, Any]) -> Any:
        line = json.dumps(request).encode()
        answered = self._answer_of_process(line)
        if answered is None:
            from broker_client.server.control_commands import carried_out

            def command(node: Node) -> bytes:
                return carried_out(node, line)

            answered = run_on_file(self._path, command)
        told = json.loads(answered)
        if "error" in told:
            raise failed(told["error"])
        return told["ok"]

    def _answer_of_process(self, line: bytes) -> bytes | None:
        from broker_client.server.control import connected_socket

        local = connected_socket(self._path)
        if local is None:
            return None
        with local:
            local.settimeout(_TIMEOUT)
            try:
                local.sendall(line + b"\n")
                pieces = []
                while piece := local.recv(1 << 16):
                    pieces.append(piece)
            except OSError as error:
                raise failed(f"{self._path}: its process does not answer: {error}") from None
        if not pieces:
            raise failed(f"{self._path}: its process refused to answer this user")
        return b"".join(pieces)


def definitions_of(path: str, vhost: str | None = None) -> dict[str, Any]:
    """`ByFile.definitions` of the broker in the file at `path`."""
    return ByFile(Place(path, "/", path=path), None).definitions(vhost)


# --------------------------------------------------------------------------- by management API


class ByManagement:
    """A broker behind a management API: RabbitMQ's, or ours."""

    def __init__(self, url: str, vhost: str | None) -> None:
        """
        Args:
            url: with user and password; ``guest`` without.
            vhost: the only one that is asked for.

        Raises:
            typer.Exit: it cannot be used.
        """
        try:
            parse_management_url(url)
        except ValueError as error:
            raise failed(f"--management: {error}") from None
        config = ManagementConfig(url=SecretStr(url), timeout=_TIMEOUT)
        self._config = config.completed("localhost", "guest", SecretStr("guest"))
        self.shown: str = self._config.address
        self.vhost = vhost
        self.clock_ahead: float = 0.0
        """Seconds by which the broker's clock was before ours at the last answer, whole ones."""

    def queues(self) -> list[QueueRow]:
        """All of them, by vhost and name."""
        rows = [_row(each) for each in self._told_list("queues", self.vhost)]
        return sorted(rows, key=lambda row: (row.vhost, row.name))

    def inventory(self, vhost: str) -> Inventory:
        """The exchanges, queues and bindings of a vhost."""
        lists = (self._told_list(kind, vhost) for kind in ("exchanges", "queues", "bindings"))
        return Inventory.of_lists(*lists)

    def set_paused(self, vhost: str, queue: str, *, paused: bool) -> None:
        path = f"queues/{quote(vhost, safe='')}/{quote(queue, safe='')}"
        try:
            if "RabbitMQ" in str(self.overview().get("product_name", "RabbitMQ")):
                reason = "RabbitMQ cannot pause a queue; stop its consumers instead"
                raise failed(f"{self.shown}: {reason}")
            self._asked("PUT", f"{path}/{'pause' if paused else 'resume'}")
        except ManagementError as error:
            if error.what.startswith("PUT") and error.status == _NOT_FOUND:
                reason = f"there is no queue {queue!r} in vhost {vhost!r}"
                raise failed(f"{self.shown}: {reason}") from None
            raise self._told(error) from None

    def overview(self) -> dict[str, Any]:
        """What the broker is.

        Raises:
            ManagementError: it was refused, or what answers is no management API.
        """
        return self.object("overview", "management_version")

    def object(self, path: str, *keys: str) -> dict[str, Any]:
        """The object at `path`, which has `keys`.

        Raises:
            ManagementError: it was refused, or what answers is no management API.
        """
        body = self._asked("GET", path)
        try:
            return object_of(body, *keys)
        except ValueError as error:
            raise self._unknown(path, error) from None

    def objects(self, kind: str, vhost: str | None = None) -> list[dict[str, Any]]:
        """The ``exchanges``, ``queues`` or ``bindings`` of a vhost, or of all.

        Raises:
            ManagementError: it was refused, or what answers is no management API.
        """
        path = kind if vhost is None else f"{kind}/{quote(vhost, safe='')}"
        body = self._asked("GET", path)
        try:
            return objects_of(body, kind)
        except ValueError as error:
            raise self._unknown(path, error) from None

    def _unknown(self, path: str, error: ValueError) -> ManagementError:
        return ManagementError(f"GET {path} of", self.vhost or "/", self.shown, 0, str(error))

    def _told_list(self, kind: str, vhost: str | None) -> list[dict[str, Any]]:
        try:
            return self.objects(kind, vhost)
        except ManagementError as error:
            if error.status == _NOT_FOUND and vhost is not None:
                raise failed(f"{self.shown}: there is no vhost {vhost!r}") from None
            raise self._told(error) from None

    def check(self, path: str) -> str:
        """Why a health check fails; "" if it passes."""
        try:
            self._asked("GET", path)
        except ManagementError as error:
            return error.reason
        return ""

    def _told(self, error: ManagementError) -> typer.Exit:
        status = f"{error.status} " if error.status else ""
        return failed(f"{self.shown}: {status}{error.reason}")

    def _asked(self, method: str, path: str) -> bytes:
        asked = time.time()
        what = f"{method} {path} of"
        answer = fetch(self._config, method, path, self.vhost or "/", what)
        with contextlib.suppress(ValueError):  # without a date, or with something else
            self.clock_ahead = round(parsedate_to_datetime(answer.date).timestamp() - asked)
        return answer.body


def _row(queue: Mapping[str, Any]) -> QueueRow:
    stats, own = queue.get("message_stats", {}), queue.get("broker_client") or {}
    return QueueRow(
        vhost=queue["vhost"],
        name=queue["name"],
        state=str(queue.get("state", "running")),
        ready=queue.get("messages_ready", 0),
        in_flight=queue.get("messages_unacknowledged", 0),
        deferred=own.get("deferred"),
        consumers=queue.get("consumers", 0),
        published=stats.get("publish", 0),
        delivered=stats.get("deliver_get", 0),
        acked=stats.get("ack", 0),
        dead_letters=own.get("dead_lettered"),
        oldest=_age(queue, own),
    )


def _age(queue: Mapping[str, Any], own: Mapping[str, Any]) -> float | None:
    """Seconds that the oldest ready message has waited; None where that is not told."""
    if not queue.get("messages_ready"):
        return None
    if "age" in own:
        age: float | None = own["age"]
        return age
    stamp = queue.get("head_message_timestamp")  # of RabbitMQ: what the publisher wrote, in seconds
    return max(0.0, time.time() - stamp) if isinstance(stamp, int | float) else None
