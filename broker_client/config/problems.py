"""Converts pydantic's errors to problems that users can act on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from broker_client.config.migration import advice
from broker_client.errors import Problem, nearest

Key = str | int

_MAPPING = "must be a mapping"
_EXPECTED = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "string_type": "must be text; put it in quotes",
    "dict_type": _MAPPING,
    "mapping_type": _MAPPING,
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "missing": "is missing",
    "too_short": "must not be empty",
}


def hint(name: str, known: Sequence[str]) -> str:
    """`` (did you mean 'x'?; allowed: ...)`` for an unknown `name`."""
    near = nearest(name, known)
    listed = "allowed: " + (", ".join(sorted(map(_shown, known))) or "none is declared")
    return f" (did you mean {near!r}?; {listed})" if near is not None else f" ({listed})"


def unknown_key(
    name: str, known: Sequence[str], sections: Mapping[str, Sequence[str]] | None = None
) -> str:
    """Text for a key that is not in `known`; `sections` as for `advice`."""
    advised = advice(name, known, sections)
    return f"unknown key: {advised}" if advised else "unknown key" + hint(name, known)


def _shown(name: str) -> str:
    return name or "''"


def dotted(keys: Sequence[Key]) -> str:
    """The printed form of a path: ``vhosts./.bindings[0].source``."""
    text = ""
    for key in keys:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else str(key)
    return text


def problems_of(error: ValidationError, annotation: object, root: str = "") -> list[Problem]:
    """One problem for each complaint in `error`, raised while validating `annotation`.

    Args:
        error: what pydantic raised.
        annotation: the type that was validated; used to name the keys that are allowed.
        root: the first word of every path.
    """
    head: tuple[Key, ...] = (root,) if root else ()
    return [
        Problem(dotted((*head, *path)), message)
        for path, message in complaints_of(error, annotation)
    ]


def complaints_of(error: ValidationError, annotation: object) -> list[tuple[tuple[Key, ...], str]]:
    """Path and text of each complaint; paths hold only keys that stand in the input."""
    complaints = []
    for detail in error.errors(include_url=False):
        path, parent = _resolve(detail["loc"], annotation)
        complaints.append((path, _message(detail, path, parent)))
    return complaints


def _message(detail: ErrorDetails, path: tuple[Key, ...], parent: object) -> str:
    kind = detail["type"]
    context: Mapping[str, Any] = detail.get("ctx", {})
    if kind == "extra_forbidden":
        name = str(path[-1]) if path else ""
        return unknown_key(name, keys_of(parent), sections_of(parent))
    if kind == "union_tag_invalid":
        tags = sorted(_tags(_unwrapped(parent)))
        return f"unknown strategy {context['tag']!r}" + hint(str(context["tag"]), tags)
    if kind == "union_tag_not_found":
        tags = sorted(_tags(_unwrapped(parent)))
        return f"names no strategy; write strategy: one of {', '.join(tags)}"
    if kind == "literal_error":
        expected = str(context["expected"]).replace(" or ", ", ").replace("'", "")
        given = detail["input"]
        shown = given if isinstance(given, str) else ""
        return f"unknown value {given!r}" + hint(shown, expected.split(", "))
    if kind == "value_error":
        return str(context["error"])
    if kind in _EXPECTED:
        expected = _EXPECTED[kind]
        return expected + _inside(parent, path) if expected == _MAPPING else expected
    text = detail["msg"].replace("Input should", "must")
    return text[0].lower() + text[1:]


def _inside(parent: object, path: tuple[Key, ...]) -> str:
    """What a mapping that belongs at the end of `path` may hold."""
    if _tags(_unwrapped(parent)):
        return ", such as {strategy: nack}"
    keys = keys_of(_unwrapped(_child(parent, path[-1]))) if path else []
    return f" (keys: {', '.join(sorted(keys))})" if keys else ""


def keys_of(model: object) -> list[str]:
    """The keys a mapping for `model` may have, as users write them."""
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return []
    keys = [
        str(field.validation_alias or name)
        for name, field in model.model_fields.items()
        # The key of a collection names its entries.
        if name != "name" or not field.is_required()
    ]
    return [*keys, *getattr(model, "yaml_keys", ())]


def sections_of(model: object) -> dict[str, list[str]]:
    """The keys of `model` behind which other keys stand, as paths, with these."""
    found: dict[str, list[str]] = {}
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return found
    short = getattr(model, "yaml_keys", ())
    for name, field in model.model_fields.items():
        key = str(field.validation_alias or name)
        inner = _unwrapped(field.annotation)
        if get_origin(inner) is dict:
            if key != "vhosts":
                continue  # `vhost` at the root is more likely a slip than a publication's
            key, inner = f"{key}.NAME", _unwrapped(get_args(inner)[1])
        elif get_origin(inner) is tuple:
            key, inner = (
                next((each for each in short if each + "s" == key), key),
                get_args(inner)[0],
            )
        if keys := keys_of(inner):
            found[key] = keys
    return found


def _resolve(loc: Sequence[Key], annotation: object) -> tuple[tuple[Key, ...], object]:
    """The path without pydantic's union tags, and the type that holds its last key.

    For complaints about a union itself, the second value is the union.
    """
    path: list[Key] = []
    here, parent = annotation, annotation
    for key in loc:
        here = _unwrapped(here)
        tags = _tags(here)
        if key in tags:
            here = tags[str(key)]
            continue
        path.append(key)
        parent, here = here, _child(here, key)
    return tuple(path), here if _tags(_unwrapped(here)) else parent


def _child(annotation: object, key: Key) -> object:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            if key in (name, field.validation_alias):
                return field.annotation
        return None
    arguments = get_args(annotation)
    if get_origin(annotation) is dict:
        return arguments[1]
    return arguments[0] if arguments else None


def _unwrapped(annotation: object) -> object:
    """`annotation` without ``Annotated`` and ``| None``."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
            continue
        if get_origin(annotation) in (Union, UnionType):
            some = [each for each in get_args(annotation) if each is not type(None)]
            if len(some) == 1:
                annotation = some[0]
                continue
        return annotation


def _tags(annotation: object) -> dict[str, object]:
    """Discriminator values of a union of strategies, with their models."""
    if get_origin(annotation) not in (Union, UnionType):
        return {}
    tags: dict[str, object] = {}
    for member in get_args(annotation):
        field = getattr(member, "model_fields", {}).get("strategy")
        if field is not None and get_origin(field.annotation) is Literal:
            tags[get_args(field.annotation)[0]] = member
    return tags
