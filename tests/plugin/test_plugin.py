"""The pytest plugin, used by the tests of a program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from textwrap import dedent

import pytest

from tests.support.rabbitmq import RabbitMQ

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.timeout(120)

APP = """
vhosts:
  /:
    connection: amqp://nobody@nowhere.example/
    exchanges: [jobs, dead-letters]
    queues:
      work: {options: {dead_letter_exchange: dead-letters}}
      failed:
    bindings: ["jobs[job.*] -> work", "dead-letters -> failed"]
    publications:
      jobs: {exchange: jobs, routing_key: job.new}
      once: {exchange: jobs, routing_key: job.new, retry_nacked: 0}
    subscriptions:
      work: {queue: work, recovery: patient}
recovery:
  patient:
    - {strategy: republish, defer: 50s, attempts: 2}
    - {strategy: nack}
"""
BEGIN = """
import asyncio
import logging
import time

import pytest
from broker_client import MessageReturnedError, PublishNackedError
"""

RunTests = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester) -> RunTests:
    """Runs the tests of a program in a separate process."""
    pytester.makefile(".yaml", app=APP)
    pytester.makeini(
        """
        [pytest]
        asyncio_mode = auto
        asyncio_default_fixture_loop_scope = function
        broker_config = app.yaml
        filterwarnings = error
        """
    )

    def run(tests: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(BEGIN + dedent(tests))
        return pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", *options)

    return run


@pytest.fixture(params=["embedded", pytest.param("rabbitmq", marks=pytest.mark.rabbitmq)])
def url_option(request: pytest.FixtureRequest) -> Iterator[tuple[str, ...]]:
    if request.param == "embedded":
        yield ()
        return
    server: RabbitMQ = request.getfixturevalue("rabbitmq")
    vhost = server.make_vhost()
    yield ("--broker-url", server.url(vhost))
    server.delete_vhost(vhost)


def test_recorder_and_faults_tell_what_the_program_did(
    run: RunTests, url_option: tuple[str, ...]
) -> None:
    tests = """
    async def test_recorder_notes_publishes_and_handled_messages(broker, broker_recorder):
        @broker.handle("work")
        async def work(job): ...

        await (await broker.publish("jobs", {"id": 1}, headers={"tenant": "acme"}))
        with pytest.raises(MessageReturnedError):
            await (await broker.publish("jobs", {"id": 2}, "nowhere"))
        [handled] = await broker_recorder.wait_handled("work")
        assert (handled.content, handled.outcome, handled.error) == ({"id": 1}, "acked", None)
        first, second = await broker_recorder.wait_published("jobs", 2)
        assert (first.content, first.outcome) == ({"id": 1}, "success")
        assert first.routing_key == "job.new"
        assert first.headers == {"tenant": "acme"}
        assert (second.routing_key, second.outcome) == ("nowhere", "return")
        assert broker_recorder.published("once") == []

    async def test_broker_is_empty_at_the_start_of_each_test(broker):
        assert await broker.purge("work") == 0
        await (await broker.publish("jobs", {"id": 3}))

    async def test_broker_is_empty_after_a_test_that_left_a_message(broker):
        assert await broker.purge("work") == 0

    async def test_nacked_publish_fails_where_it_is_not_repeated(broker, broker_faults):
        broker_faults.nack_next()
        with pytest.raises(PublishNackedError):
            await (await broker.publish("once", 1))
        await (await broker.publish("once", 2))

    async def test_nacked_publish_is_repeated(broker, broker_faults, broker_recorder):
        @broker.handle("work")
        async def work(job): ...

        broker_faults.nack_next(2)
        await asyncio.gather(*[await broker.publish("jobs", n) for n in range(5)])
        handled = await broker_recorder.wait_handled("work", 5)
        assert sorted(each.content for each in handled) == [0, 1, 2, 3, 4]

    async def test_lost_link_delivers_again(broker, broker_faults, broker_recorder):
        begun = asyncio.Event()

        @broker.handle("work")
        async def work(job):
            if not begun.is_set():
                begun.set()
                await asyncio.sleep(60)

        await (await broker.publish("jobs", 1))
        await begun.wait()
        broker_faults.lose_link()
        await broker_recorder.wait_handled("work", timeout=30)
        assert [each.outcome for each in broker_recorder.calls("work")] == ["lost", "acked"]

    async def test_publish_waits_while_connections_are_refused(broker, broker_faults):
        logging.getLogger("broker_client").setLevel(logging.CRITICAL)
        paused = asyncio.Event()
        with broker_faults.refuse("maintenance"):
            broker_faults.lose_link()
            publication = await broker.publish("jobs", 1)
            publication.on("paused", lambda message_id: paused.set())
            await paused.wait()
            assert not broker.health().ready
        await asyncio.wait_for(publication, 30)

    async def test_publish_waits_while_the_broker_blocks(broker, broker_faults):
        blocked, unblocked = asyncio.Event(), asyncio.Event()
        broker.on("blocked", lambda reason, vhost: blocked.set())
        broker.on("unblocked", lambda vhost: unblocked.set())
        with broker_faults.block("memory"):
            await blocked.wait()
            publication = await broker.publish("jobs", 1)
            assert broker.stats().vhosts["/"].publish_queue.paused
        await unblocked.wait()
        await publication
    """
    result = run(tests, *url_option)
    result.assert_outcomes(passed=8)


def test_hour_of_delay_passes_in_no_time_and_dead_letters_are_recorded(run: RunTests) -> None:
    tests = """
    @pytest.mark.broker_virtual_time
    async def test_job_that_fails_is_dead_lettered_after_two_pauses(broker, broker_recorder):
        began, loop_began = time.monotonic(), asyncio.get_running_loop().time()

        @broker.handle("work")
        async def work(job):
            raise ValueError(job)

        await (await broker.publish("jobs", {"id": 1}))
        [dead] = await broker_recorder.wait_dead_lettered("work", timeout=200)
        assert 100 <= asyncio.get_running_loop().time() - loop_began < 101
        assert time.monotonic() - began < 60
        assert [type(each.error) for each in broker_recorder.calls("work")] == [ValueError] * 3
        assert dead.message.tries == 3
        assert broker_recorder.handled() == []

    @pytest.mark.broker_virtual_time
    async def test_message_published_with_a_delay_comes_at_its_time(broker, broker_recorder):
        loop = asyncio.get_running_loop()
        came = []

        @broker.handle("work")
        def work(job):  # in a thread, for which time stands still
            time.sleep(0.05)
            came.append(loop.time())

        began = loop.time()
        await (await broker.publish("jobs", 1, delay=3600))
        await broker_recorder.wait_handled("work", timeout=4000)
        assert 3600 <= came[0] - began < 3601

    async def test_time_is_real_without_the_marker(broker):
        before = time.monotonic()
        await asyncio.sleep(0.05)
        assert time.monotonic() - before >= 0.05
    """
    run(tests).assert_outcomes(passed=3)
    skipped = run(tests, "--broker-url", "amqp://127.0.0.1:1/", "-k", "comes_at")
    skipped.assert_outcomes(skipped=1, deselected=2)


def test_what_is_left_behind_fails_the_test(run: RunTests) -> None:
    result = run(
        """
    async def test_message_that_is_never_settled(broker):
        got = asyncio.Event()
        await broker.subscribe("work", lambda message, content, ack_or_nack: got.set())
        await (await broker.publish("jobs", 1))
        await got.wait()

    async def test_task_that_is_left(broker):
        global left
        left = asyncio.create_task(asyncio.sleep(60), name="left over")

    async def test_wait_for_what_does_not_come(broker, broker_recorder):
        await (await broker.publish("jobs", {"id": 9}))
        await broker_recorder.wait_handled("work", timeout=0.05)
    """
    )
    result.assert_outcomes(passed=2, errors=2, failed=1)
    result.stdout.fnmatch_lines_random(
        [
            "*subscription 'work': 1 unsettled*",
            "*task 'left over'*",
            "*waited 0.05 s for 1 messages handled by 'work'; published: *'id': 9*",
        ]
    )


def test_configuration_is_taken_from_a_fixture_of_the_program(run: RunTests) -> None:
    result = run(
        """
    @pytest.fixture
    def broker_config():
        return {"vhosts": {"/": {"queues": ["mine"]}}}

    async def test_queue_of_the_fixture_is_there(broker):
        await (await broker.publish("/mine", 1))
    """
    )
    result.assert_outcomes(passed=1)


def test_missing_configuration_is_explained(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nasyncio_mode = auto\n")
    pytester.makepyfile("async def test_any(broker): ...")
    result = pytester.runpytest_subprocess("-q")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no configuration for the fixture `broker`*"])


def test_plugin_imports_nothing_of_the_package_where_no_test_uses_it(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_any():
            assert "pytest_broker_client" in sys.modules
            assert not [name for name in sys.modules if name.split(".")[0] == "broker_client"]
        """
    )
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=1)


def test_fixtures_are_listed_with_their_descriptions(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess("--fixtures")
    for name in ("broker ", "broker_recorder", "broker_faults", "broker_config"):
        result.stdout.fnmatch_lines([f"{name}*pytest_broker_client*"])
