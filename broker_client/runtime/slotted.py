"""Dataclasses with slots that cost little to define.

`dataclasses.dataclass` writes and compiles up to six methods when the class is defined, which takes
most of the import of a module of small classes. `slotted` takes the fields from it, and writes each
method when it is first looked up: by a call, by `inspect.signature`, by a pickle. The result is a
dataclass for `fields`, `asdict`, `replace` and `match`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from reprlib import recursive_repr
from typing import Any, NoReturn, TypeVar, cast, dataclass_transform, overload

Class = TypeVar("Class", bound=type[Any])
Method = Callable[..., Any]


@overload
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def slotted(cls: Class, /) -> Class: ...


@overload
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def slotted(*, frozen: bool = True, eq: bool = True) -> Callable[[Class], Class]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def slotted(
    cls: Class | None = None, /, *, frozen: bool = True, eq: bool = True
) -> Class | Callable[[Class], Class]:
    """Make a dataclass with slots, as ``dataclass(frozen=frozen, eq=eq, slots=True)`` does.

    Args:
        cls: the class, where the decorator is written without parentheses.
        frozen: attributes cannot be assigned, and instances can be keys when `eq` is true.
        eq: instances are equal when their fields are; otherwise only to themselves.
    """

    def make(plain: Class) -> Class:
        made: Any = dataclass(init=False, repr=False, eq=False, slots=True)(plain)
        writers: dict[str, Callable[[type], Method]] = {
            "__init__": _frozen_init if frozen else _init,
            "__repr__": _repr,
        }
        if eq:
            writers["__eq__"] = _eq
        if eq and frozen:
            writers["__hash__"] = _hash
        elif eq:
            made.__hash__ = None
        for name, write in writers.items():
            if name not in plain.__dict__:
                setattr(made, name, _WrittenOnce(made, name, write))
        if frozen:
            for name in ("__setattr__", "__delattr__", "__getstate__", "__setstate__"):
                setattr(made, name, _Frozen.__dict__[name])
        return cast(Class, made)

    return make if cls is None else make(cls)


class _LeftOut:
    """Stands for an argument whose default is made anew for each instance."""

    def __repr__(self) -> str:
        return "<factory>"


_LEFT_OUT = _LeftOut()


class _WrittenOnce:
    """Stands for a method until it is looked up, then writes it and leaves it in its place."""

    __slots__ = ("_name", "_owner", "_write")

    def __init__(self, owner: type, name: str, write: Callable[[type], Method]) -> None:
        self._owner = owner
        self._name = name
        self._write = write

    def __get__(self, instance: object, kind: type | None = None) -> Any:
        method = self._write(self._owner)
        method.__qualname__ = f"{self._owner.__qualname__}.{self._name}"
        method.__module__ = self._owner.__module__
        setattr(self._owner, self._name, method)
        return method.__get__(instance, kind)


def _compiled(name: str, parameters: str, lines: list[str], names: dict[str, Any]) -> Method:
    body = "\n ".join(lines)
    exec(f"def {name}({parameters}):\n {body}", names)  # noqa: S102 - our own classes' fields
    method: Method = names[name]
    return method


def _frozen_init(cls: type) -> Method:
    # The slot's own setter: `object.__setattr__` would look it up by its name each time.
    return _written_init(cls, "_set_{0}(self, {1})")


def _init(cls: type) -> Method:
    return _written_init(cls, "self.{0} = {1}")


def _written_init(cls: type, assign: str) -> Method:
    names: dict[str, Any] = {"_left_out": _LEFT_OUT}
    positional, keyword = ["self"], ["*"]
    lines: list[str] = []
    for each in fields(cls):
        name, value = each.name, each.name
        names[f"_set_{name}"] = getattr(cls, name).__set__
        parameter = name
        if each.default is not MISSING:
            names[f"_default_{name}"] = each.default
            parameter = f"{name}=_default_{name}"
            value = name if each.init else f"_default_{name}"
        elif each.default_factory is not MISSING:
            names[f"_new_{name}"] = each.default_factory
            parameter = f"{name}=_left_out"
            value = f"_new_{name}() if {name} is _left_out else {name}"
            value = value if each.init else f"_new_{name}()"
        elif not each.init:
            continue
        if each.init:
            (keyword if each.kw_only else positional).append(parameter)
        lines.append(assign.format(name, value))
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = ", ".join(positional + (keyword if len(keyword) > 1 else []))
    method = _compiled("__init__", parameters, lines or ["pass"], names)
    types = {each.name: each.type for each in fields(cls) if each.init}
    method.__annotations__ = {**types, "return": None}
    return method


def _repr(cls: type) -> Method:
    shown = ", ".join(f"{each.name}={{self.{each.name}!r}}" for each in fields(cls) if each.repr)
    line = f"return self.__class__.__qualname__ + f'({shown})'"
    return recursive_repr()(_compiled("__repr__", "self", [line], {}))


def _eq(cls: type) -> Method:
    compared = [each for each in fields(cls) if each.compare]
    lines = [
        "if other.__class__ is not self.__class__: return NotImplemented",
        f"return {_values('self', compared)} == {_values('other', compared)}",
    ]
    return _compiled("__eq__", "self, other", lines, {})


def _hash(cls: type) -> Method:
    hashed = [each for each in fields(cls) if (each.compare if each.hash is None else each.hash)]
    return _compiled("__hash__", "self", [f"return hash({_values('self', hashed)})"], {})


def _values(instance: str, of: list[Field[Any]]) -> str:
    return "(" + "".join(f"{instance}.{each.name}, " for each in of) + ")"


class _Frozen:
    """The methods that frozen classes have beside the written ones."""

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __getstate__(self) -> list[object]:
        return [getattr(self, each.name) for each in fields(self)]  # type: ignore[arg-type]

    def __setstate__(self, state: list[object]) -> None:
        for each, value in zip(fields(self), state, strict=True):  # type: ignore[arg-type]
            object.__setattr__(self, each.name, value)
