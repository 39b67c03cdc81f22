"""Collectors that are started as the product starts them."""

from collections.abc import Iterator

import pytest

from tests.forked_collectors import real_collectors


@pytest.fixture
def started_collectors() -> Iterator[None]:
    """Start processes, for tests of their start and end."""
    with real_collectors():
        yield
