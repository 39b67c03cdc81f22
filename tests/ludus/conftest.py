"""A real server for the tests of a module, and a client of it; nothing of the environment passes on to other tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ludus.client import Client
from tests.server.app.world import World, open_world


def settings() -> dict[str, str]:
    """Return what the environment says to Ludus, beside what it says to its tests."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith("LUDUS_") and not name.startswith("LUDUS_TEST_")
    }


@pytest.fixture(autouse=True)
def _place_of_ones_own() -> Iterator[None]:
    """Hide the developer's own settings, and hold each test to leave environment and folder as it found them."""
    own, folder = settings(), Path.cwd()
    for name in own:
        del os.environ[name]
    yield
    left, here = settings(), Path.cwd()
    for name in left:
        del os.environ[name]
    os.environ.update(own)
    os.chdir(folder)
    assert (left, here) == ({}, folder)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("server")) as world:
        yield world


@pytest.fixture
def client(world: World) -> Iterator[Client]:
    with Client(world.server) as client:
        yield client
