"""A serving API for the tests of a module."""

from collections.abc import Iterator

import httpx2
import pytest

from tests.server.app.world import World, open_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("api")) as world:
        yield world


@pytest.fixture
def http(world: World) -> httpx2.Client:
    return world.http
