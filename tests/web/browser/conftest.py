"""One browser, an installation for those who look, one for those who change things, and a visitor who is logged in.

All of them end with the last of these tests: while a browser is there, an event loop counts as running in this thread.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.site_under_test import Site
from tests.web.browser.visitor import ADMIN, KINDS, Visitor, admin_url, changing, lively, log_in, open_one

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def chromium() -> str:
    """Where the browser is; the one place that decides what happens without it."""
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("these tests need Chromium: `make packages`, or apt-get install --no-install-recommends chromium")
    return found


@pytest.fixture(scope="package")
def playwright() -> Iterator[Playwright]:
    from playwright.sync_api import sync_playwright  # at last, see `expect`

    with sync_playwright() as running:
        yield running


@pytest.fixture(scope="package")
def browser(playwright: Playwright) -> Iterator[Browser]:
    launched = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
    yield launched
    launched.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visitor]]:
    """Somebody with a browser of their own, logged in. Whatever their pages complain of fails the test."""
    with contextlib.ExitStack() as stack:
        visitors: list[Visitor] = []

        def make(site: Site, *, token: str = ADMIN, width: int = 1280, scripts: bool = True, **more: Any) -> Visitor:
            context = browser.new_context(
                base_url=admin_url(site),
                viewport={"width": width, "height": 800},
                java_script_enabled=scripts,
                **more,
            )
            stack.callback(context.close)
            context.set_default_timeout(15_000)
            if token:
                log_in(site, context, token)
            visitors.append(Visitor(context.new_page()))
            return visitors[-1]

        yield make
        for visitor in visitors:
            assert visitor.complaints == []


@pytest.fixture(scope="package")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """An installation with jobs in every state, for tests that change nothing of it."""
    yield from lively(tmp_path_factory.mktemp("lively"))


@pytest.fixture(scope="package")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """An installation that tests share and change: each has a type, a pool or a job of its own."""
    yield from changing(tmp_path_factory.mktemp("changing"))


@pytest.fixture(scope="package")
def openly(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The same, where payloads are shown."""
    yield from open_one(tmp_path_factory.mktemp("openly"))


@pytest.fixture(scope="package")
def kinds() -> Iterator[str]:
    return iter(KINDS)


@pytest.fixture
def kind(kinds: Iterator[str]) -> str:
    """A type of `common` that no other test has used, whose jobs fail."""
    return next(kinds)
