"""Slotted classes behave as the dataclasses of the standard library."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from typing import Any, get_type_hints

import pytest

from broker_client.runtime.slotted import slotted


def declared(make: Callable[[type], type]) -> type[Any]:
    class Parcel:
        """A parcel."""

        name: str
        weight: float = 1.0
        tags: list[str] = field(default_factory=list, compare=False)
        secret: str = field(default="s", repr=False)
        opened: bool = field(default=False, init=False)
        sent_by: str = field(kw_only=True, default="me")

        def is_heavy(self) -> bool:
            return bool(self.weight > 10)

    return make(Parcel)


OURS = declared(slotted)
STANDARD = declared(dataclass(frozen=True, slots=True))


@slotted
class Point:
    """A place that can be pickled."""

    x: int
    y: int = 0


@slotted(frozen=False)
class Counter:
    """A number that changes."""

    count: int = 0
    doubled: int = field(init=False)

    def __post_init__(self) -> None:
        self.doubled = self.count * 2


@slotted(frozen=False, eq=False)
class Handle:
    """Something that is only itself."""

    number: int

    def __repr__(self) -> str:
        return f"<{self.number}>"


def test_slotted_class_is_shown_compared_and_taken_apart_as_a_standard_one() -> None:
    ours, standard = (made("a", 2.0, tags=["t"], sent_by="you") for made in (OURS, STANDARD))
    assert repr(ours) == repr(standard)
    assert asdict(ours) == asdict(standard)
    assert asdict(replace(ours, name="b")) == asdict(replace(standard, name="b"))
    assert ours == OURS("a", 2.0, sent_by="you")
    assert hash(ours) == hash(OURS("a", 2.0, sent_by="you")) == hash(standard)
    assert ours != OURS("a", 3.0, sent_by="you")
    assert ours != standard
    assert OURS("a").tags is not OURS("a").tags
    assert OURS.__match_args__ == STANDARD.__match_args__
    assert OURS.__slots__ == STANDARD.__slots__
    assert [each.name for each in fields(OURS)] == [each.name for each in fields(STANDARD)]
    assert OURS("a", 11.0).is_heavy()


def test_methods_are_written_when_they_are_looked_up_and_can_be_inspected() -> None:
    made, standard = declared(slotted), declared(dataclass(frozen=True, slots=True))
    assert not inspect.isfunction(made.__dict__["__init__"])
    assert str(inspect.signature(made)).replace(" -> None", "") == (
        "(name: 'str', weight: 'float' = 1.0, tags: 'list[str]' = <factory>, "
        "secret: 'str' = 's', *, sent_by: 'str' = 'me')"
    )
    assert list(inspect.signature(made).parameters) == list(inspect.signature(standard).parameters)
    assert inspect.isfunction(made.__dict__["__init__"])
    assert get_type_hints(Point.__init__) == {"x": int, "y": int, "return": type(None)}


def test_frozen_instance_refuses_changes_and_is_copied_and_pickled() -> None:
    point = Point(1)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
        del point.x
    assert copy.copy(point) == copy.deepcopy(point) == pickle.loads(pickle.dumps(point)) == point


def test_missing_and_unknown_arguments_are_refused_with_their_names() -> None:
    with pytest.raises(TypeError, match=r"Point.__init__\(\) missing .* argument: 'x'"):
        Point()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        Point(1, z=2)  # type: ignore[call-arg]


def test_class_that_is_not_frozen_changes_and_is_no_key() -> None:
    counter = Counter(2)
    counter.count += 1
    assert (counter.count, counter.doubled) == (3, 4)
    assert pickle.loads(pickle.dumps(counter)) == counter == copy.copy(counter)
    with pytest.raises(TypeError, match="unhashable"):
        hash(counter)


def test_class_without_eq_is_equal_to_itself_only_and_keeps_its_own_methods() -> None:
    handle = Handle(1)
    assert handle != Handle(1)
    assert len({handle, Handle(1)}) == 2
    assert repr(handle) == "<1>"
