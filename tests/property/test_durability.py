"""The SQLite file agrees with a simple model, after any sequence of writes."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_client.core.records import (
    COPY_BITS,
    AccessRecord,
    Append,
    BindingAdded,
    Delivered,
    Moved,
    QueueAdded,
    QueueRemoved,
    Record,
    Settled,
    StoredEntry,
    TopologyRecord,
    VHostAdded,
)
from broker_client.errors import StoreError
from broker_client.message import PERSISTENT
from broker_client.store.maintenance import check, compact
from tests.support.builders import a_message
from tests.support.faulty_store import DiskState
from tests.support.files import a_file, appended, opened, rows, written

QUEUES = ("a", "b", "c")
STEPS = st.lists(
    st.sampled_from(["append", "append", "fan", "deliver", "move", "settle", "remake", "commit"]),
    min_size=1,
    max_size=60,
)


class Everything:
    """The restored state of a store, for comparison."""

    def __init__(self) -> None:
        self.topology: list[str] = []
        self.entries: dict[str, list[tuple[Any, ...]]] = {}

    def restore_topology(self, records: Iterable[TopologyRecord]) -> None:
        self.topology = sorted(map(repr, records))

    def restore_access(self, records: Iterable[AccessRecord]) -> None:
        assert list(records) == []

    def restore_entries(self, vhost: str, queue: str, entries: Iterable[StoredEntry]) -> None:
        self.entries[queue] = [tuple(entry) for entry in entries]


def records_of(steps: list[str], chance: random.Random) -> list[list[Record]]:
    """Valid batches: only existing messages are delivered, moved and settled."""
    here: dict[int, str] = {}
    position = number = 0
    batch: list[Record] = [VHostAdded("/")]
    for name in QUEUES:
        batch.append(QueueAdded("/", name, False, {}))
        batch.append(BindingAdded("/", "amq.fanout", "queue", name, "", {}))
    batches = [batch]
    for step in steps:
        batch = batches[-1]
        if step == "commit":
            batches.append([])
        elif step in ("append", "fan"):
            number += 1
            body = chance.randbytes(chance.choice([0, 10, 5000]))
            message = a_message(body=body, delivery_mode=PERSISTENT, headers={"n": number})
            names = QUEUES if step == "fan" else [chance.choice(QUEUES)]
            for copy, name in enumerate(names):
                position += 1
                record_id = (number << COPY_BITS) + copy
                due = chance.choice([None, 17.25])
                batch.append(Append("/", name, record_id, message, position, 1, None, due))
                here[record_id] = name
        elif step == "remake":
            name = chance.choice(QUEUES)
            batch.append(QueueRemoved("/", name))
            batch.append(QueueAdded("/", name, True, {"x-max-length": number}))
            here = {id: queue for id, queue in here.items() if queue != name}
        elif here:
            record_id = chance.choice(list(here))
            if step == "deliver":
                batch.append(Delivered(record_id, chance.randrange(1, 5)))
            elif step == "move":
                position += 1
                batch.append(Moved(record_id, position, chance.choice([None, 3.5])))
            else:
                batch.append(Settled("/", here.pop(record_id), record_id))
    return batches


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(0, 10**6))
def test_a_file_gives_back_what_the_plain_model_does(steps: list[str], seed: int) -> None:
    disk, plain, read = DiskState(), Everything(), Everything()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "node.db"
        with opened(path) as file:
            for batch in records_of(steps, random.Random(seed)):
                written(file, *batch)
                disk.apply(batch)
        with opened(path) as file:
            file.recover(read)
            for record_id, held in disk.held.items():
                assert file.load(record_id >> COPY_BITS) == held.message
        disk.recover(plain)
        assert (read.topology, read.entries) == (plain.topology, plain.entries)
        kept = {record_id >> COPY_BITS for record_id in disk.held}
        assert rows(path, "SELECT count(*) FROM messages") == [(len(kept),)]
        assert check(str(path)).problems == ()


# --------------------------------------------------------------------- G9: torn and flipped


def recovered(path: Path) -> list[int]:
    """The numbers of the restored messages."""
    read = Everything()
    with opened(path) as file:
        file.recover(read)
    return [entry[0] >> COPY_BITS for entry in read.entries.get("q", [])]


def test_a_log_cut_anywhere_gives_back_a_beginning_of_what_was_committed(tmp_path: Path) -> None:
    """Each of ten commits is restored completely or not at all, and none after a missing one."""
    source = a_file(tmp_path / "source.db")
    with opened(source) as file:
        for number in range(1, 11):
            written(file, appended(number), appended(number + 100, position=number + 100))
        wal = Path(f"{source}-wal").read_bytes()
        database = source.read_bytes()
    cut = tmp_path / "cut.db"
    seen = set()
    for length in [*range(0, len(wal), 997), len(wal)]:
        for leftover in tmp_path.glob("cut.db*"):
            leftover.unlink()
        cut.write_bytes(database)
        Path(f"{cut}-wal").write_bytes(wal[:length])
        try:
            numbers = recovered(cut)
        except StoreError:  # the file itself was made in the log, and its beginning is cut off
            assert length < len(wal) / 2
            continue
        count = len(numbers) // 2
        assert numbers == [*range(1, count + 1), *range(101, 101 + count)]
        seen.add(count)
        with opened(cut) as file:
            written(file, appended(500, position=500))
        assert recovered(cut)[-1] == 500
    assert {0, 10} <= seen
    assert len(seen) > 5


@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_byte_is_found_or_does_no_harm_and_the_rest_can_be_saved(
    tmp_path: Path, seed: int
) -> None:
    """Only our exceptions are raised, and every restored message is as it was written."""
    path = a_file(tmp_path / "node.db", range(1, 101))
    data = bytearray(path.read_bytes())
    at = random.Random(seed).randrange(4096, len(data))
    data[at] ^= 0x55
    path.write_bytes(data)
    sound = not check(str(path)).problems
    report = compact(str(path), drop_damaged=True)
    assert check(str(path)).problems == ()
    if sound:
        assert report.lost == 0
    read = Everything()
    with opened(path) as file:
        file.recover(read)
        for entry in read.entries.get("q", []):
            number = entry[0] >> COPY_BITS
            message = file.load(number)
            assert message is not None
            assert message.body == b"body %d" % number
