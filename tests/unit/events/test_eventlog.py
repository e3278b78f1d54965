"""The delivery-event log: its contents, its files, and failures to write."""

from __future__ import annotations

import fcntl
import json
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from broker_client.events import delivery_event
from broker_client.events import log as eventlog
from broker_client.events.delivery_event import (
    ACKED,
    COMMON_FIELDS,
    DELIVERED,
    PUBLISHED,
    DeliveryEvent,
    trace_id_of,
)
from broker_client.events.log import EventLog

JANUARY = 1_767_225_600.0
"""2026-01-01T00:00:00Z"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "events"


@pytest.fixture
def log(folder: Path) -> Iterator[EventLog]:
    made = EventLog(folder, "n1")
    yield made
    assert made.close()


def an_event(message_id: str = "m1", **more: Any) -> DeliveryEvent:
    return DeliveryEvent(
        **{"event": ACKED, "vhost": "/", "ts": JANUARY, **more}, message_id=message_id
    )


def files(folder: Path) -> list[Path]:
    """The files that Spark would read."""
    return sorted(each for each in folder.rglob("*.jsonl") if not each.name.startswith("."))


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in files(folder) for line in file.read_text().splitlines()]


def left_open(folder: Path) -> list[Path]:
    return list(folder.rglob(".*.open"))


# --------------------------------------------------------------------------- what is written


def test_an_event_has_every_field_that_is_set_and_times_in_microseconds(
    log: EventLog, folder: Path
) -> None:
    log.record(
        DeliveryEvent(
            event=DELIVERED,
            vhost="/v",
            exchange="x",
            routing_key="k.1",
            queue="q",
            consumer="c",
            attempt=2,
            redelivered=True,
            reason="timeout",
            publication="p",
            subscription="s",
            message_id="m1",
            ts=JANUARY + 0.000_25,
            size=12,
            published_at=JANUARY - 1,
            enqueued_at=JANUARY - 0.5,
            delivered_at=JANUARY,
            priority=3,
            error_class="KeyError",
            error="'id'",
            trace_id="0af7651916cd43dd8448eb211c80319c",
        )
    )
    assert log.roll()
    (line,) = lines(folder)
    event_id = line.pop("event_id")
    assert event_id.startswith("n1-")
    assert event_id.endswith("-1")
    assert line == {
        "v": 1,
        "seq": 1,
        "ts": 1_767_225_600_000_250,
        "node": "n1",
        "event": "delivered",
        "vhost": "/v",
        "exchange": "x",
        "routing_key": "k.1",
        "queue": "q",
        "consumer": "c",
        "attempt": 2,
        "redelivered": True,
        "reason": "timeout",
        "publication": "p",
        "subscription": "s",
        "message_id": "m1",
        "published_at": 1_767_225_599_000_000,
        "enqueued_at": 1_767_225_599_500_000,
        "delivered_at": 1_767_225_600_000_000,
        "size": 12,
        "priority": 3,
        "error_class": "KeyError",
        "error": "'id'",
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
    }


def test_fields_that_are_not_set_are_left_out(log: EventLog, folder: Path) -> None:
    log.record(an_event())
    log.roll()
    (line,) = lines(folder)
    assert set(line) == {"v", "event_id", "seq", "ts", "node", "event", "vhost", "message_id"}


@pytest.mark.parametrize("text", ['say "hi"\n', "Grüße", "\\", "\x00", "日本", "\ud800"])
def test_any_text_comes_back_as_it_was(log: EventLog, folder: Path, text: str) -> None:
    log.record(an_event(text, queue=text, routing_key=text, error=text, error_class=text))
    log.roll()
    (line,) = lines(folder)
    read = [line[each] for each in ("message_id", "queue", "routing_key", "error_class")]
    assert read == [text] * 4


def test_an_error_is_cut_to_512_bytes_between_characters(log: EventLog, folder: Path) -> None:
    log.record(an_event(error="ü" * 300))
    log.roll()
    assert lines(folder)[0]["error"] == "ü" * 256


def test_events_without_a_time_get_that_of_the_record(log: EventLog, folder: Path) -> None:
    log.record_many([an_event(ts=None), an_event(ts=JANUARY)], now=JANUARY + 5)
    log.roll()
    assert [line["ts"] - JANUARY * 1e6 for line in lines(folder)] == [5_000_000, 0]


def test_ids_are_unique_over_restarts_and_numbers_begin_anew(folder: Path) -> None:
    for _ in range(2):
        log = EventLog(folder, "n1")
        log.record_many([an_event(), an_event()])
        log.close()
    written = lines(folder)
    assert sorted(line["seq"] for line in written) == [1, 1, 2, 2]
    assert len({line["event_id"] for line in written}) == 4


def test_starts_of_many_routing_keys_do_not_pile_up(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(delivery_event, "CACHED_STARTS", 10)
    log = EventLog(folder, "n1")
    log.record_many([an_event(routing_key=f"k{number}") for number in range(100)])
    log.close()
    assert [line["routing_key"] for line in lines(folder)] == [f"k{n}" for n in range(100)]
    assert len(log.lines._starts) <= 10


# --------------------------------------------------------------------------- files


def test_a_file_is_hidden_while_it_is_written(log: EventLog, folder: Path) -> None:
    log.record(an_event())
    assert log.flush()
    (hidden,) = left_open(folder)
    assert not files(folder)
    assert hidden.parent.name == "node=n1"
    assert hidden.parent.parent.name.startswith("dt=20")
    assert json.loads(hidden.read_text())["message_id"] == "m1"
    log.roll()
    (closed,) = files(folder)
    assert closed.name == hidden.name[1:].removesuffix(".open")
    assert not left_open(folder)


def test_the_day_of_the_folder_is_that_of_the_events(log: EventLog, folder: Path) -> None:
    log.record_many([an_event()], now=JANUARY - 1)
    log.flush()
    log.record_many([an_event()], now=JANUARY)
    log.roll()
    assert [file.parent.parent.name for file in files(folder)] == ["dt=2025-12-31", "dt=2026-01-01"]


def test_a_full_file_is_closed_and_the_next_begun(folder: Path) -> None:
    log = EventLog(folder, "n1", max_bytes=1_000)
    for number in range(20):
        log.record(an_event(f"m{number}"))
        log.flush()
    log.close()
    assert len(files(folder)) > 2
    assert [line["message_id"] for line in lines(folder)] == [f"m{n}" for n in range(20)]


def test_an_old_file_is_closed_without_further_events(folder: Path) -> None:
    log = EventLog(folder, "n1", max_age=0.05)
    log.record(an_event())
    deadline = time.monotonic() + 60
    while not files(folder) and time.monotonic() < deadline:
        threading.Event().wait(0.005)
    assert len(files(folder)) == 1
    log.close()


def test_no_file_is_made_where_nothing_happens(folder: Path) -> None:
    log = EventLog(folder, "n1", max_age=0.01)
    log.close()
    assert not list(folder.iterdir())


def test_a_node_of_any_name_has_a_folder_of_its_own(folder: Path) -> None:
    log = EventLog(folder, "../a/b=c%")
    log.record(an_event())
    log.close()
    (file,) = files(folder)
    assert file.parent.name == "node=..%2Fa%2Fb%3Dc%25"
    assert lines(folder)[0]["node"] == "../a/b=c%"


def test_a_folder_that_cannot_be_made_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        EventLog(tmp_path / "file", "n1")


# --------------------------------------------------------------------------- after a crash

CRASH = """
import os, signal, sys
from broker_client.events.delivery_event import DeliveryEvent
from broker_client.events.log import EventLog
log = EventLog(sys.argv[1], "n1")
log.record_many([DeliveryEvent("acked", "/", message_id=f"m{n}") for n in range(100)])
log.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_open_is_closed_by_the_next(folder: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", CRASH, str(folder)], check=False)
    assert ended.returncode == -signal.SIGKILL
    (left,) = left_open(folder)
    with left.open("ab") as file:
        file.write(b'{"v":1,"event_id":"half')
    EventLog(folder, "n1").close()
    assert [line["message_id"] for line in lines(folder)] == [f"m{n}" for n in range(100)]
    assert not left_open(folder)


def test_a_file_with_half_a_line_only_is_removed(folder: Path) -> None:
    there = folder / "dt=2026-01-01" / "node=n1"
    there.mkdir(parents=True)
    (there / ".1-1.jsonl.open").write_text('{"v":1,"event_id"')
    EventLog(folder, "n1").close()
    assert not list(there.iterdir())


def test_a_half_line_longer_than_what_is_read_at_once_is_cut_off(folder: Path) -> None:
    there = folder / "dt=2026-01-01" / "node=n1"
    there.mkdir(parents=True)
    (there / ".1-1.jsonl.open").write_text('{"v":1}\n' + "x" * 200_000)
    EventLog(folder, "n1").close()
    assert lines(folder) == [{"v": 1}]


def test_files_that_others_are_writing_are_left_alone(folder: Path) -> None:
    other = folder / "dt=2026-01-01" / "node=n2"
    mine = folder / "dt=2026-01-01" / "node=n1"
    for each in (other, mine):
        each.mkdir(parents=True)
        (each / ".1-1.jsonl.open").write_text('{"v":1}\n')
    with (mine / ".1-1.jsonl.open").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        EventLog(folder, "n1").close()
        assert len(left_open(folder)) == 2
    EventLog(folder, "n1").close()
    assert [each.parent.name for each in left_open(folder)] == ["node=n2"]


# --------------------------------------------------------------------------- never in the way


def test_a_full_buffer_drops_counts_and_leaves_a_gap_in_the_numbers(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    stuck, go = threading.Event(), threading.Event()

    def slow(self: Any, data: bytes, day: int) -> bool:
        stuck.set()
        go.wait(10)
        return write(self, data, day)

    write = eventlog._Files.write
    monkeypatch.setattr(eventlog._Files, "write", slow)
    log = EventLog(folder, "n1", buffer=10)
    log.record(an_event("first"))
    assert stuck.wait(5)  # the writer is busy
    log.record_many([an_event(f"m{number}") for number in range(25)])
    log.record(an_event("too late"))
    assert log.dropped == 17
    assert log.stats().waiting == 10
    go.set()
    log.flush()
    log.record(an_event("again"))
    log.close()
    written = lines(folder)
    assert [line["seq"] for line in written] == [*range(1, 11), 28]
    assert written[-1]["message_id"] == "again"
    stats = log.stats()
    assert (stats.recorded, stats.written, stats.dropped, stats.waiting) == (28, 11, 17, 0)


def test_a_disk_that_fails_drops_counts_and_goes_on_when_it_works_again(
    monkeypatch: pytest.MonkeyPatch, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = True

    class Disk(FileIO):
        def write(self, data: Any) -> int:
            if broken:
                super().write(bytes(data)[: len(data) // 2])
                raise OSError(28, "No space left on device")
            return super().write(data)

    monkeypatch.setattr(eventlog, "FileIO", Disk)
    log = EventLog(folder, "n1")
    with caplog.at_level(logging.ERROR):
        log.record(an_event("lost"))
        log.flush()
    assert "No space left" in caplog.text
    assert log.dropped == 1
    broken = False
    log.record(an_event("kept"))
    log.close()
    assert [(line["message_id"], line["seq"]) for line in lines(folder)] == [("kept", 2)]


def test_after_close_events_are_dropped_and_a_second_close_does_nothing(folder: Path) -> None:
    log = EventLog(folder, "n1")
    log.record(an_event())
    assert log.close()
    log.record(an_event())
    assert log.close()
    assert log.dropped == 1
    assert "closed" in repr(log)
    assert len(lines(folder)) == 1


def test_close_gives_up_on_a_writer_that_hangs(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    go = threading.Event()
    monkeypatch.setattr(eventlog._Files, "write", lambda *_: go.wait(300))
    log = EventLog(folder, "n1")
    log.record(an_event())
    started = time.monotonic()
    assert not log.flush(0.02)
    assert not log.close(0.02)
    assert time.monotonic() - started < 60
    go.set()
    log._thread.join(60)


def test_recording_does_not_wait_for_a_writer_that_hangs(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    go, writers = threading.Event(), set[str]()

    def hang(*_: object) -> bool:
        writers.add(threading.current_thread().name)
        return go.wait(10)

    monkeypatch.setattr(eventlog._Files, "write", hang)
    log = EventLog(folder, "n1")
    for _ in range(100):
        log.record(an_event())
    assert not go.is_set()  # a caller that wrote, or waited, would not have returned yet
    go.set()
    assert log.close()
    assert writers == {"event log n1"}


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "0af7651916cd43dd8448eb211c80319c",
        ),
        (
            b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "0af7651916cd43dd8448eb211c80319c",
        ),
        ("nonsense", None),
        (7, None),
        (None, None),
    ],
)
def test_the_trace_id_is_that_of_traceparent(value: Any, wanted: str | None) -> None:
    assert trace_id_of({"traceparent": value}) == wanted
    assert trace_id_of(None) is None


def test_what_many_events_have_in_common_ends_before_the_message_id() -> None:
    assert DeliveryEvent._fields.index("message_id") == COMMON_FIELDS
    assert DeliveryEvent(PUBLISHED, "/")[COMMON_FIELDS:] == (None,) * 10
