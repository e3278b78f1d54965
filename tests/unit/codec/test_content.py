import dataclasses
import datetime
import uuid
from typing import Any

import pytest
from pydantic import BaseModel, Field

from broker_client.codec.content import JSON, TEXT, decode, encode
from broker_client.errors import InvalidContentError


@dataclasses.dataclass
class Order:
    id: int
    tags: set[str]


class Model(BaseModel):
    id: int
    at: datetime.date


@pytest.mark.parametrize(
    ("content", "body", "content_type"),
    [
        (b"\x00\xff", b"\x00\xff", None),
        (bytearray(b"ab"), b"ab", None),
        (memoryview(b"ab"), b"ab", None),
        ("größe", "größe".encode(), TEXT),
        ("", b"", TEXT),
        ({"id": 7, "name": "ü"}, '{"id":7,"name":"ü"}'.encode(), JSON),
        ([1, None, True], b"[1,null,true]", JSON),
        (None, b"null", JSON),
        (1.5, b"1.5", JSON),
        (Order(1, {"a"}), b'{"id":1,"tags":["a"]}', JSON),
        (Model(id=1, at=datetime.date(2026, 1, 2)), b'{"id":1,"at":"2026-01-02"}', JSON),
        (uuid.UUID(int=0), b'"00000000-0000-0000-0000-000000000000"', JSON),
        ({"at": datetime.date(2026, 1, 2)}, b'{"at":"2026-01-02"}', JSON),
    ],
)
def test_encode(content: Any, body: bytes, content_type: str | None) -> None:
    assert encode(content) == (body, content_type)


def circular() -> list[Any]:
    around: list[Any] = []
    around.append(around)
    return around


def deep() -> list[Any]:
    inner: list[Any] = []
    for _ in range(100_000):
        inner = [inner]
    return inner


@pytest.mark.parametrize(
    "content",
    [
        object(),
        float("nan"),
        {"x": float("inf")},
        "half a pair \ud800",
        {"x": "half a pair \ud800"},
        circular(),
        deep(),
    ],
    ids=["object", "nan", "infinity", "surrogate", "surrogate in json", "circular", "deep"],
)
def test_content_that_cannot_be_written_is_refused(content: Any) -> None:
    with pytest.raises(InvalidContentError):
        encode(content)


@pytest.mark.parametrize(
    ("body", "content_type", "content"),
    [
        (b"x", None, b"x"),
        (b"x", "application/octet-stream", b"x"),
        (b'{"id":7}', JSON, {"id": 7}),
        (b'{"id":7}', "Application/JSON; charset=utf-8", {"id": 7}),
        (b'{"id":7}', "application/vnd.order+json", {"id": 7}),
        ('{"id":7}'.encode("utf-16"), JSON, {"id": 7}),
        ('{"id":7}'.encode("utf-8-sig"), JSON, {"id": 7}),
        ("größe".encode(), TEXT, "größe"),
        ("größe".encode("latin-1"), 'text/plain; charset="iso-8859-1"', "größe"),
        (b"<p>", "text/html", b"<p>"),
    ],
)
def test_decode(body: bytes, content_type: str | None, content: Any) -> None:
    assert decode(body, content_type) == content


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"{", JSON),
        (b"", JSON),
        (b"\xff\xfe\xfa", JSON),
        (b"[" * 100_000, JSON),
        (b"\xff", TEXT),
        (b"x", "text/plain; charset=klingon"),
        (b"x", "text/plain; charset=base64"),
        (b"x", "text/plain; charset=utf\x008"),
    ],
)
def test_body_that_does_not_fit_its_type_is_invalid_content(body: bytes, content_type: str) -> None:
    with pytest.raises(InvalidContentError):
        decode(body, content_type)


class Named(BaseModel):
    given_name: str = Field(alias="givenName")


def test_model_is_written_by_its_aliases() -> None:
    assert encode(Named(givenName="Ada")) == (b'{"givenName":"Ada"}', JSON)
    assert encode([Named(givenName="Ada")]) == (b'[{"givenName":"Ada"}]', JSON)


@pytest.mark.parametrize("charset", ["punycode", "idna", "unicode_escape", "utf-7", "rot13", "hex"])
def test_charset_that_no_text_is_written_in_is_refused(charset: str) -> None:
    with pytest.raises(InvalidContentError, match="charset"):
        decode(b"a" * 400_000, f"text/plain; charset={charset}")


@pytest.mark.parametrize(
    "charset",
    [
        "utf-8",
        "UTF8",
        "us-ascii",
        "latin-1",
        "ISO-8859-15",
        "windows-1252",
        "cp1251",
        "utf-16-le",
        "utf-16",
        "utf-32",
        "koi8-r",
        "shift_jis",
        "euc-jp",
        "euc-kr",
        "big5",
        "gbk",
        "gb18030",
    ],
)
def test_charset_that_texts_are_written_in_is_taken(charset: str) -> None:
    assert decode("abc".encode(charset), f'text/plain; charset="{charset}"') == "abc"
