"""Values with a rule of their own: durations and sizes, and the base of the models."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core.core_schema import with_info_plain_validator_function

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema

YAML_CONTEXT = {"source": "yaml"}
"""Validation context under which a bare number is not a duration."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
DURATION_PATTERN = r"^\s*\d+(\.\d+)?\s*(ms|s|m|h|d)\s*$"
_DURATION = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([A-Za-zµ]*)\s*")

_SIZES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_SIZES |= {"kib": 2**10, "mib": 2**20, "gib": 2**30}
SIZE_PATTERN = r"^\s*\d+(\.\d+)?\s*([kKmMgG]i?)?[bB]?\s*$"
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def from_yaml(info: ValidationInfo) -> bool:
    """True where the rules of the YAML hold."""
    return bool((info.context or {}).get("source") == YAML_CONTEXT["source"])


class Settings(BaseModel):
    """Base of every model: unknown keys refused, values fixed, input never shown in errors.

    A model is built when its first instance is validated, by itself: the models in its fields are
    called, not built in. So a program builds those whose sections its configuration has. Defaults
    and constants that are models are made by `model_construct`, which builds nothing.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        defer_build=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        validate_by_name=True,
        validate_by_alias=True,
    )
    is_built_apart: ClassVar[bool] = True
    """False for members of a union that pydantic tells apart by a field."""
    yaml_keys: ClassVar[tuple[str, ...]] = ()
    """Further keys that the loader understands and turns into fields."""

    @model_validator(mode="before")
    @classmethod
    def _empty_keys_count_as_not_written(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, Mapping) or not from_yaml(info):
            return value
        known = {field.validation_alias or name for name, field in cls.model_fields.items()}
        return {key: each for key, each in value.items() if each is not None or key not in known}

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[BaseModel], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        if handler.field_name is None or not cls.is_built_apart:
            return handler(source)
        # The schema of JSON has one definition for each reference.
        reference = f"{cls.__module__}.{cls.__qualname__}:{id(cls)}"
        return with_info_plain_validator_function(cls._validated, ref=reference)

    @classmethod
    def _validated(cls, value: object, info: ValidationInfo) -> Self:
        # pydantic puts the errors of this call below the key at which the section stands.
        return cls.model_validate(value, context=info.context)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        from broker_client.config.attribute_docstrings import attribute_docstrings

        if core_schema["type"] == "function-plain":
            cls.model_rebuild()
            core_schema = cls.__pydantic_core_schema__
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema)["properties"]
        docstrings = attribute_docstrings(cls)
        for name, field in cls.model_fields.items():
            if name in docstrings:
                properties[field.validation_alias or name]["description"] = docstrings[name]
        return schema

    def __str__(self) -> str:
        return repr(self)


def duration_seconds(value: object, *, bare_allowed: bool = True) -> float:
    """Seconds from ``"250ms"``, ``"10s"``, ``"2m"``, ``"1h"``, ``"1d"`` or, in Python, a number.

    Raises:
        ValueError: no duration, a negative one, or a bare number where none is allowed.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("must be a duration such as 250ms, 10s, 2m or 1h")
    if isinstance(value, str):
        match = _DURATION.fullmatch(value)
        if match is None:
            raise ValueError(f"{value!r} is not a duration; write 250ms, 10s, 2m or 1h")
        number, unit = match.groups()
        if not unit:
            raise ValueError(_no_unit(number))
        if unit not in _UNITS:
            raise ValueError(f"{value!r} has an unknown unit {unit!r}; allowed: ms, s, m, h, d")
        seconds = float(number) * _UNITS[unit]
    elif bare_allowed:
        seconds = float(value)
    else:
        raise ValueError(_no_unit(f"{value:g}" if isinstance(value, float) else str(value)))
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError("a duration cannot be negative or infinite")
    return seconds


def _no_unit(number: str) -> str:
    text = f"{number} has no unit: write {number}s or {number}ms"
    if number.isdecimal() and int(number) >= 1000:
        text += f" (in rascal it means {int(number) / 1000:g}s)"
    return text


RATE_PATTERN = r"^\s*([1-9]\d*)\s*/\s*(\d+(?:\.\d+)?)?\s*(ms|s|m|h|d)\s*$"


def rate_of(value: object) -> tuple[int, float]:
    """(count, seconds) from a text such as ``"5/s"``, ``"100/m"`` or ``"10/30s"``.

    Raises:
        ValueError: no rate, or one of nothing.
    """
    match = re.fullmatch(RATE_PATTERN, value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("must be a number per period, such as 5/s, 100/m or 10/30s")
    count, number, unit = match.groups()
    seconds = float(number or 1) * _UNITS[unit]
    if not seconds:
        raise ValueError(f"{value!r} lets everything through; write for example 5/s")
    return int(count), seconds


def _rate(value: object) -> str:
    rate_of(value)
    return str(value)


def _seconds(value: object, info: ValidationInfo) -> float:
    return duration_seconds(value, bare_allowed=not from_yaml(info))


def _whole_seconds(value: object, info: ValidationInfo) -> int:
    seconds = _seconds(value, info)
    if seconds != int(seconds):
        # AMQP 0-9-1 §1.4.2.6: heartbeat is a short integer of seconds.
        raise ValueError("must be whole seconds")
    return int(seconds)


def size_bytes(value: object) -> int:
    """Bytes from a whole number or from text such as ``"64MiB"`` or ``"10MB"``.

    Raises:
        ValueError: neither of the two.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2].lower() not in _SIZES:
        raise ValueError("must be a number of bytes, or a size such as 64MiB or 10MB")
    return int(float(match[1]) * _SIZES[match[2].lower()])


Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]

_DURATION_SCHEMA = {"type": "string", "pattern": DURATION_PATTERN}
Duration = Annotated[
    float, BeforeValidator(_seconds), WithJsonSchema(_DURATION_SCHEMA, mode="validation")
]
WholeSeconds = Annotated[
    int,
    BeforeValidator(_whole_seconds),
    Field(ge=0, le=65535),
    WithJsonSchema(_DURATION_SCHEMA, mode="validation"),
]
Rate = Annotated[
    str,
    BeforeValidator(_rate),
    WithJsonSchema({"type": "string", "pattern": RATE_PATTERN}, mode="validation"),
]
ByteSize = Annotated[
    int,
    BeforeValidator(size_bytes),
    Field(ge=0),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": SIZE_PATTERN},
            ]
        },
        mode="validation",
    ),
]
