from collections.abc import Iterator
from pathlib import Path

import pytest

from server.kit.db.base import Base
from server.kit.db.database import Database


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """An empty database with the tables of the models."""
    database = Database(f"sqlite:///{tmp_path / 'test.db'}", synchronous="OFF")
    Base.metadata.create_all(database.engine)
    yield database
    database.close()
