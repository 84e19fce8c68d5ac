"""Sizes of the largest clusters and searches are evidence; ``make bench`` times them."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Leave them unread where they would not run: to import them takes seconds."""
    return True if config.option.markexpr == "not evidence" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.evidence)
