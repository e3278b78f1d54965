"""The spool alone, without JVM and broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_client.spark.errors import (
    SpoolEpochError,
    SpoolLockedError,
    SpoolSegmentMissingError,
)
from broker_client.spark.reading.spool import Spool, read_segment

MIB = 2**20


def rows(*ids: str) -> pa.RecordBatch:
    return pa.record_batch({"message_id": pa.array(ids, pa.string())})


def opened(folder: Path, *, max_bytes: int = MIB, retain: int = 0) -> Spool:
    spool = Spool(folder, max_bytes=max_bytes, retain=retain)
    spool.open()
    return spool


def filled(folder: Path, segments: int, **how: int) -> Spool:
    spool = opened(folder, **how)
    for number in range(segments):
        spool.append(rows(f"m{number}"))
        spool.mark_acked(number + 1)
    return spool


def ids_in(spool: Spool, start: int, end: int) -> list[str]:
    return [
        message_id
        for segment in spool.between(start, end)
        for batch in read_segment(segment.path)
        for message_id in batch.column("message_id").to_pylist()
    ]


def test_segment_is_read_back_as_written(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    segment = spool.append(rows("a", "b"))
    assert (segment.seq, segment.rows) == (1, 2)
    assert segment.size_bytes == segment.path.stat().st_size
    assert ids_in(spool, 0, 1) == ["a", "b"]


def test_segments_survive_the_process_and_numbers_go_on(tmp_path: Path) -> None:
    first = filled(tmp_path, 2)
    epoch = first.epoch
    first.close()
    again = opened(tmp_path)
    assert again.epoch == epoch
    assert again.append(rows("m2")).seq == 3
    assert ids_in(again, 0, 3) == ["m0", "m1", "m2"]


def test_numbers_go_on_when_every_segment_is_deleted(tmp_path: Path) -> None:
    spool = filled(tmp_path, 2)
    spool.release(2)
    spool.close()
    again = opened(tmp_path)
    assert again.floor == again.last_seq == 2
    assert again.append(rows("x")).seq == 3


def test_numbers_go_on_from_the_query_when_the_folder_was_emptied(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.continue_after(7)
    assert spool.append(rows("x")).seq == 8


def test_half_written_segment_is_swept_away_at_the_next_start(tmp_path: Path) -> None:
    filled(tmp_path, 1).close()
    (tmp_path / ".000000000002-5-99.tmp").write_bytes(b"half")
    spool = opened(tmp_path)
    assert [segment.seq for segment in spool.after(0)] == [1]
    assert not list(tmp_path.glob(".*.tmp"))


def test_segment_is_synced_before_it_is_renamed_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    spool = opened(tmp_path)
    steps: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def noting_fsync(file: int) -> None:
        steps.append("folder" if Path(f"/proc/self/fd/{file}").resolve().is_dir() else "file")
        fsync(file)

    def noting_rename(path: Path, to: Path) -> Path:
        steps.append("rename")
        return rename(path, to)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(Path, "rename", noting_rename)
    spool.append(rows("a"))
    assert steps == ["file", "rename", "folder"]


def test_second_process_is_refused_and_told_who_holds_the_spool(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=MIB, owner="stream from orders")
    spool.open()
    code = (
        "import sys; from broker_client.spark.reading.spool import Spool\n"
        "from broker_client.spark.errors import SpoolLockedError\n"
        "try: Spool(sys.argv[1], max_bytes=1).open()\n"
        "except SpoolLockedError as error: print(error)"
    )
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, cwd=root
    )
    assert "in use by process" in done.stdout, done.stderr
    assert "stream from orders" in done.stdout
    with pytest.raises(SpoolLockedError):
        opened(tmp_path)
    spool.close()
    opened(tmp_path).close()


def test_offset_of_another_spool_is_refused(tmp_path: Path) -> None:
    here, there = filled(tmp_path / "here", 1), filled(tmp_path / "there", 1)
    here.check_epoch(here.epoch)
    with pytest.raises(SpoolEpochError, match="deleted or swapped"):
        here.check_epoch(there.epoch)


@pytest.mark.parametrize(
    ("max_rows", "end"), [(None, 4), (2, 2), (3, 3), (1, 1), (100, 4)], ids=str
)
def test_batch_is_as_many_whole_segments_as_the_rows_allow(
    tmp_path: Path, max_rows: int | None, end: int
) -> None:
    spool = filled(tmp_path, 4)
    assert spool.end_of_batch(0, max_rows=max_rows, max_bytes=None) == end


def test_batch_has_one_segment_even_beyond_the_limit(tmp_path: Path) -> None:
    spool = filled(tmp_path, 3)
    assert spool.end_of_batch(1, max_rows=None, max_bytes=1) == 2


def test_batch_without_new_segments_ends_where_it_began(tmp_path: Path) -> None:
    spool = filled(tmp_path, 3)
    assert spool.end_of_batch(3, max_rows=10, max_bytes=None) == 3


def test_missing_segment_is_an_error_unless_loss_is_accepted(tmp_path: Path) -> None:
    spool = filled(tmp_path, 3)
    spool.between(0, 3)[1].path.unlink()
    spool.close()
    again = opened(tmp_path)
    with pytest.raises(SpoolSegmentMissingError, match="segments 2 to 2"):
        again.between(0, 3)
    assert [segment.seq for segment in again.between(0, 3, missing_ok=True)] == [1, 3]


def test_release_deletes_up_to_the_offset_and_keeps_what_is_retained(tmp_path: Path) -> None:
    spool = filled(tmp_path, 5, retain=1)
    spool.release(3)
    assert [segment.seq for segment in spool.after(0)] == [3, 4, 5]
    spool.release(3)
    assert [segment.seq for segment in spool.after(0)] == [3, 4, 5]


def test_release_keeps_a_segment_whose_ack_is_in_doubt(tmp_path: Path) -> None:
    spool = opened(tmp_path)
    spool.append(rows("a"))
    spool.release(1)
    assert [segment.seq for segment in spool.unacked()] == [1]
    spool.mark_acked(1)
    spool.release(1)
    assert spool.after(0) == []


def test_full_spool_has_room_again_below_four_fifths(tmp_path: Path) -> None:
    spool = filled(tmp_path, 1)
    size = spool.size_bytes
    spool.close()
    spool = opened(tmp_path, max_bytes=5 * size)
    for number in range(2, 6):
        assert spool.has_room_for(size)
        spool.append(rows(f"m{number}"))
        spool.mark_acked(number)
    assert not spool.has_room_for(size)
    spool.release(1)
    assert spool.size_bytes == 4 * size
    assert spool.has_room_for(size)


def test_empty_spool_takes_a_message_larger_than_its_cap(tmp_path: Path) -> None:
    assert opened(tmp_path, max_bytes=10).has_room_for(1000)


Step = Callable[[Spool], None]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["append", "ack", "release", "reopen"]), max_size=25))
def test_whatever_happens_no_number_above_the_floor_is_missing(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    spool = opened(folder)
    appended = 0
    for step in steps:
        if step == "append":
            appended += 1
            assert spool.append(rows(f"m{appended}")).seq == appended
        elif step == "ack":
            spool.mark_acked(spool.last_seq)
        elif step == "release":
            spool.release((spool.floor + spool.last_seq + 1) // 2)
        else:
            spool.close()
            spool = opened(folder)
        live = [each.seq for each in spool.after(spool.floor)]
        assert live == list(range(spool.floor + 1, appended + 1))
        assert ids_in(spool, spool.floor, appended) == [f"m{seq}" for seq in live]
    spool.close()
