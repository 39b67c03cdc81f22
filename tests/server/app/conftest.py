"""One API for all tests that only add to it."""

from collections.abc import Iterator

import pytest

from tests.server.app.world import World, open_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("api")) as world:
        yield world
