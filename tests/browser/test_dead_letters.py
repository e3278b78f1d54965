"""An operator finds dead letters, and replays them until they are handled."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from selenium.webdriver.common.keys import Keys

from tests.browser.conftest import Dashboard, log_in
from tests.support.browser import PHONE, Browser
from tests.support.operating import an_order

BEYOND = 2**53 + 1
FARTHEST = """
const cells = document.querySelectorAll("main table.stacks :is(button, td, th, td *)");
return Math.max(0, ...[...cells].map((each) => each.getBoundingClientRect().right));
"""
WHEN = datetime(2023, 11, 14, tzinfo=UTC)


def test_dead_letters_are_looked_at_replayed_and_handled_by_keyboard_alone(
    browser: Browser, own_shop: Dashboard
) -> None:
    browser.open(own_shop.page("overview"))
    browser.see("Log in")
    browser.press("guest", Keys.TAB, "guest", Keys.ENTER)
    browser.see("Needs attention", "main")
    _tab_to(browser, "Dead letters", Keys.ENTER)
    browser.see("no price for A-1", "main")
    browser.until("the focus on the heading", lambda: browser.focused()["tag"] == "h1")
    # The group of three that failed with an error.
    _tab_to(browser, "Replay … 3 rejected of orders", Keys.ENTER)
    browser.see("Replay 3 messages?", "dialog")
    browser.until("the focus in the dialog", lambda: bool(browser.focused()["dialog"]))
    browser.press(Keys.ESCAPE)
    browser.until("no dialog", lambda: not browser.all("dialog"))
    browser.until("the focus back", lambda: "3 rejected of orders" in browser.focused()["text"])
    browser.press(Keys.ENTER)
    browser.see("Replay 3 messages?", "dialog")
    browser.press(Keys.ENTER)
    browser.see("3 messages replayed.", "#said")
    browser.see("3 waiting", "main")
    assert own_shop.ready("orders.dead") == 7
    handled = own_shop.handle("orders", 8)
    assert {an_order(number).encode() for number in (101, 102, 103)} <= set(handled)
    browser.see("3 handled", "main")


def test_on_a_telephone_what_can_be_done_is_seen_without_scrolling_aside(
    browser: Browser, own_shop: Dashboard
) -> None:
    log_in(browser, own_shop.page("dead-letters"))
    browser.see("no price for A-1", "main")
    browser.as_seen(PHONE, dark=True)
    for page in ("dead-letters", "users", "vhosts", "audit"):
        browser.open(own_shop.page(page))
        browser.until("rows", lambda: browser.all("tbody tr"))
        assert browser.run(FARTHEST) <= browser.run("return innerWidth"), page
        assert browser.barriers() == []
    browser.open(own_shop.page("dead-letters"))
    browser.click("tbody tr:nth-child(2) button", "Replay")
    browser.see("Replay 3 messages?", "dialog")


def _tab_to(browser: Browser, text: str, *keys: str) -> None:
    """Press Tab until the focus, which must be visible, is on an element that starts with `text`;
    press keys."""
    for _ in range(60):
        browser.press(Keys.TAB)
        focused = browser.focused()
        assert focused["visible"] or focused["tag"] == "body", f"the focus is not seen on {focused}"
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


def test_messages_that_are_alike_are_each_selected(browser: Browser, own_shop: Dashboard) -> None:
    with own_shop.channel() as channel:
        channel.queue_declare("alike", durable=True)
        for _ in range(3):
            channel.basic_publish("", "alike", b"{}")
        channel.queue_declare("alike", passive=True)
    log_in(browser, own_shop.page("queue", "/", "alike", "messages"))
    browser.see("All 3.", "main")
    browser.click(".message:nth-child(2) input")
    browser.see("1 message selected", "main")
    browser.click("#select-all")
    browser.see("3 messages selected", "main")
    browser.click(".message:nth-child(2) input")
    browser.see("2 messages selected", "main")
    browser.click("[aria-label='With the selected messages'] button", "Delete …")
    browser.see("Delete 2 messages?", "dialog")
    browser.click("dialog button[value=ok]")
    browser.see("All 1.", "main")
    assert own_shop.ready("alike") == 1


def test_what_is_not_edited_is_sent_again_as_it_was(browser: Browser, own_shop: Dashboard) -> None:
    body = b'{"id": 9007199254740993,\r\n"n":1.0}'
    nested = {"list": [BEYOND, {"deep": -BEYOND}], "step": 1}
    headers = {"big": BEYOND, "nested": nested, "bytes": b"\xff", "when": WHEN, "tries": 1}
    own_shop.publish("mail", [body], headers=headers)
    own_shop.handle("mail", 3)
    own_shop.declare("orders.new")
    log_in(browser, own_shop.page("queue", "/", "mail", "messages"))
    browser.see("All 1.", "main")
    browser.click(".message summary")
    browser.see(f'{{"list":[{BEYOND},{{"deep":-{BEYOND}}}],"step":1}}', "main")
    browser.click(".message button", "Edit and send again …")
    browser.see("Edit and send again", "dialog")
    browser.fill("dialog input[name=exchange]", "")
    browser.fill("dialog input[name=routing_key]", "orders.new")
    text = browser.run("return document.querySelector('dialog textarea[name=headers]').value")
    browser.fill("dialog textarea[name=headers]", text.replace('"step": 1', '"step": 2'))
    browser.click("dialog button[value=ok]")
    browser.see("Sent again", "#said")
    with own_shop.channel() as channel:
        _, properties, sent = channel.basic_get("orders.new")
    assert properties is not None
    assert sent == body
    assert properties.headers == {**headers, "nested": {**nested, "step": 2}}


def test_integers_beyond_those_of_javascript_are_shown_and_published_exactly(
    browser: Browser, shop: Dashboard
) -> None:
    shop.declare("huge", x_max_length_bytes=BEYOND)
    log_in(browser, shop.page("queue", "/", "huge"))
    browser.see(f"x-max-length-bytes: {BEYOND}", "main")
    browser.click("main button", "Publish …")
    browser.fill("dialog textarea[name=headers]", f'{{"n": [{BEYOND}, 2.0], "m": {2**63 - 1}}}')
    browser.click("dialog button[value=ok]")
    browser.see("Published, and routed to a queue.", "#said")
    browser.open(shop.page("queue", "/", "huge", "messages"))
    browser.see("All 1.", "main")
    browser.click(".message summary")
    browser.see(f"[{BEYOND},2.0]", "main")
    with shop.channel() as channel:
        _, properties, _ = channel.basic_get("huge")
    assert properties is not None
    assert properties.headers == {"n": [BEYOND, 2.0], "m": 2**63 - 1}
    shop.ask("DELETE", "queues", "/", "huge")


def test_no_more_is_moved_than_was_agreed_to_and_no_faster(
    browser: Browser, own_shop: Dashboard
) -> None:
    own_shop.declare("much")
    own_shop.declare("target")
    own_shop.publish("much", ["{}"] * 120)
    log_in(browser, own_shop.page("queue", "/", "much"))
    browser.click("main button", "Move all …")
    browser.fill("dialog input[name=to]", "target")
    browser.click("dialog button[value=ok]")
    browser.see("Move 120 messages?", "dialog")
    own_shop.publish("much", ["{}"] * 5)
    browser.fill("dialog input[name=rate]", "100")
    before = time.monotonic()
    browser.click("dialog button[value=ok]")
    browser.see("120 messages moved.", "#said")
    assert time.monotonic() - before > 0.9
    assert (own_shop.ready("much"), own_shop.ready("target")) == (5, 120)


def test_job_that_has_ended_before_its_answer_arrives_is_shown_as_ended(
    browser: Browser, own_shop: Dashboard
) -> None:
    log_in(browser, own_shop.page("queue", "/", "mail", "messages"))
    browser.see("All 3.", "main")
    browser.run(_SLOW_ANSWERS)
    browser.click(".message:nth-child(1) input")
    browser.click("[aria-label='With the selected messages'] button", "Delete …")
    browser.see("Delete 1 message?", "dialog")
    browser.click("dialog button[value=ok]")
    browser.see("1 message deleted.", "#said")
    browser.see("All 2.", "main")
    browser.open("about:blank")


_SLOW_ANSWERS = """
const ask = window.fetch;
window.fetch = async (...asked) => {
  const answer = await ask(...asked);
  if (String(asked[0]).endsWith("ui/jobs")) await new Promise((then) => setTimeout(then, 1000));
  return answer;
};
"""


def test_dialogs_have_no_barrier_on_a_telephone_and_work_by_keyboard_alone(
    browser: Browser, own_shop: Dashboard
) -> None:
    own_shop.declare("target")
    log_in(browser, own_shop.page("queue", "/", "mail", "messages"))
    browser.see("All 3.", "main")
    browser.as_seen(PHONE, dark=True)
    _tab_to(browser, "Select message 1", Keys.SPACE)
    _ask(browser, "Move …", "Move 1 message")  # with the selected ones
    _no_barrier(browser)
    browser.press("target", Keys.ENTER)
    browser.see("Move 1 message?", "dialog")
    _no_barrier(browser)
    browser.press(Keys.ENTER)
    browser.see("1 message moved.", "#said")
    browser.see("All 2.", "main")
    browser.until("the list has the focus", lambda: browser.focused()["id"] == "messages")
    browser.as_seen(PHONE)
    _tab_to(browser, "Select message 1", Keys.SPACE)
    _ask(browser, "Delete …", "Delete 1 message?")
    _no_barrier(browser)
    assert browser.focused()["text"] == "Cancel"  # a second Enter deletes nothing
    _tab_to(browser, "Delete 1 message", Keys.ENTER)
    browser.see("1 message deleted.", "#said")
    browser.see("All 1.", "main")
    browser.until("the list has the focus", lambda: browser.focused()["id"] == "messages")
    _tab_to(browser, "Message 1 in full", Keys.ENTER)
    _tab_to(browser, "Edit and send again …", Keys.ENTER)
    browser.see("Edit and send again", "dialog")
    _no_barrier(browser)
    browser.press(Keys.ESCAPE)
    assert (own_shop.ready("mail"), own_shop.ready("target")) == (1, 1)


def _ask(browser: Browser, button: str, question: str) -> None:
    _tab_to(browser, button, Keys.ENTER)
    browser.see(question, "dialog")


def _no_barrier(browser: Browser) -> None:
    assert browser.barriers() == []
    assert browser.too_wide() == 0


def test_values_of_headers_that_are_empty_or_only_spaces_are_seen(
    browser: Browser, own_shop: Dashboard
) -> None:
    own_shop.handle("mail", 3)
    headers: dict[str, object] = {
        "nothing": None,
        "text": "",
        "spaces": " \t ",
        "no-width": "\u200b",
        "list": [],
        "table": {},
        "bytes": b"\xff\x00",
        "word": "null",
        "": "nameless",
    }
    own_shop.publish("mail", ["{}"], headers=headers)
    log_in(browser, own_shop.page("queue", "/", "mail", "messages"))
    browser.see("All 1.", "main")
    browser.click(".message summary")
    browser.see("nameless", "main")
    shown = browser.run(
        """
        const names = [...document.querySelectorAll(".message dl dt")];
        const pairs = names.map((each) => [each.innerText, each.nextSibling.innerText]);
        return Object.fromEntries(pairs);
        """
    )
    assert {name: shown.get(name) for name in headers if name} == {
        "nothing": "null (no value)",
        "text": '"" (empty text)',
        "spaces": '" \\t " (white space)',
        "no-width": '"\u200b" (white space)',
        "list": "[] (empty list)",
        "table": "{} (empty table)",
        "bytes": shown["bytes"],
        "word": "null",
    }
    assert shown['"" (empty text)'] == "nameless"
    assert shown["bytes"].strip()
