"""How long a handler keeps the event loop busy, measured step by step.

A coroutine holds up everything else, heartbeats too, from one of its awaits to the next. Two
looks at the clock a step tell how long; with this generator between, they cost less than a
microsecond a step (`bench/loop_lag.py`).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator
from time import perf_counter
from typing import Any

Blocked = Callable[[float], None]


@types.coroutine
def watched(
    work: Coroutine[Any, Any, Any], limit: float, blocked: Blocked
) -> Generator[Any, Any, Any]:
    """Await `work`, and call `blocked` with the seconds of each step that takes over `limit`."""
    resume: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        begun = perf_counter()
        try:
            awaited = resume(value)
        except StopIteration as end:
            if (taken := perf_counter() - begun) > limit:
                blocked(taken)
            return end.value
        except BaseException:
            if (taken := perf_counter() - begun) > limit:
                blocked(taken)
            raise
        if (taken := perf_counter() - begun) > limit:
            blocked(taken)
        try:
            value = yield awaited
            resume = work.send
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:  # noqa: BLE001 - thrown in for `work`: cancellation, say
            value, resume = error, work.throw
