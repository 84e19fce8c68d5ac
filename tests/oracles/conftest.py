"""Oracles are evidence. What stands beside them are programs that they start; these need torch."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
collect_ignore = [path.name for path in HERE.glob("*.py") if not path.name.startswith("test_")]


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Leave them unread where they would not run: to import them takes seconds."""
    return True if config.option.markexpr == "not evidence" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.evidence)
