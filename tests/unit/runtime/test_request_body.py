"""Bodies of requests are read up to their limit."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from broker_client.runtime.request_body import read_limited


class Stream:
    """Yields one byte after another, and counts them."""

    def __init__(self, size: int) -> None:
        self.size, self.taken = size, 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while self.taken < self.size:
            self.taken += 1
            yield b"x"


@pytest.mark.parametrize("declared", ["", "4", "0004", "nonsense"])
async def test_body_within_the_limit_is_whole(declared: str) -> None:
    assert await read_limited(Stream(4), declared, 4) == b"xxxx"


@pytest.mark.parametrize(("declared", "taken"), [("5", 0), ("9" * 5_000, 0), ("", 5), ("1", 5)])
async def test_body_beyond_the_limit_is_not_read_to_its_end(declared: str, taken: int) -> None:
    stream = Stream(100)
    assert await read_limited(stream, declared, 4) is None
    assert stream.taken == taken
