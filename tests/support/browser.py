"""Browsers for tests: Chromium, driven by Playwright, and what it says."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Page,
    Request,
    expect,
    sync_playwright,
)

from support.server_process import ServerProcess

#: For the slowest machine; nothing waits that long on purpose.
PATIENCE_MS = 60_000

#: What a headless one needs in a container, and what keeps it from asking the network.
_FLAGS = [
    *["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"],
    *["--disable-component-update", "--disable-dev-shm-usage", "--no-first-run"],
]


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start a browser; without one, skip where nobody promised it."""
    path = shutil.which("chromium")
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("there is no chromium; run: make system")
        pytest.skip("there is no chromium; run: make system")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class PageOf:
    """The page of a server, in a context of its own.

    Attributes:
        said: What came to the console, and errors that nobody caught.
        asked: Addresses of everything that was loaded.
    """

    def __init__(
        self,
        server: ServerProcess,
        browser: Browser,
        *,
        width: int = 1280,
        scheme: Literal["light", "dark"] = "light",
    ) -> None:
        self.server = server
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        context.set_default_timeout(PATIENCE_MS)
        self.page: Page = context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", self._on_request)

    def open(self) -> Page:
        """Load it without signing in."""
        self.page.goto(f"{self.server.ready['admin_url']}/ui")
        return self.page

    def sign_in(self) -> Page:
        """Load it, sign in with the keyboard, and wait for the tree."""
        page = self.open()
        page.get_by_label("Token", exact=True).fill(self.server.token)
        page.keyboard.press("Enter")
        page.locator("#app").wait_for()
        page.get_by_role("tree").get_by_role("treeitem").first.wait_for()
        return page

    def check(self) -> None:
        """Nothing went wrong, and nothing came from, or went, elsewhere."""
        assert self.said == []
        own = urlsplit(str(self.server.ready["admin_url"])).netloc
        assert {urlsplit(url).netloc for url in self.asked} == {own}
        assert not any(self.server.token in url for url in self.asked)

    def close(self) -> None:
        self.page.context.close()

    def _on_console(self, message: ConsoleMessage) -> None:
        self.said.append(f"{message.type}: {message.text}")

    def _on_request(self, request: Request) -> None:
        self.asked.append(request.url)
