"""From "messages pile up" to "replayed and handled", as an operator walks it."""

from __future__ import annotations

from selenium.webdriver.common.keys import Keys

from tests.browser.conftest import Dashboard, log_in
from tests.support.browser import Browser
from tests.support.operating import an_order


def test_dead_letters_are_looked_at_replayed_and_handled_by_keyboard_alone(
    browser: Browser, own_shop: Dashboard
) -> None:
    browser.open(own_shop.page("overview"))
    browser.see("Log in")
    browser.press("guest", Keys.TAB, "guest", Keys.ENTER)
    browser.see("Needs attention", "main")
    _tab_to(browser, "Dead letters", Keys.ENTER)
    browser.see("no price for A-1", "main")
    assert browser.focused()["tag"] == "h1"
    # The group of three that failed with an error.
    _tab_to(browser, "Replay … 3 rejected of orders", Keys.ENTER)
    browser.see("Replay 3 messages?", "dialog")
    assert browser.focused()["dialog"]
    browser.press(Keys.ESCAPE)
    browser.until("no dialog", lambda: not browser.all("dialog"))
    assert "3 rejected of orders" in browser.focused()["text"]
    browser.press(Keys.ENTER)
    browser.see("Replay 3 messages?", "dialog")
    browser.press(Keys.ENTER)
    browser.see("3 messages replayed.", "#said")
    browser.see("3 waiting", "main")
    assert own_shop.ready("orders.dead") == 7
    handled = own_shop.handle("orders", 8)
    assert {an_order(number).encode() for number in (101, 102, 103)} <= set(handled)
    browser.see("3 handled", "main")


def _tab_to(browser: Browser, text: str, *keys: str) -> None:
    """Tab until the focus is on what starts with `text`, always seeing where it is; press keys."""
    for _ in range(60):
        browser.press(Keys.TAB)
        focused = browser.focused()
        assert focused["visible"], f"the focus is not seen on {focused}"
        if " ".join(focused["text"].split()).startswith(text):
            browser.press(*keys)
            return
    raise AssertionError(f"60 tabs lead not to {text!r}\n{browser.text()}")


def test_a_message_that_is_shown_in_part_only_is_not_offered_for_editing(
    browser: Browser, own_shop: Dashboard
) -> None:
    own_shop.publish("mail", ["x" * 100_000])
    log_in(browser, own_shop.page("queue", "/", "mail", "messages"))
    browser.see("All 4.", "main")
    browser.click(".message:nth-child(1) summary")
    browser.see("Edit and send again", ".message:nth-child(1)")
    browser.click(".message:nth-child(4) summary")
    browser.see("Move", ".message:nth-child(4)")
    assert "Edit and send again" not in browser.text(".message:nth-child(4)")
