"""Makes the pictures of the dashboard in the documents. Run by ``scripts/screenshots``."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pika

from tests.browser.conftest import Dashboard, a_dashboard, log_in
from tests.support.browser import DESK, PHONE, Browser, chromium_programs
from tests.support.operating import an_order, dead_to

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SECONDS_OF_TRAFFIC = 75
ERROR = {"error": {"name": "ValueError", "message": "no price for A-1"}, "tries": 3}


def a_bad_night(dashboard: Dashboard) -> None:
    """Queues with dead letters in one queue, after a failed release."""
    with dashboard.channel() as channel:
        channel.exchange_declare("shop", "topic", durable=True)
        channel.queue_declare("orders.dead", durable=True)
        for queue in ("orders", "invoices", "mail"):
            channel.queue_declare(queue, durable=True, arguments=dead_to("orders.dead"))
            channel.queue_bind(queue, "shop", f"{queue}.#")
    for queue, count, headers in (("orders", 25, {"rascal": ERROR}), ("invoices", 12, {})):
        orders = (an_order(number) for number in range(count))
        dashboard.publish(queue, orders, headers=headers)
        dashboard.reject(queue, count)


class Traffic:
    """A publisher and a consumer of ``mail``, until it is stopped."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_raised: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        with self._dashboard.channel(name="mailer") as channel:
            channel.basic_qos(prefetch_count=20)
            channel.basic_consume("mail", _ack, consumer_tag="mailer-1")
            number = 0
            while not self._stopped.is_set():
                for _ in range(5 + number % 7):
                    number += 1
                    properties = pika.BasicProperties(delivery_mode=2, message_id=f"mail-{number}")
                    channel.basic_publish("shop", "mail.new", an_order(number).encode(), properties)
                channel.connection.process_data_events(0.2)


def _ack(channel: pika.channel.Channel, method: pika.spec.Basic.Deliver, *_: object) -> None:
    channel.basic_ack(method.delivery_tag)


def take(browser: Browser, dashboard: Dashboard) -> None:
    """All pictures, as an operator comes by them."""
    log_in(browser, dashboard.page("overview"))
    time.sleep(SECONDS_OF_TRAFFIC)
    browser.see("dead letters are in this queue", "main")
    browser.screenshot(IMAGES / "dashboard-overview.png")
    browser.as_seen(PHONE, dark=True)
    browser.screenshot(IMAGES / "dashboard-phone.png")
    browser.as_seen(DESK)
    browser.open(dashboard.page("queue", "/", "orders.dead", "messages", find="price"))
    browser.see("25 of 37", "main")
    browser.click(".message summary")
    browser.see("What happened to it", "main")
    browser.run("document.querySelector('.message').scrollIntoView({block: 'center'})")
    browser.screenshot(IMAGES / "dashboard-message.png")
    browser.open(dashboard.page("dead-letters"))
    browser.click("tbody tr:nth-child(1) button", "Replay …")
    browser.click("dialog button", "Replay 25 messages")
    browser.see("25 waiting", "main")
    browser.see("12 messages", "main")
    browser.until("a sample", lambda: "12" in browser.text("nav a[aria-current]"))
    browser.screenshot(IMAGES / "dashboard-replayed.png")


def main() -> None:
    programs = chromium_programs()
    assert programs is not None, "chromium with chromium-driver is not installed"
    empty = Path("/dev/null")  # in place of axe-core, which is not used
    with a_dashboard() as dashboard, Browser(programs, empty) as browser:
        a_bad_night(dashboard)
        browser.as_seen(DESK)
        with Traffic(dashboard):
            take(browser, dashboard)


if __name__ == "__main__":
    main()
