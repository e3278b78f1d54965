"""Users and what they may do."""

from __future__ import annotations

from typing import Any

from tests.browser.conftest import Dashboard, log_in
from tests.support.browser import Browser


def test_permissions_that_are_shown_are_those_of_the_virtual_host_that_is_chosen(
    browser: Browser, own_shop: Dashboard
) -> None:
    own_shop.ask("PUT", "vhosts", "shops")
    own_shop.ask("PUT", "users", "ada", body={"password": "ada", "tags": "management"})
    narrow = {"configure": "^ada", "write": "^out", "read": ""}
    own_shop.ask("PUT", "permissions", "/", "ada", body={**narrow, "read": ".*"})
    own_shop.ask("PUT", "permissions", "shops", "ada", body=narrow)
    log_in(browser, own_shop.page("users"))
    browser.see("ada", "main")
    _choose(browser, "shops")
    assert _patterns(browser) == narrow
    browser.click("dialog button[value=ok]")
    browser.see("The permissions of ada in shops are set.", "#said")
    assert _granted(own_shop, "shops") == narrow
    _choose(browser, "shops")
    browser.click("dialog input[name=none]")
    browser.click("dialog button[value=ok]")
    browser.see("ada may do nothing in shops any more.", "#said")
    assert _granted(own_shop, "shops") is None
    assert _granted(own_shop, "/") == {**narrow, "read": ".*"}


def _choose(browser: Browser, vhost: str) -> None:
    browser.click("tbody tr:nth-child(1) button", "Permissions …")
    browser.see("Permissions of ada", "dialog")
    browser.click("dialog select[name=vhost] option", vhost)


def _patterns(browser: Browser) -> Any:
    return browser.run(
        "return Object.fromEntries(['configure', 'write', 'read'].map("
        "kind => [kind, document.querySelector(`dialog input[name=${kind}]`).value]))"
    )


def _granted(shop: Dashboard, vhost: str) -> Any:
    for each in shop.ask("GET", "users", "ada", "permissions"):
        if each["vhost"] == vhost:
            return {kind: each[kind] for kind in ("configure", "write", "read")}
    return None


def test_what_a_user_may_not_do_is_not_offered_and_says_why(
    browser: Browser, own_shop: Dashboard
) -> None:
    body = {"configure": "", "write": "^shop$", "read": "^orders"}
    _a_user(own_shop, "eve", "monitoring", body)
    with own_shop.channel(name="another's"):
        log_in(browser, own_shop.page("queue", "/", "orders.dead"), "eve")
        browser.see("You may not publish to it, move or replay its messages", "main")
        browser.see("You may not pause or delete the queue", "main")
        assert _offered(browser) == ["Purge …"]
        assert browser.barriers() == []
        browser.open(own_shop.page("queue", "/", "orders.dead", "messages"))
        browser.see("All 10.", "main")
        browser.click(".message summary")
        browser.see("What happened to it", "main")
        assert "Replay" not in browser.text("main").partition("Messages, from")[2]
        browser.open(own_shop.page("queue", "/", "mail", "in-flight"))
        browser.see("Your user may not see these", "main")
        browser.see("You may not look at, move, replay, delete or purge its messages", "main")
        assert _offered(browser) == []
        browser.open(own_shop.page("dead-letters"))
        browser.see("You may not replay", "main")
        assert "Replay …" not in _offered(browser, "tbody button")
        assert any(each.startswith("Delete …") for each in _offered(browser, "tbody button"))
        browser.open(own_shop.page("exchange", "/", "audit"))
        browser.see("You may not publish here: it needs the permission write for audit.", "main")
        assert _offered(browser) == []
        browser.open(own_shop.page("exchange", "/", "shop"))
        browser.see("Publish …", "main")
        browser.open(own_shop.page("queues"))
        browser.see("3 queues", "main")
        assert _offered(browser) == []
        browser.open(own_shop.page("connections"))
        browser.click("tbody a", "another's")
        browser.see("You may not close it", "main")
        assert _offered(browser) == []
        browser.open(own_shop.page("users"))
        browser.see("you may not see it", "main")


def _a_user(shop: Dashboard, name: str, tags: str, permissions: dict[str, str]) -> None:
    shop.ask("PUT", "users", name, body={"password": name, "tags": tags})
    shop.ask("PUT", "permissions", "/", name, body=permissions)


def _offered(browser: Browser, selector: str = ".page-head button") -> list[str]:
    return [" ".join(each.text.split()) for each in browser.all(selector)]
