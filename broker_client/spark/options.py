"""The options of ``format("broker")``: their names, defaults and checks.

No pyspark here: options are checked where the plan is made, before anything runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from broker_client.config.url import masked
from broker_client.config.values import duration_seconds, size_bytes
from broker_client.spark.errors import OptionError

_MAX_PREFETCH = 65_535  # AMQP 0-9-1 §1.8.3.1: prefetch-count is a short integer
_IGNORED = frozenset({"checkpointlocation", "queryname", "path"})
"""What Spark itself adds to the options of a reader or writer."""


def _option(name: str, parse: Callable[[str], Any], default: Any, doc: str) -> Any:
    return dataclasses.field(default=default, metadata={"name": name, "parse": parse, "doc": doc})


def _whole(least: int, most: int | None = None) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text.replace("_", "")) if text.replace("_", "").isdecimal() else -1
        if value < least or (most is not None and value > most):
            limit = f"from {least} to {most}" if most is not None else f"of at least {least}"
            raise ValueError(f"must be a whole number {limit}, not {text!r}")
        return value

    return parse


def _bytes(text: str) -> int:
    return size_bytes(int(text) if text.isdecimal() else text)


def _flag(text: str) -> bool:
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    raise ValueError(f"must be true or false, not {text!r}")


def _one_of(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}, not {text!r}")
        return text.lower()

    return parse


def _starting_offset(text: str) -> int:
    if text.lower() == "first":
        return 0
    if text.isdecimal():
        return int(text)
    raise ValueError(
        f"must be first or an offset, not {text!r}: another start is not the same when asked twice"
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class CommonOptions:
    """Where the broker is. One of `url`, `urlEnv` and `configFile`."""

    url: str | None = _option("url", str, None, "amqp:// or amqps:// address; several by comma")
    url_env: str | None = _option(
        "urlEnv", str, None, "environment variable with the address, read where it is used"
    )
    config_file: str | None = _option(
        "configFile", str, None, "YAML of broker_client, readable on every executor"
    )
    vhost: str | None = _option("vhost", str, None, "vhost, instead of the address's")
    connect_timeout: float = _option(
        "connectTimeout", duration_seconds, 30.0, "time to reach a broker at the start"
    )

    def __repr__(self) -> str:
        shown = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if self.url is not None:
            shown["url"] = ",".join(masked(url) for url in self.url.split(","))
        listed = ", ".join(f"{key}={value!r}" for key, value in shown.items() if value is not None)
        return f"{type(self).__name__}({listed})"

    def check(self) -> None:
        """Raise OptionError where options contradict each other."""
        given = [
            name
            for name, value in (
                ("url", self.url),
                ("urlEnv", self.url_env),
                ("configFile", self.config_file),
            )
            if value is not None
        ]
        if len(given) != 1:
            said = " and ".join(given) if given else "none of them"
            raise OptionError("url", f"or urlEnv or configFile is needed, one of them; got {said}")


@dataclass(frozen=True, kw_only=True, repr=False)
class SourceOptions(CommonOptions):
    """Options of ``read`` and ``readStream``."""

    queue: str | None = _option("queue", str, None, "queue to consume; it must exist")
    subscription: str | None = _option(
        "subscription", str, None, "subscription of configFile that names the queue"
    )
    mode: Literal["queue", "stream"] = _option(
        "mode", _one_of("queue", "stream"), "queue", "stream reads a RabbitMQ stream by offsets"
    )
    headers: Literal["text", "json"] = _option(
        "headers", _one_of("text", "json"), "text", "json keeps the types of header values"
    )
    spool: str | None = _option("spool", str, None, "folder for messages between ack and commit")
    prefetch: int = _option(
        "prefetch", _whole(1, _MAX_PREFETCH), 10_000, "unacked messages at a time"
    )
    segment_rows: int = _option("segmentRows", _whole(1), 5_000, "rows at which a segment closes")
    segment_age: float = _option("segmentAge", duration_seconds, 1.0, "age at which it closes")
    segment_bytes: int = _option(
        "segmentBytes", _bytes, 16 * 2**20, "bytes of bodies at which it closes"
    )
    max_rows_per_trigger: int = _option(
        "maxRowsPerTrigger", _whole(1), 50_000, "rows in one batch, a segment at least"
    )
    max_bytes_per_trigger: int | None = _option(
        "maxBytesPerTrigger", _bytes, None, "bytes of segments in one batch"
    )
    max_rows: int = _option("maxRows", _whole(1), 50_000, "rows a batch read takes at most")
    spool_max_bytes: int = _option("spoolMaxBytes", _bytes, 2**30, "cap of the spool")
    spool_retain: int = _option("spoolRetain", _whole(0), 0, "handled segments to keep")
    drain_idle: float = _option(
        "drainIdle", duration_seconds, 2.0, "AvailableNow ends after so long without a message"
    )
    exclusive: bool = _option("exclusive", _flag, True, "be the queue's only consumer")
    fail_on_data_loss: bool = _option(
        "failOnDataLoss", _flag, True, "fail when messages that should be there are missing"
    )
    lock_timeout: float = _option(
        "lockTimeout",
        duration_seconds,
        10.0,
        "wait for the previous query to release spool and queue",
    )
    starting_offset: int = _option(
        "startingOffset", _starting_offset, 0, "mode=stream: first, or an offset"
    )
    min_partitions: int = _option(
        "minPartitions", _whole(1), 1, "mode=stream: tasks a batch is split into"
    )

    def check(self) -> None:
        super().check()
        if (self.queue is None) == (self.subscription is None):
            raise OptionError("queue", "or subscription is needed, one of the two")
        if self.subscription is not None and self.config_file is None:
            raise OptionError("subscription", "needs the configFile that declares it")
        if self.mode == "queue" and not self.spool:
            raise OptionError(
                "spool",
                "is needed: a folder on a disk that outlives the query, where messages stay "
                "between their ack and the end of their batch; each query has its own",
            )


@dataclass(frozen=True, kw_only=True, repr=False)
class SinkOptions(CommonOptions):
    """Options of ``write`` and ``writeStream``."""

    publication: str | None = _option(
        "publication", str, None, "publication of configFile to publish through"
    )
    exchange: str | None = _option("exchange", str, None, "exchange, unless a row has its own")
    routing_key: str | None = _option(
        "routingKey", str, None, "routing key, unless a row has its own"
    )
    ids: Literal["column", "content", "position"] | None = _option(
        "ids", _one_of("column", "content", "position"), None, "where message ids come from"
    )
    id_column: str = _option("idColumn", str, "message_id", "ids=column: the column")
    write_id: str | None = _option(
        "writeId", str, None, "batch write: the same on a repeated save gives the same ids"
    )
    window: int = _option("window", _whole(1), 1024, "unconfirmed publishes of a task")
    confirm_timeout: float = _option(
        "confirmTimeout", duration_seconds, 30.0, "time without any confirm before trying again"
    )
    retries: int = _option("retries", _whole(0), 3, "further attempts, with the same ids")
    mandatory: bool = _option("mandatory", _flag, True, "unroutable messages are returned")
    unroutable: Literal["raise", "drop", "dead"] = _option(
        "unroutable", _one_of("raise", "drop", "dead"), "raise", "what to do with them"
    )
    invalid: Literal["raise", "drop", "dead"] = _option(
        "invalid",
        _one_of("raise", "drop", "dead"),
        "raise",
        "what to do with rows that a broker would refuse",
    )
    dead_queue: str | None = _option(
        "deadQueue", str, None, "unroutable=dead, invalid=dead: the queue they go to"
    )
    persistent: bool = _option("persistent", _flag, True, "messages outlive a broker's restart")
    dedupe_header: bool = _option(
        "dedupeHeader", _flag, False, "also put the id into x-deduplication-header"
    )
    ignore_unknown_columns: bool = _option(
        "ignoreUnknownColumns", _flag, False, "ignore columns that the sink does not know"
    )
    report: str | None = _option(
        "report", str, None, "file to which the driver appends a line of JSON for every batch"
    )

    def check(self) -> None:
        super().check()
        if self.publication is not None and self.config_file is None:
            raise OptionError("publication", "needs the configFile that declares it")
        if self.publication is not None and self.exchange is not None:
            raise OptionError("exchange", "contradicts publication, which names its own")
        if ("dead" in (self.unroutable, self.invalid)) != (self.dead_queue is not None):
            raise OptionError("deadQueue", "and unroutable=dead or invalid=dead go together")
        if not self.mandatory and self.unroutable != "raise":
            raise OptionError("unroutable", "needs mandatory=true: without it nothing is returned")


S = TypeVar("S", SourceOptions, SinkOptions)


def parse(kind: type[S], given: Mapping[str, str]) -> S:
    """The options in `given`, names in any case, checked.

    Raises:
        OptionError: one is unknown, malformed or missing, or two contradict each other.
    """
    known = names(kind)
    other = names(SinkOptions if kind is SourceOptions else SourceOptions)
    by_lower = {name.lower(): field for name, field in known.items()}
    values: dict[str, Any] = {}
    for key, text in given.items():
        if key.lower() in _IGNORED:
            continue
        field = by_lower.get(key.lower())
        if field is None:
            if key.lower() in {name.lower() for name in other}:
                side = "writing" if kind is SourceOptions else "reading"
                raise OptionError(key, f"is an option for {side}")
            raise OptionError(key, "is not an option", tuple(known))
        try:
            values[field.name] = field.metadata["parse"](str(text).strip())
        except ValueError as error:
            raise OptionError(field.metadata["name"], str(error)) from None
    options = kind(**values)
    options.check()
    return options


def names(kind: type[CommonOptions]) -> dict[str, dataclasses.Field[Any]]:
    """Option name to the field that holds it."""
    return {field.metadata["name"]: field for field in dataclasses.fields(kind)}
