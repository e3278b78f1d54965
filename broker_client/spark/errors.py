"""Errors of the Spark connector, in addition to those of the client.

SparkConnectorError
├── MissingExtraError
├── OptionError
├── DriverMisuseError
├── FramePublishError
├── SinkError
├── SourceError
└── SpoolError
    ├── SpoolLockedError
    ├── SpoolEpochError
    └── SpoolSegmentMissingError
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker_client.errors import BrokerClientError, UsageError, install_extra, nearest
from broker_client.spark.writing.frame_report import FrameReport


class SparkConnectorError(BrokerClientError):
    """Base class of the errors that only the Spark connector raises."""


class MissingExtraError(SparkConnectorError, ImportError):
    """PySpark or pyarrow is not installed."""

    def __init__(self, missing: str) -> None:
        super().__init__(missing)
        self.missing = missing

    def __str__(self) -> str:
        return f"{self.missing} is not installed; {install_extra('spark')}"


class OptionError(SparkConnectorError, ValueError):
    """An option or a column of ``format("broker")`` is unknown, missing or wrong."""

    def __init__(self, option: str, reason: str, known: Sequence[str] = ()) -> None:
        super().__init__(option, reason, tuple(known))
        self.option: str = option
        self.reason: str = reason
        self.known: tuple[str, ...] = tuple(known)

    def __str__(self) -> str:
        near = nearest(self.option.lower(), [name.lower() for name in self.known])
        by_lower = {name.lower(): name for name in self.known}
        hint = f"; did you mean {by_lower[near]!r}?" if near else ""
        listed = f" (known: {', '.join(sorted(self.known))})" if self.known else ""
        return f'format("broker"): {self.option!r} {self.reason}{hint}{listed}'


class DriverMisuseError(SparkConnectorError, UsageError, RuntimeError):
    """A `DriverPublisher` was used where it cannot work."""

    def __init__(self, reason: str, instead: str) -> None:
        super().__init__(reason, instead)
        self.reason: str = reason
        self.instead: str = instead

    def __str__(self) -> str:
        return f"{self.reason}; {self.instead}"


class FramePublishError(SparkConnectorError):
    """Not every row of a DataFrame was published and confirmed. `report` has the counts."""

    def __init__(self, report: FrameReport) -> None:
        super().__init__(report)
        self.report = report

    def __str__(self) -> str:
        report = self.report
        return (
            f"{report.confirmed} of {report.published} rows were confirmed "
            f"({report.returned} returned, {report.nacked} nacked, {report.failed} failed "
            f"otherwise); the first error: {report.first_error}"
        )


class SinkError(SparkConnectorError):
    """A task could not get its rows confirmed. Spark may try the task again, with the same ids."""

    retryable = True

    def __init__(self, reason: str, message_ids: Sequence[str], total: int) -> None:
        super().__init__(reason, tuple(message_ids), total)
        self.reason: str = reason
        self.message_ids: tuple[str, ...] = tuple(message_ids)
        self.total: int = total

    def __str__(self) -> str:
        shown = ", ".join(self.message_ids)
        more = ", ..." if self.total > len(self.message_ids) else ""
        return f"{self.total} rows were not published: {self.reason} (message ids {shown}{more})"


class SourceError(SparkConnectorError):
    """The source cannot consume its queue, and trying again would not help."""

    def __init__(self, queue: str, reason: str) -> None:
        super().__init__(queue, reason)
        self.queue: str = queue
        self.reason: str = reason

    def __str__(self) -> str:
        return f"cannot read queue {self.queue!r}: {self.reason}"


class SpoolError(SparkConnectorError):
    """The spool folder cannot be used."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(folder, reason)
        self.folder: str = folder
        self.reason: str = reason

    def __str__(self) -> str:
        return f"spool {self.folder}: {self.reason}"


class SpoolLockedError(SpoolError):
    """Another query reads through this spool."""

    retryable = True

    def __str__(self) -> str:
        return (
            f"spool {self.folder} is in use by {self.reason}; "
            "give every query a spool folder of its own"
        )


class SpoolEpochError(SpoolError):
    """The checkpoint belongs to another spool than the one in this folder."""

    def __init__(self, folder: str, checkpoint: str, found: str) -> None:
        super().__init__(folder, checkpoint)
        self.args: tuple[Any, ...] = (folder, checkpoint, found)
        self.checkpoint: str = checkpoint
        self.found: str = found

    def __str__(self) -> str:
        return (
            f"spool {self.folder} has the epoch {self.found!r}, and the checkpoint was written "
            f"with {self.checkpoint!r}: the folder was deleted or swapped, and acked messages may "
            "be lost. Put the old folder back, or start with a new checkpoint to go on without them"
        )


class SpoolSegmentMissingError(SpoolError):
    """Segments that a batch needs are gone: their messages were acked and cannot be read again."""

    def __init__(self, folder: str, first: int, last: int) -> None:
        super().__init__(folder, f"segments {first} to {last} are missing")
        self.args: tuple[Any, ...] = (folder, first, last)
        self.first: int = first
        self.last: int = last

    def __str__(self) -> str:
        return (
            f"spool {self.folder}: segments {self.first} to {self.last} are missing, and with them "
            "messages that were acked; failOnDataLoss=false goes on without them"
        )
