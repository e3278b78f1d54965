"""A headless Chromium for tests of the dashboard, controlled through Selenium.

One browser serves a whole session: `Browser.as_seen` gives it the size of a window and a colour
scheme, `Browser.fresh` removes the logins of the previous test.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from selenium import webdriver
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    NoSuchElementException,
    StaleElementReferenceException,
)
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

DESK = (1280, 800)
PHONE = (360, 740)
TIMEOUT = 45.0

_COUNTING = """
    window.updates = [];
    const note = (what) => window.updates.push([what, document.hidden]);
    const ask = window.fetch;
    window.fetch = (...request) => { note("request"); return ask(...request); };
    window.EventSource = class extends EventSource {
        constructor(url) {
            super(url);
            note("stream");
            this.addEventListener("heartbeat", () => note("event"));
        }
    };
    document.addEventListener("visibilitychange", () => note(document.visibilityState));
"""

_T = TypeVar("_T")
_UNSETTLED = (
    StaleElementReferenceException,
    NoSuchElementException,
    ElementClickInterceptedException,
    ElementNotInteractableException,
)
"""The page was drawn again between two commands: retry."""


def chromium_programs() -> tuple[str, str] | None:
    """The browser and its driver, as Debian installs them."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    return None if browser is None or driver is None else (browser, driver)


class Browser:
    """One browser with one tab."""

    def __init__(self, programs: tuple[str, str], axe: Path) -> None:
        """
        Args:
            programs: the browser, and its driver.
            axe: the script of axe-core, which judges how accessible a page is.
        """
        options = webdriver.ChromeOptions()
        options.binary_location = programs[0]
        for argument in (
            "--headless=new",
            "--no-sandbox",  # which root cannot have
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--hide-scrollbars",
            "--lang=en",
        ):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options, Service(programs[1]))
        self.driver.set_script_timeout(60)
        self._axe = axe.read_text("utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.driver.quit()

    # ------------------------------------------------------------------ the window

    def fresh(self) -> None:
        """An empty page, without cookies and console output."""
        self.driver.get("about:blank")
        self._command("Network.clearBrowserCookies")
        self._command("Storage.clearDataForOrigin", origin="*", storageTypes="all")
        self.errors()  # forgets them
        self.as_seen()

    def as_seen(self, size: tuple[int, int] = DESK, *, dark: bool = False) -> None:
        """Use a window of `size` and a dark or light colour scheme."""
        width, height = size
        self._command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=size == PHONE,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        self._command("Emulation.setEmulatedMedia", features=[scheme, still])

    @contextmanager
    def another_tab(self) -> Iterator[None]:
        """Use a second tab, which hides the first; it is closed at the end."""
        first = self.driver.current_window_handle
        self.driver.switch_to.new_window("tab")
        try:
            yield
        finally:
            self.driver.close()
            self.driver.switch_to.window(first)

    @contextmanager
    def counted_updates(self) -> Iterator[None]:
        """Pages loaded meanwhile record in ``window.updates`` each request and each event of a
        stream: its kind, and whether the page was hidden."""
        script = self._command("Page.addScriptToEvaluateOnNewDocument", source=_COUNTING)
        try:
            yield
        finally:
            name = "Page.removeScriptToEvaluateOnNewDocument"
            self._command(name, identifier=script["identifier"])

    def screenshot(self, path: Path) -> None:
        """Save a screenshot as a PNG."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.driver.save_screenshot(str(path))

    # ------------------------------------------------------------------ the page

    def open(self, url: str) -> None:
        """Load a page, though only the part behind ``#`` may differ."""
        if self.driver.current_url.partition("#")[0] == url.partition("#")[0]:
            self.run("location.href = arguments[0]", url)
        else:
            self.driver.get(url)

    def run(self, script: str, *arguments: Any) -> Any:
        """The result of a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def until(
        self, what: str, found: Callable[[], _T | bool | None], *, wait: float = TIMEOUT
    ) -> _T:
        """The result of `found`, once it is true.

        Raises:
            AssertionError: it was not within `wait` seconds.
        """
        deadline = time.monotonic() + wait
        while True:
            try:
                value = found()
            except _UNSETTLED:
                value = None
            if value:
                return value  # type: ignore[return-value]
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {wait} s: {what}\n{self.text()}\n{self.errors()}")
            time.sleep(0.02)

    def text(self, selector: str = "body") -> str:
        """The text of the first element of a CSS selector; empty without one."""
        return str(
            self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
        )

    def see(self, text: str, selector: str = "body", *, wait: float = TIMEOUT) -> None:
        """Wait until an element contains `text`."""
        self.until(f"{text!r} in {selector}", lambda: text in self.text(selector), wait=wait)

    def all(self, selector: str) -> list[WebElement]:
        """The elements of a CSS selector that are shown."""
        found = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return [each for each in found if each.is_displayed()]

    def the(self, selector: str, text: str | None = None) -> WebElement:
        """The first element of a CSS selector that is shown, with `text` in it."""

        def look() -> WebElement | None:
            shown = self.all(selector)
            return next((each for each in shown if text is None or text in each.text), None)

        return self.until(f"{selector} with {text!r}", look)

    def click(self, selector: str, text: str | None = None) -> None:
        """Click an element, once it is there and nothing covers it."""

        def press() -> bool:
            self.the(selector, text).click()
            return True

        self.until(f"a click on {selector} with {text!r}", press)

    def fill(self, selector: str, text: str) -> None:
        """Replace the text of a field by `text`."""
        field = self.the(selector)
        field.clear()
        field.send_keys(text)

    def press(self, *keys: str) -> None:
        """Press keys in the focused element."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def focused(self) -> Mapping[str, Any]:
        """The focused element: its tag, its text or label, and whether the focus is visible."""
        found: Mapping[str, Any] = self.run(
            """
            const it = document.activeElement, style = getComputedStyle(it);
            return {
                tag: it.tagName.toLowerCase(), id: it.id,
                text: it.getAttribute("aria-label") || it.innerText || it.value || "",
                visible: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0,
                dialog: it.closest("dialog") !== null,
            };
            """
        )
        return found

    # ------------------------------------------------------------------ verdicts

    def errors(self) -> list[str]:
        """Errors in the console: failed scripts, refused styles, missing files."""
        logged = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [each["message"] for each in logged if each["level"] == "SEVERE"]

    def too_wide(self) -> int:
        """By how many pixels the page is wider than the window."""
        return int(
            self.run(
                "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
        )

    def barriers(self) -> list[str]:
        """The serious and critical findings of axe-core in the present page."""
        # Through the debugger: a page's content security policy lets no such script in.
        self._command("Runtime.evaluate", expression=self._axe)
        answer = self._command(
            "Runtime.evaluate",
            expression="axe.run({resultTypes: ['violations']})"
            ".then(({violations}) => JSON.stringify(violations))",
            awaitPromise=True,
            returnByValue=True,
        )
        violations: Sequence[dict[str, Any]] = json.loads(answer["result"]["value"])
        return [
            f"{each['id']} ({each['impact']}): {node['target']} {node['failureSummary']}"
            for each in violations
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]

    def _command(self, name: str, **parameters: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.driver.execute_cdp_cmd(name, parameters)
        return answer
