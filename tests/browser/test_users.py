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
