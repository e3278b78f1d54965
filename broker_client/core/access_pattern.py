"""The regular expressions of permissions: RabbitMQ's meaning, in bounded time.

RabbitMQ matches with PCRE on the bytes of a name, anywhere in it unless the pattern is anchored,
and gives up after a number of steps: what takes longer does not match. `re` of the standard
library cannot give up, so one pattern such as ``^(a|a)*$`` would hold up the whole broker. The
package `regex` can: a pattern that once took longer than `TIME_LIMIT` matches nothing more from
then on. So every pattern costs that time at most once, whatever names a client thinks of.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from broker_client.errors import AccessControlError, UnsupportedError, UsageError, install_extra

TIME_LIMIT = 0.01
"""Seconds of CPU time that one match may take. Names have 255 bytes at most."""
MAX_PATTERN_BYTES = 4096
_MAX_VERDICTS = 10_000

_BRACES = re.compile(rb"(\\[pP]\{[^}]*\}|\\.)|\{(?!\d+(?:,\d*)?\})", re.DOTALL)
"""What is escaped, or a brace that PCRE takes for itself: `regex` would read ``a{e}`` as a fuzzy
match."""


class AccessPattern:
    """One pattern of a permission, with the verdicts that it has given. Immutable otherwise."""

    __slots__ = ("_compiled", "_source", "_verdicts", "problem", "text")

    def __init__(self, text: str, variables: Mapping[str, str] | None = None) -> None:
        """
        Args:
            text: the pattern; an empty one matches the empty name only, as in RabbitMQ.
            variables: what a ``{name}`` in it stands for; taken literally.
        """
        self.text: str = text
        self._source = text
        for name, value in (variables or {}).items():
            self._source = self._source.replace(f"{{{name}}}", re.escape(value))
        self.problem: str | None = None
        """Why nothing matches any more: a match took too long, or the pattern is unusable."""
        self._compiled: Any = None  # of `regex`, which has no types
        self._verdicts: dict[str, bool] = {}

    def __repr__(self) -> str:
        return f"<AccessPattern {self.text!r}{' unusable' if self.problem else ''}>"

    def check(self) -> None:
        """Refuse what cannot be compiled.

        Raises:
            AccessControlError: says what is wrong with it.
            UnsupportedError: the package `regex` is not installed.
        """
        try:
            self.text.encode()
        except UnicodeEncodeError:
            raise AccessControlError(
                f"pattern {self.text!a}", "is invalid: it holds half of a surrogate pair"
            ) from None
        if self._source not in _TRIVIAL:
            self._compile()

    def matches(self, name: str) -> bool:
        """True where the pattern matches somewhere in `name`."""
        trivial = _TRIVIAL.get(self._source)
        if trivial is not None:
            return trivial or not name
        verdict = self._verdicts.get(name)
        if verdict is None:
            verdict = self._match(name)
            if len(self._verdicts) >= _MAX_VERDICTS:
                self._verdicts.clear()
            self._verdicts[name] = verdict
        return verdict

    def _match(self, name: str) -> bool:
        if self.problem is not None:
            return False
        try:
            if self._compiled is None:
                self._compiled = self._compile()
            return self._compiled.search(_encoded(name), timeout=TIME_LIMIT) is not None
        except (TimeoutError, MemoryError, RecursionError):
            self.problem = f"pattern {self.text!r} takes too long: write it without nested repeats"
        except UsageError as error:  # kept by another version of `regex`, or with the extra
            self.problem = str(error)
        return False

    def _compile(self) -> Any:
        try:
            import regex
        except ImportError:
            raise UnsupportedError("patterns of permissions", install_extra("server")) from None
        pattern = _encoded(self._source)
        if len(pattern) > MAX_PATTERN_BYTES:
            why = f"has {len(pattern):,} bytes; {MAX_PATTERN_BYTES:,} are allowed"
            raise AccessControlError(f"pattern {self.text[:40]!r}...", why)
        try:
            return regex.compile(_BRACES.sub(_as_pcre, pattern), regex.VERSION0)
        except (regex.error, RecursionError, OverflowError, ValueError) as error:
            why = "is nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise AccessControlError(f"pattern {self.text!r}", f"is invalid: {why}") from None


_TRIVIAL = {".*": True, "": False, "^$": False}
"""Patterns that need no regular expression: all, and the empty name only."""


def _as_pcre(found: re.Match[bytes]) -> bytes:
    return found[1] or rb"\{"


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
