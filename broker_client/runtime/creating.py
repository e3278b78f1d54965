"""`Creating`: what a class returns that is created with `await` or with `async with`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, Never, Protocol, TypeVar

from broker_client.runtime import forks


class _Created(Protocol):
    async def shutdown(self) -> None: ...


T = TypeVar("T", bound=_Created)


class Creating(Generic[T]):
    """Awaitable, and an async context manager that shuts down what it has created."""

    def __init__(self, name: str, create: Callable[[], Coroutine[Any, Any, T]]) -> None:
        """
        Args:
            name: of the class.
            create: makes the object.
        """
        self._name, self._create = name, create
        self._forks = forks.count
        self._created: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._create().__await__()

    def __getattr__(self, name: str) -> Never:
        kind, variable = self._name, self._name.lower()
        raise AttributeError(
            f"this {kind} is not created yet and has no {name!r}: write `async with "
            f"{kind}.create(...) as {variable}`, or `{variable} = await {kind}.create(...)`"
        )

    async def __aenter__(self) -> T:
        self._forks = forks.count
        self._created = await self._create()
        return self._created

    async def __aexit__(self, *_raised: object) -> None:
        # A forked child that leaves the block ends; what was created is its parent's.
        if self._created is not None and forks.count == self._forks:
            await self._created.shutdown()
