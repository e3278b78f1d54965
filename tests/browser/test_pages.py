"""Every page with data, on desktop and phone, dark and light: its contents, and who sees it."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from selenium.webdriver.common.keys import Keys

from tests.browser.conftest import Dashboard, log_in
from tests.support.browser import DESK, PHONE, Browser


class Page(NamedTuple):
    """A page, and texts on it."""

    parts: tuple[str, ...]
    says: tuple[str, ...]


PAGES = [
    Page(("overview",), ("Needs attention", "Ready", "Messages per second", "Backlog")),
    Page(("queues",), ("orders", "orders.dead", "mail", "Oldest")),
    Page(("queue", "/", "orders"), ("What it does", "Dead letters go to orders.dead", "Consumers")),
    Page(("queue", "/", "mail"), ("mailer-1", "Holds")),
    Page(("queue", "/", "orders.dead", "messages"), ("All 10.", "rejected", "no price for A-1")),
    Page(("queue", "/", "mail", "in-flight"), ("mailer-1", "Lease left", "mail-0")),
    Page(("queue", "/", "mail", "deferred"), ("Nothing is deferred.",)),
    Page(("dead-letters",), ("Why they died", "ValueError: no price for A-1", "orders.dead")),
    Page(("exchanges",), ("shop", "topic", "nowhere", "the default exchange")),
    Page(("exchange", "/", "shop"), ("Who would get this key?", "order.*.shipped", "mail")),
    Page(("topology",), ("shop", "unrouted", "orders.dead")),
    Page(("connections",), ("mailer", "shop 7")),
    Page(("vhosts",), ("guest", "configure .*", "classic", "none")),
    Page(("users",), ("guest", "administrator")),
    Page(("audit",), ("Audit",)),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: "-".join(page.parts))
def test_a_page_with_data_says_what_it_knows_and_has_no_barrier(
    browser: Browser, shop: Dashboard, page: Page
) -> None:
    log_in(browser, shop.page(*page.parts))
    for text in page.says:
        browser.see(text, "main")
    assert browser.barriers() == []
    browser.as_seen(DESK, dark=True)
    assert browser.barriers() == []
    assert browser.too_wide() == 0
    browser.as_seen(PHONE, dark=True)
    assert browser.too_wide() == 0
    assert browser.barriers() == []
    browser.as_seen(PHONE)
    assert browser.barriers() == []
    assert browser.errors() == []


DIALOGS = [
    ("queues", "Add a queue …", "Add a queue"),
    ("vhosts", "Add a virtual host …", "Add a virtual host"),
    ("vhosts", "Permissions …", "Permissions in /"),
    ("vhosts", "Limits …", "Limits of /"),
    ("vhosts", "Change …", "Change /"),
    ("vhosts", "Delete …", "Delete the virtual host /?"),
    ("users", "Add a user …", "Add a user"),
    ("users", "Permissions …", "Permissions of ada"),
    ("users", "Change …", "Change ada"),
    ("users", "Delete …", "Delete"),
]


def test_dialogs_have_no_barrier_on_a_telephone_dark_or_light(
    browser: Browser, own_shop: Dashboard
) -> None:
    own_shop.ask("PUT", "users", "ada", body={"password": "ada", "tags": "management"})
    log_in(browser, own_shop.page("overview"))
    for page, button, title in DIALOGS:
        browser.open(own_shop.page(page))
        browser.as_seen(PHONE, dark=True)
        browser.click("main button", button)
        browser.see(title, "dialog")
        assert browser.barriers() == [], title
        assert browser.too_wide() == 0, title
        browser.as_seen(PHONE)
        assert browser.barriers() == [], title
        browser.press(Keys.ESCAPE)
        browser.until("no dialog", lambda: not browser.all("dialog"))


EMPTY = [
    Page(("overview",), ("Nothing: no alarm",)),
    Page(("queues",), ("There is no queue yet.",)),
    Page(("queue", "/", "orders"), ("There is no such queue",)),
    Page(("dead-letters",), ("There are no dead letters.",)),
    Page(("exchange", "/", "shop"), ("There is no such exchange.",)),
    Page(("topology",), ("Nothing is declared here",)),
    Page(("connections",), ("There are no connections.",)),
    Page(("audit",), ("Audit",)),
    Page(("elsewhere",), ("There is no such page",)),
]


def test_pages_of_an_empty_broker_say_that_there_is_nothing(
    browser: Browser, empty: Dashboard
) -> None:
    log_in(browser, empty.page("overview"))
    for page in EMPTY:
        browser.open(empty.page(*page.parts))
        for text in page.says:
            browser.see(text, "main")
        assert browser.barriers() == [], page
        browser.as_seen(PHONE, dark=True)
        assert browser.too_wide() == 0, page
        assert browser.barriers() == [], page
        browser.as_seen(DESK)


def test_the_login_has_no_barrier_and_says_why_it_refuses(
    browser: Browser, empty: Dashboard
) -> None:
    browser.open(empty.page("queues"))
    browser.see("Log in")
    assert browser.barriers() == []
    browser.as_seen(PHONE, dark=True)
    assert browser.too_wide() == 0
    assert browser.barriers() == []
    browser.fill("input[name=user]", "guest")
    browser.fill("input[name=password]", "wrong")
    browser.click("form button")
    browser.until("a refusal", lambda: bool(browser.text("[role=alert]")))
    browser.until("the focus in a field", lambda: browser.focused()["tag"] == "input")
    browser.fill("input[name=password]", "guest")
    browser.click("form button")
    browser.see("Queues", "main h1")  # the page that was asked for


def test_logging_out_shows_the_login_and_takes_everything_away(
    browser: Browser, shop: Dashboard
) -> None:
    log_in(browser, shop.page("queues"))
    browser.see("orders.dead", "main")
    browser.click("button", "Log out")
    browser.see("Log in")
    assert "orders.dead" not in browser.run("return document.documentElement.outerHTML")
    browser.driver.refresh()
    browser.see("Log in")
