"""All input from outside: a result, or one of our errors that says what is wrong with it.

A few hundred examples of each; `make fuzz` goes on from new seeds. What AMQP peers send is in
`test_amqp_encoding` and `test_server_connection`.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker_client.codec.compression import decompress
from broker_client.codec.content import decode, encode
from broker_client.config.loader import load_config, load_text
from broker_client.core.records import COPY_BITS
from broker_client.errors import ConfigError, InvalidContentError, StoreCorruptError, StoreError
from broker_client.events.delivery_event import ACKED, DeliveryEvent
from broker_client.events.log import EventLog
from broker_client.spark.errors import OptionError
from broker_client.spark.options import SinkOptions, SourceOptions, names, parse
from broker_client.store.maintenance import check, compact
from broker_client.store.sqlite import StoreFile
from tests.support.files import a_file

_PATIENT = [HealthCheck.too_slow, HealthCheck.data_too_large]
_IS_FUZZ = settings().max_examples > 100
"""True in `make fuzz`."""
EXAMPLES = settings(
    max_examples=1_000 if _IS_FUZZ else 200, deadline=None, suppress_health_check=_PATIENT
)
FEWER = settings(EXAMPLES, max_examples=300 if _IS_FUZZ else 50)
"""Health checks that do not apply to tests that write files."""
CONFIGURATIONS = [
    path.read_text() for path in sorted((Path(__file__).parents[2] / "config").glob("*.yaml"))
]
FOREIGN = re.compile(r"pydantic|Value error|type=|Traceback")
"""Text that a problem must not contain."""


def refusal(kind: type[Exception], read: Callable[..., object], *args: Any, **more: Any) -> str:
    """The text of an error of `kind`, "" without one. Any other error is a failure."""
    try:
        read(*args, **more)
    except kind as error:
        assert str(error)  # noqa: PT017 - whatever it is, it must say something
        return str(error)
    return ""


# --------------------------------------------------------------------------- configuration

TOKENS = st.one_of(
    st.sampled_from(
        [
            *("\n", " ", ":", "- ", "{", "}", "[", "]", "&a ", "*a", "<<: *a", "!!int ", "'", '"'),
            *("${A}", "${A:-", "%", "null", "~", "1e999", "0x", "10s", "-1ms", "amqp://", "\t"),
            *("vhosts:", "queues", "options", "retry", "@", "?", "\x00", "\ufeff", "é", "|", "#"),
        ]
    ),
    st.text(max_size=8),
)
EDITS = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), TOKENS), min_size=1, max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


def edited(text: str, edits: list[tuple[float, int, str]]) -> str:
    """`text` with a few parts replaced."""
    for where, count, token in edits:
        at = int(where * len(text))
        text = text[:at] + token + text[at + count :]
    return text


@EXAMPLES
@given(st.sampled_from(CONFIGURATIONS), EDITS)
def test_an_edited_configuration_is_read_or_refused_in_plain_words(
    text: str, edits: list[tuple[float, int, str]]
) -> None:
    told = refusal(ConfigError, load_text, edited(text, edits), "app.yaml")
    assert not FOREIGN.search(told), told


KEYS = ["vhosts", "/", "connection", "url", "queues", "q", "options", "arguments", "exchanges"]
KEYS += ["bindings", "publications", "subscriptions", "recovery", "retry", "defaults", "node"]


@EXAMPLES
@given(
    st.recursive(
        VALUES,
        lambda inner: st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
        max_leaves=12,
    )
)
def test_any_mapping_is_read_or_refused_in_plain_words(value: Any) -> None:
    source = value if isinstance(value, dict) else {"vhosts": value}
    told = refusal(ConfigError, load_config, source)
    assert not FOREIGN.search(told), told


# --------------------------------------------------------------------------- content

CONTENT_TYPES = st.one_of(
    st.none(),
    st.sampled_from(
        [
            *("application/json", "text/plain", "a/b+json", "application/msgpack"),
            *("text/plain; charset=utf-16", 'text/plain;charset="latin1"', "text/plain;charset="),
            "text/plain;charset=punycode",
        ]
    ),
    st.text(max_size=20),
    st.text(max_size=8).map("text/plain;charset={}".format),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
)


@EXAMPLES
@given(
    st.one_of(
        st.binary(max_size=60),
        st.text(max_size=30).map(str.encode),
        st.text('[]{},:"\\u0dD8eE.+-tfn ', max_size=40).map(str.encode),
    ),
    CONTENT_TYPES,
)
def test_a_body_is_decoded_or_refused(body: bytes, content_type: str | None) -> None:
    refusal(InvalidContentError, decode, body, content_type)


@EXAMPLES
@given(JSON)
def test_content_comes_back_as_it_was_sent(content: Any) -> None:
    try:
        body, content_type = encode(content)
    except InvalidContentError:
        assert "\\ud" in json.dumps(content) or "inf" in repr(content).lower()
        return
    assert decode(body, content_type) == content


@EXAMPLES
@given(
    st.binary(max_size=200),
    st.sampled_from([gzip.compress, zlib.compress, bytes]),
    st.sampled_from(["gzip", "deflate", "zstd", "x-gzip", " GZIP ", "br"]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=3),
    st.floats(0, 1),
)
def test_a_damaged_compressed_body_is_refused_or_no_larger_than_allowed(
    body: bytes, compress: Any, encoding: str, flips: list[tuple[float, int]], length: float
) -> None:
    data = bytearray(compress(body))
    for where, bits in flips:
        if data:
            data[int(where * len(data))] ^= bits
    data = data[: int(length * len(data)) + 1]
    try:
        made = decompress(bytes(data), encoding, 150)
    except InvalidContentError:
        return
    assert encoding == "br" or len(made) <= 150


# --------------------------------------------------------------------------- store file

COUNT = 120
PAGE = 4096
DAMAGE = st.lists(
    st.one_of(
        st.tuples(st.just("body"), st.floats(0, 1, exclude_max=True), st.integers(1, 255)),
        st.tuples(st.just("flip"), st.floats(0, 1, exclude_max=True), st.integers(1, 255)),
        st.tuples(st.just("tear"), st.floats(0, 1, exclude_max=True), st.integers(1, 7)),
        st.tuples(st.just("misdirect"), st.floats(0, 1, exclude_max=True), st.integers(0, 999)),
        st.tuples(st.just("cut"), st.floats(0, 1), st.just(0)),
    ),
    min_size=1,
    max_size=2,
)


@cache
def whole_file() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return a_file(Path(folder) / "node.db", range(1, COUNT + 1)).read_bytes()


def damaged(data: bytearray, damage: list[tuple[str, float, int]]) -> None:
    """Flip bits, of a body or anywhere; zero some sectors of a page, put a page in the place of
    another, cut the end."""
    for kind, where, what in damage:
        at = int(where * len(data))
        if kind == "body":
            at = data.find(b"body %d" % (1 + where * COUNT))
            if at >= 0:
                data[at] ^= what
        elif kind == "flip" and at < len(data):
            data[at] ^= what
        elif kind == "cut":
            del data[at:]
        else:
            start = at // PAGE * PAGE
            if kind == "tear":
                data[start + what * 512 : start + PAGE] = bytes(PAGE - what * 512)
            else:
                other = what % max(1, len(data) // PAGE) * PAGE
                data[start : start + PAGE] = data[other : other + PAGE]


class Restored:
    """Takes what a file gives back."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def restore_topology(self, records: Any) -> None:
        list(records)

    def restore_access(self, records: Any) -> None:
        list(records)

    def restore_entries(self, vhost: str, queue: str, entries: Any) -> None:
        self.ids += [entry[0] for entry in entries]


def given_out(path: Path) -> Iterator[int]:
    """The numbers of the messages that the file gives out; each is as it was put in."""
    restored = Restored()
    with contextlib.closing(StoreFile(str(path))) as file:
        file.open()
        file.recover(restored)
        for record_id in restored.ids:
            number = record_id >> COPY_BITS
            message = file.load(number)
            if message is None:
                raise StoreCorruptError(
                    str(path), f"message {number} is missing"
                )  # as `SqliteStore`
            assert message.body == b"body %d" % number
            yield number


@FEWER
@given(DAMAGE)
def test_a_damaged_store_file_is_refused_or_salvaged_and_gives_out_no_wrong_message(
    damage: list[tuple[str, float, int]],
) -> None:
    data = bytearray(whole_file())
    damaged(data, damage)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "node.db"
        path.write_bytes(data)
        told = refusal(StoreError, lambda: list(given_out(path)))
        assert not told or str(path) in told
        path.write_bytes(data)
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        problems: list[str] = []
        told = refusal(StoreError, lambda: problems.extend(check(str(path)).problems))
        told = told or refusal(StoreError, compact, str(path), drop_damaged=True)
        if told:
            assert str(path) in told
            return
        saved = list(given_out(path))
        assert check(str(path)).problems == ()
        if not problems:
            assert saved == list(range(1, COUNT + 1))


# --------------------------------------------------------------------------- event log


@FEWER
@given(
    st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20), st.floats(0, 4e9)), max_size=5),
    st.binary(max_size=200),
)
def test_an_event_log_has_whole_lines_only_whatever_a_crash_has_left(
    events: list[tuple[str, str, float]], left: bytes
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = EventLog(folder, "n1")
        for message_id, vhost, ts in events:
            log.record(DeliveryEvent(event=ACKED, vhost=vhost, ts=ts, message_id=message_id))
        assert log.close()
        lines = [
            json.loads(line)
            for file in sorted(folder.rglob("*.jsonl"))
            for line in file.read_bytes().split(b"\n")[:-1]
        ]
        assert sorted(line["message_id"] for line in lines) == sorted(each[0] for each in events)
        day = folder / "dt=2026-01-01" / "node=n1"
        day.mkdir(parents=True, exist_ok=True)
        (day / ".left.jsonl.open").write_bytes(left)
        log = EventLog(folder, "n1")
        log.record(DeliveryEvent(event=ACKED, vhost="/", ts=1.0, message_id="m"))
        assert log.close()
        assert all(file.read_bytes().endswith(b"\n") for file in folder.rglob("*.jsonl"))


# --------------------------------------------------------------------------- Spark options

OPTION_TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            *("true", "FALSE", "10s", "1", "-1", "first", "0", "1_000", "²", "٣", "9" * 5000),
            *("amqp://h", "amqp://u:p@h/v", "dead", "column", "stream", "json", "1MiB", "nan s"),
        ]
    ),
)


@EXAMPLES
@given(
    st.sampled_from([SourceOptions, SinkOptions]),
    st.dictionaries(
        st.one_of(
            st.sampled_from([*names(SourceOptions), *names(SinkOptions), "path", "URL"]),
            st.text(max_size=6),
        ),
        OPTION_TEXTS,
        max_size=7,
    ),
)
def test_options_of_spark_are_read_or_refused_by_name(kind: Any, options: dict[str, str]) -> None:
    refusal(OptionError, parse, kind, options)
