"""The in-flight ledger against a dict and a sort."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from broker_client.core.in_flight import InFlightLedger
from broker_client.errors import StaleDeliveryError

TIMES = st.integers(0, 20).map(float)
TAGS = st.integers(0, 30)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("start"), st.none() | TIMES),
        st.tuples(st.just("settle"), TAGS),
        st.tuples(st.just("settle_through"), TAGS),
        st.tuples(st.just("extend"), st.tuples(TAGS, TIMES)),
        st.tuples(st.just("expire"), TIMES),
        st.tuples(st.just("issue"), st.none()),
    ),
    max_size=60,
)


class Model:
    """A slow model of the ledger."""

    def __init__(self) -> None:
        self.deadlines: dict[int, float | None] = {}
        self.last = 0

    def start(self, deadline: float | None) -> int:
        self.last += 1
        self.deadlines[self.last] = deadline
        return self.last

    def take(self, tags: list[int]) -> list[str]:
        for tag in tags:
            del self.deadlines[tag]
        return [f"m{tag}" for tag in tags]

    def due(self, now: float) -> list[int]:
        at = {tag: when for tag, when in self.deadlines.items() if when is not None}
        return sorted((tag for tag in at if at[tag] <= now), key=lambda tag: at[tag])


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_ledger_does_as_the_model(steps: list[tuple[str, object]]) -> None:
    ledger: InFlightLedger[str] = InFlightLedger()
    model = Model()
    for name, argument in steps:
        match name, argument:
            case "start", (float() | None) as deadline:
                assert ledger.start(f"m{model.last + 1}", deadline) == model.start(deadline)
            case "issue", _:
                model.last += 1
                assert ledger.issue() == model.last
            case "settle", int(tag):
                expected = model.take([tag] if tag in model.deadlines else [])
                assert ledger.settle(tag) == next(iter(expected), None)
            case "settle_through", int(tag):
                tags = [each for each in model.deadlines if each <= tag]
                assert ledger.settle_through(tag) == model.take(tags)
            case "extend", (int(tag), float(at)):
                try:
                    extended = ledger.extend(tag, at)
                except StaleDeliveryError:
                    assert tag not in model.deadlines
                else:
                    assert tag in model.deadlines
                    before = model.deadlines[tag]
                    if before is not None:
                        model.deadlines[tag] = max(at, before)
                    assert extended == (float("inf") if before is None else max(at, before))
            case "expire", float(now):
                # Which of two equal deadlines comes first is not promised.
                due = model.due(now)
                expired = ledger.expire(now)
                assert sorted(tag for tag, _ in expired) == sorted(due)
                assert [entry for _, entry in expired] == [f"m{tag}" for tag, _ in expired]
                model.take(due)
        assert len(ledger) == len(model.deadlines)
        times = [at for at in model.deadlines.values() if at is not None]
        assert ledger.next_deadline() == min(times, default=None)
