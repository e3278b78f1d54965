"""The chain of causes of an error has no cycles."""

from __future__ import annotations

import pytest

from broker_client.runtime.tracebacks import without_cycles, without_frames


def chain_of(error: BaseException) -> list[BaseException]:
    """The chain as rich follows it; fails in a cycle."""
    found: list[BaseException] = []
    each: BaseException | None = error
    while each is not None:
        assert each not in found, "it leads back"
        found.append(each)
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return found


def raised_again_while_its_own_error_is_handled() -> BaseException:
    """As aiormq does with the error of a stream of asyncio."""
    stored = ConnectionResetError("reset")

    def fail() -> None:
        try:
            try:
                raise stored
            except ConnectionResetError as error:
                raise RuntimeError("of a library") from error
        finally:
            raise stored

    with pytest.raises(ConnectionResetError):
        fail()
    assert isinstance(stored.__context__, RuntimeError)
    return stored.__context__


def test_error_that_leads_back_to_itself_ends_with_what_came_first() -> None:
    error = raised_again_while_its_own_error_is_handled()
    assert [type(each) for each in chain_of(without_cycles(error))] == [
        RuntimeError,
        ConnectionResetError,
    ]


def test_error_without_frames_does_not_lead_back_either() -> None:
    error = raised_again_while_its_own_error_is_handled()
    assert len(chain_of(without_frames(error))) == 2


def test_chain_that_ends_is_left_as_it_is() -> None:
    first, second, third = ValueError(1), ValueError(2), ValueError(3)
    third.__cause__ = third.__context__ = second
    second.__context__ = first
    third.__suppress_context__ = False
    assert chain_of(without_cycles(third)) == [third, second, first]
    assert third.__context__ is second


def test_long_chain_is_followed_to_its_end() -> None:
    errors = [ValueError(number) for number in range(10_000)]
    for each, before in zip(errors[1:], errors, strict=False):
        each.__context__ = before
    errors[0].__context__ = errors[-1]
    without_cycles(errors[-1])
    assert errors[0].__context__ is None
