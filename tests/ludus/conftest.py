"""A real server for the tests of a module, and a client of it."""

from collections.abc import Iterator

import pytest

from ludus.api import Client
from tests.server.http.world import World, open_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("server")) as world:
        yield world


@pytest.fixture
def client(world: World) -> Iterator[Client]:
    with Client(world.server) as client:
        yield client
