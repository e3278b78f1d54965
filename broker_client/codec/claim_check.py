"""Claim checks: large bodies go to a store as objects, and messages carry their names.

A body is stored as it would have been sent: compressed, then encrypted. Its reference is beside the
note of encryption in the headers, ``rascal.claimCheck`` with `object` and `size`, so whatever
copies the headers of a message keeps it: retries, forwards, dead letters.

A reference names an object and never a place: readers look in the store of their own configuration
only, whatever a message says. Nothing here deletes objects: any number of queues may have a copy of
the reference.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from uuid import uuid4

from broker_client.config import ClaimCheckConfig
from broker_client.errors import (
    BodyMissingError,
    ClaimCheckError,
    UnsupportedError,
    described,
    install_extra,
)
from broker_client.message import RASCAL, Properties

T = TypeVar("T")

_NOTE = "claimCheck"
_NAME = re.compile(r"[0-9a-zA-Z_-]{1,200}")


def claim_of(properties: Properties) -> object:
    """The reference that a message carries instead of its body, as it came; None without one."""
    history = (properties.headers or {}).get(RASCAL)
    return history.get(_NOTE) if isinstance(history, Mapping) else None


class BodyStore:
    """Where the bodies of one publication or subscription are.

    Args:
        config: of the store.
        owner: whose it is, for errors.

    Raises:
        UnsupportedError: fsspec, or its package for this store, is not installed.
    """

    def __init__(self, config: ClaimCheckConfig, owner: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise UnsupportedError("claim_check", install_extra("fsspec")) from None
        scheme = config.url.partition("://")[0]
        options = {"auto_mkdir": True} if scheme in ("file", "local") else {}
        try:
            self._files, self._folder = url_to_fs(config.url, **options, **config.options)
        except (ImportError, ValueError) as error:  # no package for it, or no such scheme
            raise UnsupportedError(f"claim_check at {scheme}://", described(error)) from None
        self.above: int = config.above
        self._timeout = config.timeout
        self._owner = owner

    def __repr__(self) -> str:
        return f"<BodyStore of {self._owner}>"

    async def check_in(self, body: bytes, properties: Properties) -> Properties:
        """Store `body`; returns properties that refer to it.

        Raises:
            ClaimCheckError: the store does not take it, or not in time.
        """
        name = uuid4().hex
        await self._in_thread("store", self._files.pipe_file, self._path(name), body)
        headers = dict(properties.headers or {})
        history = headers.get(RASCAL)
        headers[RASCAL] = {
            **(history if isinstance(history, Mapping) else {}),
            _NOTE: {"object": name, "size": len(body)},
        }
        return properties._replace(headers=headers)

    async def fetch(self, claim: object) -> bytes:
        """The body that a message's reference stands for.

        Raises:
            BodyMissingError: there is no such object, it has another size, or this is no reference.
            ClaimCheckError: the store does not answer, or not in time.
        """
        name = claim.get("object") if isinstance(claim, Mapping) else None
        size = claim.get("size") if isinstance(claim, Mapping) else None
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise BodyMissingError("its reference does not name an object")
        if not isinstance(size, int) or size < 1:
            raise BodyMissingError(f"its reference to object {name} has no size")
        try:
            body = await self._in_thread("fetch", self._read, self._path(name), size + 1)
        except FileNotFoundError:
            raise BodyMissingError(f"object {name} is not in the store of {self._owner}") from None
        if len(body) != size:
            more = "more" if len(body) > size else str(len(body))
            raise BodyMissingError(f"object {name} has {more} bytes instead of {size}")
        return body

    def _read(self, path: str, most: int) -> bytes:
        return bytes(self._files.cat_file(path, start=0, end=most))

    def _path(self, name: str) -> str:
        return f"{self._folder.rstrip('/')}/{name}"

    async def _in_thread(self, action: str, function: Callable[..., T], *args: Any) -> T:
        deadline = asyncio.timeout(self._timeout)
        try:
            async with deadline:
                return await asyncio.to_thread(function, *args)
        except FileNotFoundError:
            if action == "fetch":
                raise
            raise ClaimCheckError(self._owner, action, "there is no such folder") from None
        except Exception as error:
            late = isinstance(error, TimeoutError) and deadline.expired()
            reason = f"no answer within {self._timeout:g} s" if late else described(error)
            raise ClaimCheckError(self._owner, action, reason) from error
