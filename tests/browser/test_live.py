"""Updates arrive, stop in hidden tabs, and a lost link is shown as lost."""

from __future__ import annotations

from selenium.webdriver.common.action_chains import ActionChains

from tests.browser.conftest import Dashboard, log_in
from tests.support.browser import Browser


def test_a_new_message_is_seen_without_loading_the_page_again(
    browser: Browser, own_shop: Dashboard
) -> None:
    log_in(browser, own_shop.page("queues", filter="mail"))
    browser.until("3 in mail", lambda: _ready(browser, "mail") == "3")
    browser.run("window.marked = true")
    own_shop.publish("mail", ["{}"] * 4)
    browser.until("7 in mail", lambda: _ready(browser, "mail") == "7")
    assert browser.run("return window.marked") is True


def test_a_lost_link_is_said_and_when_it_is_back_too(browser: Browser, own_shop: Dashboard) -> None:
    log_in(browser, own_shop.page("queues"))
    browser.until("live", lambda: browser.text(".link") == "Live")
    own_shop.served.stop()
    browser.until("the loss", lambda: browser.text(".link") == "Link lost")
    browser.see("The link to the server is lost", ".lost-bar")
    browser.see("lost", "#spoken")  # a screen reader is told
    assert browser.text("main h1") == "Queues"  # the last data is still shown
    own_shop.served.start()
    # In memory, so sessions are gone: the page asks for a login.
    browser.see("The session has ended")
    log_in(browser, own_shop.page("queues"))
    browser.until("live", lambda: browser.text(".link") == "Live")
    browser.see("There is no queue yet.", "main")


def test_a_hidden_tab_asks_for_no_updates_and_has_them_when_it_is_seen_again(
    browser: Browser, own_shop: Dashboard
) -> None:
    page = own_shop.page("queues", filter="mail")
    with browser.counted_updates():
        log_in(browser, page)
    browser.until("3 in mail", lambda: _ready(browser, "mail") == "3")
    browser.until("an event", lambda: ["event", False] in browser.run("return window.updates"))
    with browser.another_tab():
        browser.open(page)
        browser.until("3 in mail", lambda: _ready(browser, "mail") == "3")
        own_shop.publish("mail", ["{}"] * 4)
        # The server sends updates, which the visible tab gets.
        browser.until("7 in mail", lambda: _ready(browser, "mail") == "7")
    browser.until("7 in mail", lambda: _ready(browser, "mail") == "7")
    updates = [what for what, _ in browser.run("return window.updates")]
    hidden, seen = updates.index("hidden"), updates.index("visible")
    assert updates[hidden + 1 : seen] == []
    assert "stream" in updates[seen:]


def _ready(browser: Browser, queue: str) -> str:
    row = browser.run(
        """
        const names = [...document.querySelectorAll("tbody th")];
        const row = names.find((each) => each.innerText.split(/\\s/)[0] === arguments[0]);
        return row?.nextElementSibling.innerText ?? "";
        """,
        queue,
    )
    return str(row)


def test_a_click_opens_what_was_pressed_though_an_update_moves_it_meanwhile(
    browser: Browser, own_shop: Dashboard
) -> None:
    with browser.counted_updates():
        log_in(browser, own_shop.page("queues", filter="mail"))
    browser.until("3 in mail", lambda: _ready(browser, "mail") == "3")
    pointer = ActionChains(browser.driver)
    pointer.click_and_hold(browser.the("tbody th a", "mail")).perform()
    heard = browser.run("return window.updates.length")
    own_shop.declare("a.mail")
    browser.until("updates", lambda: browser.run("return window.updates.length") > heard + 1)
    assert len(browser.all("tbody tr")) == 1  # it is drawn when nothing is pressed any more
    pointer.reset_actions()
    ActionChains(browser.driver).release().perform()
    browser.see("mail", "main h1")
    browser.open(own_shop.page("queues", filter="mail"))
    browser.until("both", lambda: len(browser.all("tbody tr")) == 2)
