"""The same on a RabbitMQ, through its management API: data that it lacks is left out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.conftest import dashboard_of, log_in
from tests.support.browser import PHONE, Browser
from tests.support.operating import OperatedBroker, a_shop, an_order
from tests.support.rabbitmq import RabbitMQ

pytestmark = [pytest.mark.rabbitmq, pytest.mark.timeout(120)]


@pytest.fixture
def on_rabbitmq(rabbitmq: RabbitMQ) -> Iterator[OperatedBroker]:
    with dashboard_of(rabbitmq) as operated:
        a_shop(operated)
        yield operated
        for queue in ("orders", "orders.dead", "mail"):
            operated.ask("DELETE", "queues", "/", queue)
        for exchange in ("shop", "audit", "nowhere"):
            operated.ask("DELETE", "exchanges", "/", exchange)


def test_dead_letters_of_a_rabbitmq_are_looked_at_replayed_and_handled(
    browser: Browser, on_rabbitmq: OperatedBroker
) -> None:
    log_in(browser, on_rabbitmq.page("queues"))
    browser.see("RabbitMQ", "header")
    browser.see("orders.dead", "main")
    for unknown in ("Oldest", "Deferred"):
        assert unknown not in browser.text("thead")
    browser.open(on_rabbitmq.page("queue", "/", "orders"))
    browser.see("Dead letters go to orders.dead", "main")
    assert "In flight" not in browser.text("nav.tabs")
    browser.open(on_rabbitmq.page("dead-letters"))
    browser.click("button", "Look at them")
    browser.see("no price for A-1", "main")
    assert browser.barriers() == []
    browser.as_seen(PHONE, dark=True)
    assert browser.too_wide() == 0
    assert browser.barriers() == []
    browser.as_seen()
    browser.click("tbody tr:nth-child(2) button", "Replay")
    browser.see("Replay 3 messages?", "dialog")
    browser.click("dialog button", "Replay 3 messages")
    browser.see("3 messages replayed.", "#said")
    assert on_rabbitmq.ready("orders.dead") == 7
    handled = on_rabbitmq.handle("orders", 8)
    assert {an_order(number).encode() for number in (101, 102, 103)} <= set(handled)
    browser.click("button", "What became of it?")
    browser.see("3 handled", "main")


def test_virtual_hosts_of_a_rabbitmq_have_what_its_version_has(
    browser: Browser, rabbitmq: RabbitMQ
) -> None:
    has_types = rabbitmq.version >= (3, 11)
    with dashboard_of(rabbitmq) as operated:
        log_in(browser, operated.page("vhosts", filter="shops"))
        browser.click("main button", "Add a virtual host …")
        browser.fill("dialog input[name=name]", "shops/eu")
        browser.fill("dialog input[name=tags]", "production, eu")
        fields = browser.all("dialog select[name=default_queue_type]")
        assert (len(fields) == 1) == has_types
        browser.click("dialog button[value=ok]")
        browser.see("The virtual host shops/eu is there, and you may use it.", "#said")
        browser.see("shops/eu", "tbody")
        try:
            assert ("Queues are" in browser.text("thead")) == has_types
            assert operated.ask("GET", "vhosts", "shops/eu")["tags"] == ["production", "eu"]
            browser.click("tbody button", "Limits …")
            browser.fill("dialog input[name=max-queues]", "2")
            browser.click("dialog button[value=ok]")
            browser.see("Queues: 2", "tbody")
        finally:
            browser.click("tbody button", "Delete …")
            browser.see("Delete the virtual host shops/eu?", "dialog")
            browser.click("dialog button[value=ok]")
            browser.see("The virtual host shops/eu is deleted.", "#said")
