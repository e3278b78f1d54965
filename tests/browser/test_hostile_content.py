"""The contents of queues, headers and bodies are shown as text, and never run."""

from __future__ import annotations

from selenium.webdriver.common.by import By

from tests.browser.conftest import Dashboard, log_in
from tests.support.browser import Browser

EVIL = "<img src=x onerror=window.ran=true><script>window.ran=true</script>"
PARTS = ("", "messages", "in-flight", "deferred")


def test_script_in_names_headers_and_bodies_is_shown_as_text(
    browser: Browser, own_shop: Dashboard
) -> None:
    own_shop.declare(EVIL, dead="orders.dead")
    with own_shop.channel(name=EVIL) as channel:
        channel.exchange_declare(EVIL, "topic", durable=True)
        channel.queue_bind(EVIL, EVIL, EVIL)
    failed = {"rascal": {"error": {"message": EVIL}}, EVIL: EVIL}
    for body in (EVIL, f'{{"{EVIL}": "{EVIL}"}}'):
        own_shop.publish(EVIL, [body], headers=failed, content_type=EVIL[:80])
    own_shop.reject(EVIL, 1)
    with own_shop.channel(name=EVIL):
        for parts in (
            ("overview",),
            ("queues",),
            *(("queue", "/", EVIL, part) if part else ("queue", "/", EVIL) for part in PARTS),
            ("queue", "/", "orders.dead", "messages"),
            ("dead-letters",),
            ("exchanges",),
            ("exchange", "/", EVIL),
            ("topology",),
            ("connections",),
        ):
            log_in(browser, own_shop.page(*parts))
            if parts not in (("overview",),):
                browser.see("<img src=x", "main")
            for summary in browser.all("summary")[:20]:
                summary.click()
            _is_text_only(browser)
    log_in(browser, own_shop.page("queues", filter=EVIL))
    _is_text_only(browser)


def _is_text_only(browser: Browser) -> None:
    assert browser.run("return window.ran") is None
    assert browser.driver.find_elements(By.CSS_SELECTOR, "body img, body script") == []
