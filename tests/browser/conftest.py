from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from support.browser import OpenPage, chromium, opened_pages


# Not of the session: its event loop would run on below the tests of other modules.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    with opened_pages(browser) as open_page:
        yield open_page
