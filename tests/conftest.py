"""Order of the tests: those with a browser come last."""

from pathlib import Path

import pytest

BROWSER = Path(__file__).parent / "browser"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the browser's tests to the end.

    Playwright keeps an event loop running in the main thread for as long as its browser lives, and a test that starts
    its own loop cannot run at the same time.
    """
    items.sort(key=lambda item: BROWSER in item.path.parents)
