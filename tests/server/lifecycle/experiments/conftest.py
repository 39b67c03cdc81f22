"""Each experiment has a server of its own: controllers go on with all that there are."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.app.world import World, open_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path) as world:
        yield world
