"""Migrations change the schema, so each of their tests has a database that nobody else sees."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.kit.db.database import Database
from server.kit.db.migrate import upgrade_database
from tests.conftest import BACKENDS, postgresql_database


@pytest.fixture(params=BACKENDS)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return the address of an empty, migrated database of this test's own."""
    if request.param == "sqlite":
        path = tmp_path / "ludus.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    with postgresql_database() as url:
        database = Database(url)
        upgrade_database(database)
        database.close()
        yield url.render_as_string(hide_password=False)
