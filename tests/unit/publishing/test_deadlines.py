"""The deadlines of publishes: a line of the publications themselves."""

from broker_client.message import Outgoing, Properties
from broker_client.publication import Origin, Publication
from broker_client.publishing.deadlines import PublishDeadlines
from broker_client.runtime.tasks import TaskGroup

ORIGIN = Origin("orders", lambda publication, error: False, TaskGroup("test"))


def due(deadline: float) -> Publication:
    return Publication(ORIGIN, Outgoing("", "q", b"", Properties(message_id="m")), 0.0, deadline)


def test_publications_become_due_by_their_deadlines_in_whatever_order_they_came() -> None:
    deadlines = PublishDeadlines()
    made = {at: due(at) for at in (3.0, 5.0, 1.0, 4.0, 2.0)}
    for publication in made.values():
        deadlines.put(publication)
    assert deadlines.next_at() == 1.0
    assert deadlines.take_due(0.5) == []
    assert deadlines.take_due(3.0) == [made[1.0], made[2.0], made[3.0]]
    assert deadlines.next_at() == 4.0
    assert deadlines.take_due(9.0) == [made[4.0], made[5.0]]
    assert deadlines.next_at() is None


def test_those_of_one_moment_become_due_in_the_order_in_which_they_came() -> None:
    deadlines = PublishDeadlines()
    later = due(2.0)
    equal = [due(1.0) for _ in range(10)]
    for publication in (later, *equal):
        deadlines.put(publication)
    assert deadlines.take_due(1.0) == equal


def test_one_that_has_ended_is_not_due() -> None:
    deadlines = PublishDeadlines()
    first, second, third = (due(at) for at in (2.0, 3.0, 1.0))
    for publication in (first, second, third):
        deadlines.put(publication)
    for publication in (first, third):
        publication.succeed(0.5)
    assert deadlines.next_at() == 3.0
    assert deadlines.take_due(9.0) == [second]


def test_those_that_have_ended_are_let_go_though_an_earlier_one_waits() -> None:
    deadlines = PublishDeadlines()
    waits, waits_too = due(5.0), due(6.0)
    deadlines.put(waits)
    for number in range(10_000):
        publication = due(5.5 if number % 2 else 4.0)  # in the line, and in the heap
        deadlines.put(publication)
        publication.succeed(0.0)
        deadlines.forget_ended(1)
        assert len(deadlines) <= 67
    deadlines.put(waits_too)
    assert deadlines.take_due(9.0) == [waits, waits_too]
