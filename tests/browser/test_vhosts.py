"""Virtual hosts: added, limited, permitted, changed, and deleted with what is in them."""

from __future__ import annotations

from typing import Any

from tests.browser.conftest import Dashboard, log_in
from tests.support.browser import Browser


def _row(browser: Browser, name: str, button: str, title: str) -> None:
    """Press a button of a virtual host, and wait for its dialog."""
    place = browser.until(f"the row of {name}", lambda: _place(browser, name))
    browser.click(f"tbody tr:nth-child({place}) button", button)
    browser.see(title, "dialog")


def _place(browser: Browser, name: str) -> int:
    return int(
        browser.run(
            """
            const names = [...document.querySelectorAll("tbody th a")];
            return names.findIndex((each) => each.innerText === arguments[0]) + 1;
            """,
            name,
        )
    )


def _confirm(browser: Browser, said: str) -> None:
    browser.click("dialog button[value=ok]")
    browser.see(said, "#said")


def test_a_virtual_host_is_added_limited_permitted_changed_and_deleted(
    browser: Browser, own_shop: Dashboard
) -> None:
    own_shop.ask("PUT", "users", "ada", body={"password": "ada", "tags": "management"})
    log_in(browser, own_shop.page("vhosts"))
    browser.click("main button", "Add a virtual host …")
    browser.fill("dialog input[name=name]", "shops/eu")
    browser.fill("dialog input[name=description]", "Shops of <Europe>")
    browser.fill("dialog input[name=tags]", "production, eu")
    browser.click("dialog select[name=default_queue_type] option", "quorum")
    _confirm(browser, "The virtual host shops/eu is there, and you may use it.")
    browser.see("Shops of <Europe>", "tbody")
    assert _metadata(own_shop) == {
        "description": "Shops of <Europe>",
        "tags": ["production", "eu"],
        "default_queue_type": "quorum",
    }

    _row(browser, "shops/eu", "Limits …", "Limits of shops/eu")
    browser.fill("dialog input[name=max-queues]", "2")
    _confirm(browser, "The limits of shops/eu are set.")
    browser.see("Queues: 2", "tbody")
    assert _limits(own_shop) == {"max-queues": 2}
    _row(browser, "shops/eu", "Limits …", "Limits of shops/eu")
    browser.fill("dialog input[name=max-queues]", "")
    browser.fill("dialog input[name=max-connections]", "0")
    _confirm(browser, "The limits of shops/eu are set.")
    browser.see("Connections: 0", "tbody")
    assert _limits(own_shop) == {"max-connections": 0}

    _row(browser, "shops/eu", "Permissions …", "Permissions in shops/eu")
    browser.click("dialog select[name=user] option", "ada")
    browser.see("ada has no permissions in shops/eu yet", "dialog")
    browser.fill("dialog input[name=configure]", "")
    _confirm(browser, "The permissions of ada in shops/eu are set.")
    browser.see("ada configure nothing", "tbody")

    _row(browser, "shops/eu", "Change …", "Change shops/eu")
    browser.fill("dialog input[name=description]", "")
    _confirm(browser, "The virtual host shops/eu is changed.")
    assert _metadata(own_shop) == {
        "description": "",
        "tags": ["production", "eu"],
        "default_queue_type": "quorum",
    }

    # What is added here can be chosen elsewhere.
    browser.open(own_shop.page("queues", vhost="shops/eu"))
    browser.until("a choice", lambda: browser.all("#field-vhost option"))
    assert "shops/eu" in browser.text("#field-vhost")

    browser.open(own_shop.page("vhosts", filter="production"))
    _row(browser, "shops/eu", "Delete …", "Delete the virtual host shops/eu?")
    browser.see("0 queues with 0 messages", "dialog")
    browser.click("dialog button", "Cancel")
    assert "shops/eu" in _names(own_shop)
    _row(browser, "shops/eu", "Delete …", "Delete the virtual host shops/eu?")
    _confirm(browser, "The virtual host shops/eu is deleted.")
    assert _names(own_shop) == ["/"]
    browser.open(own_shop.page("audit"))
    for done in ("vhost shops/eu", "max-queues of vhost shops/eu", "user ada in shops/eu"):
        browser.see(done, "main")


def test_who_is_no_administrator_sees_no_page_of_virtual_hosts(
    browser: Browser, own_shop: Dashboard
) -> None:
    own_shop.ask("PUT", "users", "eve", body={"password": "eve", "tags": "monitoring"})
    log_in(browser, own_shop.page("overview"), "eve")
    assert "Virtual hosts" not in browser.text("nav[aria-label]")
    browser.open(own_shop.page("vhosts"))
    browser.see("you may not see it", "main")


def _names(shop: Dashboard) -> list[str]:
    return sorted(each["name"] for each in shop.ask("GET", "vhosts"))


def _metadata(shop: Dashboard) -> Any:
    return shop.ask("GET", "vhosts", "shops/eu")["metadata"]


def _limits(shop: Dashboard) -> Any:
    [found] = shop.ask("GET", "vhost-limits", "shops/eu")
    return found["value"]
