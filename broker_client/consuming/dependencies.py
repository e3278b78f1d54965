"""Dependencies of handlers, by the library fast-depends (extra `depends`).

A handler that has any was written with that library, so it is imported already: where it is not,
there is nothing to do.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, get_args, get_origin

Handler = Callable[..., Any]


def dependencies_of(
    parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any]
) -> frozenset[str]:
    """Names of the parameters that are dependencies.

    Args:
        parameters: of a handler.
        hints: its annotations, `Annotated` included.
    """
    if "fast_depends" not in sys.modules:
        return frozenset()
    from fast_depends.dependencies import Dependant

    def is_dependency(name: str) -> bool:
        hint = hints.get(name)
        marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        return any(isinstance(each, Dependant) for each in (parameters[name].default, *marks))

    return frozenset(name for name in parameters if is_dependency(name))


def with_dependencies(handler: Handler, hints: Mapping[str, Any]) -> Handler:
    """`handler`, to be called by name without its dependencies; they are made for each call.

    What they open is closed when the handler has ended. Dependencies may take what the handler is
    called with, by its names.

    Args:
        handler: a coroutine function, or a plain one.
        hints: its annotations as objects. The library would look for the names in them among the
            local variables of all callers first.
    """
    from fast_depends import inject

    @functools.wraps(handler)
    async def in_loop(*args: Any, **named: Any) -> Any:
        return await handler(*args, **named)

    @functools.wraps(handler)
    def in_thread(*args: Any, **named: Any) -> Any:
        return handler(*args, **named)

    call: Any = in_loop if inspect.iscoroutinefunction(handler) else in_thread
    del call.__wrapped__
    signature = inspect.signature(handler)
    call.__annotations__ = dict(hints)
    call.__signature__ = signature.replace(
        parameters=[
            each.replace(annotation=hints.get(name, each.empty))
            for name, each in signature.parameters.items()
        ],
        return_annotation=signature.empty,
    )
    injected: Handler = inject(call, cast=False)
    return injected
