"""A thousand queues, and one with very many messages; the variable MESSAGES sets how many."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.browser.conftest import Dashboard, a_dashboard, log_in
from tests.support.browser import PHONE, Browser
from tests.support.operating import an_order

QUEUES = 1000
MESSAGES = int(os.environ.get("MESSAGES", "10000"))


@pytest.fixture(scope="module")
def crowd() -> Iterator[Dashboard]:
    with a_dashboard() as dashboard:
        queues = [
            {"name": f"work.{number:04}", "vhost": "/", "durable": True, "arguments": {}}
            for number in range(QUEUES - 1)
        ]
        queues.append({"name": "full", "vhost": "/", "durable": True, "arguments": {}})
        dashboard.ask("POST", "definitions", body={"queues": queues})
        dashboard.publish("full", (an_order(number) for number in range(MESSAGES)))
        yield dashboard


def test_a_thousand_queues_are_filtered_and_sorted_at_once_and_survive_a_reload(
    browser: Browser, crowd: Dashboard
) -> None:
    log_in(browser, crowd.page("queues"))
    browser.see("1,000 queues", "main")
    assert len(browser.all("tbody tr")) == 50
    # The fastest of several, since the machine may be busy.
    assert min(_milliseconds(browser, f"work.09{number}") for number in range(9)) < 500
    browser.until("ten rows", lambda: len(browser.all("tbody tr")) == 10)
    browser.open(crowd.page("queues"))
    browser.click("th button", "Ready")
    browser.until("the fullest first", lambda: browser.text("tbody th").startswith("full"))
    address = browser.driver.current_url
    assert "sort=-ready" in address
    browser.driver.refresh()
    browser.until("the fullest first", lambda: browser.text("tbody th").startswith("full"))
    assert browser.driver.current_url == address
    browser.click("button", "Next")
    browser.see("Page 2 of 20", "main")
    assert browser.barriers() == []
    browser.as_seen(PHONE, dark=True)
    assert browser.too_wide() == 0


@pytest.mark.parametrize("parts", [("overview",), ("topology",), ("dead-letters",)], ids="-".join)
def test_other_pages_stay_usable_with_a_thousand_queues(
    browser: Browser, crowd: Dashboard, parts: tuple[str, ...]
) -> None:
    log_in(browser, crowd.page(*parts))
    browser.until("its content", lambda: browser.text("main").count("\n") > 5)
    assert browser.run("return document.querySelectorAll('*').length") < 3000
    browser.as_seen(PHONE)
    assert browser.too_wide() == 0
    assert browser.barriers() == []


def test_a_queue_with_very_many_messages_is_looked_into_from_its_head(
    browser: Browser, crowd: Dashboard
) -> None:
    log_in(browser, crowd.page("queue", "/", "full", "messages"))
    browser.see(f"The first 50 of {MESSAGES:,}.", "main")
    browser.fill("#field-find", '"order": 17,')
    browser.see("1 of 50 looked at match.", "main")
    browser.until("the word in the address", lambda: "find=" in browser.driver.current_url)
    assert crowd.ready("full") == MESSAGES  # peeking removes nothing


def _milliseconds(browser: Browser, filter_text: str) -> float:
    """Time from a word in the filter to the next frame."""
    took = browser.driver.execute_async_script(
        """
        const [text, done] = arguments;
        const field = document.querySelector("input[name=filter]");
        const start = performance.now();
        field.value = text;
        field.dispatchEvent(new Event("input", {bubbles: true}));
        requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)));
        """,
        filter_text,
    )
    return float(took)
