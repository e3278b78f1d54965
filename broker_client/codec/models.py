"""Models of contents: what pydantic can check a body against, and describe as JSON schema."""

from __future__ import annotations

import importlib
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation


def find_model(model: Any) -> Any:
    """The type that `model` is, or names as ``module:Name``.

    Raises:
        ValueError: there is no such module, or no such name in it.
    """
    if not isinstance(model, str):
        return model
    module_name, _, name = model.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # an import of the application's own
        raise ValueError(f"there is no module {module_name!r}") from None
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"module {module_name!r} has no {name!r}")
        found = getattr(found, part)
    return found


def adapter_of(model: Any) -> TypeAdapter[Any]:
    """What checks contents against `model`.

    Raises:
        ValueError: pydantic cannot check anything against it.
    """
    try:
        return TypeAdapter(model)
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation) as error:
        raise ValueError(f"pydantic cannot check a content against {model!r}") from error


def complaints(error: ValidationError) -> str:
    """Where and why a content does not fit, without the content itself."""
    return "; ".join(
        f"{'.'.join(str(part) for part in each['loc']) or 'content'}: {each['msg']}"
        for each in error.errors(include_input=False, include_url=False)
    )
