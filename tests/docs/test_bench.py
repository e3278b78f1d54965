"""`python -m bench.clients` measures, checks the run, and writes both forms of the result."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import SECTIONS
from bench.contestants import BASE, Run
from bench.cpu import PLACES, STEPS
from bench.growth import SIZES
from bench.layers import STEPS as LAYERS
from bench.report import Figure, as_json, results_of
from tests.docs.processes import run_python
from tests.support.rabbitmq import RabbitMQ


@pytest.mark.timeout(180)
def test_bench_measures_each_client_and_writes_json(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    vhost = rabbitmq.make_vhost()
    file = tmp_path / "new" / "bench.json"
    options = ["--messages", "200", "--rounds", "1", "--json", str(file)]
    done = run_python("-m", "bench.clients", *options, "--url", rabbitmq.url(vhost))
    rabbitmq.delete_vhost(vhost)
    assert done.returncode == 0, done.stderr
    assert "publish, confirmed" in done.stdout
    written: dict[str, Any] = json.loads(file.read_text())
    assert written["results"].keys() >= {BASE, "ours: Broker", "ours: transport", "ours: embedded"}
    for figures in written["results"].values():
        assert figures["publish"]["median"] > 0
        assert figures["consume"]["median"] > 0
        assert figures["processor"]["median"] > 0
    assert written["machine"]["cores"] > 0
    assert "aio-pika" in written["versions"][BASE]


@pytest.mark.timeout(120)
def test_table_has_a_figure_for_each_layer_of_the_client(rabbitmq: RabbitMQ) -> None:
    vhost = rabbitmq.make_vhost()
    options = ["--messages", "400", "--rounds", "1", "--url", rabbitmq.url(vhost)]
    done = run_python("-m", "bench.layers", *options)
    rabbitmq.delete_vhost(vhost)
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines()[2:]]
    assert [row[0] for row in rows] == [f"| {step}" for step in LAYERS]
    assert all(float(row[5]) > 0 for row in rows)


@pytest.mark.timeout(120)
def test_one_command_runs_the_sections_that_it_names() -> None:
    done = run_python("-m", "bench", "starting", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    assert "[1/1] starting" in done.stderr
    assert "| from broker_client import Broker |" in done.stdout
    assert "| Broker.create to the first message |" in done.stdout


def test_one_command_names_its_sections_where_there_is_no_such_one() -> None:
    done = run_python("-m", "bench", "sped")
    assert done.returncode == 1
    assert "clients, cpu" in done.stderr


def test_each_section_of_the_one_command_is_a_module() -> None:
    for section in SECTIONS.values():
        assert importlib.util.find_spec(f"bench.{section.command[0]}") is not None


@pytest.mark.timeout(120)
def test_emitter_is_measured() -> None:
    done = run_python("-m", "bench.emitter", "--number", "500")
    assert done.returncode == 0, done.stderr
    assert "make, listen, emit" in done.stdout


@pytest.mark.timeout(120)
def test_growth_is_measured_in_every_direction() -> None:
    sizes = ["--most", "10", "--messages", "200", "--rounds", "1"]
    done = run_python("-m", "bench.growth", *sizes)
    assert done.returncode == 0, done.stderr
    assert [line.split(",")[0].strip("| ") for line in done.stdout.splitlines()[2:]] == list(SIZES)


@pytest.mark.timeout(120)
def test_file_is_measured_beside_memory(tmp_path: Path) -> None:
    file = tmp_path / "store.json"
    sizes = ["--messages", "200", "--rounds", "1", "--stored", "500", "--queued", "5000"]
    done = run_python("-m", "bench.store", *sizes, "--json", str(file))
    assert done.returncode == 0, done.stderr
    assert json.loads(file.read_text()).keys() == {"machine", "speed", "start", "memory"}
    assert "publish: memory" in done.stdout


@pytest.mark.timeout(120)
def test_replay_is_measured_beside_plain_republishing() -> None:
    done = run_python("-m", "bench.replay", "--count", "300", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()[1:]
    assert [line.split(":")[0] for line in lines] == ["file", "memory"]
    assert all("ratio" in line for line in lines)


@pytest.mark.timeout(120)
def test_calls_are_counted_by_room() -> None:
    options = ["consume", "--on", "memory", "--messages", "100", "--rooms"]
    done = run_python("-m", "bench.cpu", *options)
    assert done.returncode == 0, done.stderr
    assert {"asyncio", "consuming", "core", "transport"} <= set(done.stdout.split())


@pytest.mark.timeout(120)
def test_processor_time_of_every_step_is_measured() -> None:
    done = run_python("-m", "bench.cpu", "--messages", "100", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    table, _, ratios = done.stdout.partition("\n\n")
    assert "publish_many at" in ratios
    assert "consume: a file at" in ratios
    lines = [line.split() for line in table.splitlines()[1:]]
    assert [line[:2] for line in lines] == [[on, step] for on in PLACES for step in STEPS]
    calls = {(on, step): float(count) for on, step, _, count in lines}
    assert all(count > 10 for count in calls.values())
    assert calls["memory", "publish-many"] < calls["memory", "publish"]


def test_figure_is_the_median_with_its_range() -> None:
    assert str(Figure((3000.0, 1000.0, 2000.0))) == "2,000 (1.0-3.0k)"
    assert str(Figure((1234.0,))) == "1,234"


def test_client_that_never_finished_is_left_out() -> None:
    results = results_of({"one": [Run(10.0, 20.0, 50.0)], "two": []})
    assert as_json(results) == {
        "one": {
            "publish": {"median": 10, "rounds": [10]},
            "consume": {"median": 20, "rounds": [20]},
            "processor": {"median": 50, "rounds": [50]},
        }
    }
