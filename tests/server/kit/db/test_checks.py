"""Checks of the database when a process starts; those of poolers are in `test_pooler.py`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from server.kit.db.checks import NotMigrated, WrongEncoding, check_database, check_migrated
from server.kit.db.database import Database
from server.kit.db.migrate import downgrade_database, upgrade_database
from server.kit.settings import DatabaseSettings
from tests.conftest import postgresql_database


@pytest.mark.postgres
def test_a_database_without_an_encoding_is_refused_with_what_to_do() -> None:
    """As where `initdb` ran without a locale."""
    with postgresql_database("ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0") as url:
        settings = DatabaseSettings(url=url.render_as_string(hide_password=False))  # type: ignore[arg-type]  # pydantic makes it secret
        with pytest.raises(WrongEncoding, match=r"the encoding SQL_ASCII; Ludus needs UTF8\..*ENCODING 'UTF8'"):
            check_database(settings)


@pytest.mark.long
@pytest.mark.parametrize("role", ["worker", "gateway", "controller"])
def test_a_role_that_starts_before_the_first_migration_says_what_to_run(tmp_path: Path, role: str) -> None:
    settings = {
        "LUDUS_DATABASE__URL": f"sqlite:///{tmp_path / 'ludus.db'}",
        "LUDUS_WORKER__SCRATCH": str(tmp_path / "scratch"),
    }
    command = [sys.executable, "-m", "ludus.cli", role]

    ended = subprocess.run(
        command, cwd=tmp_path, env=os.environ | settings, capture_output=True, text=True, timeout=120, check=False
    )

    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "Error: The database has no tables yet. Run `ludus migrate`."
    assert "Traceback" not in ended.stderr


@pytest.mark.long
def test_a_database_is_migrated_only_after_its_first_migration(database_url: str) -> None:
    settings = DatabaseSettings(url=SecretStr(database_url))
    check_migrated(settings)
    database = Database(database_url)
    downgrade_database(database, "base")
    try:
        with pytest.raises(NotMigrated):
            check_migrated(settings)
    finally:
        upgrade_database(database)  # PostgreSQL's database is that of other tests, too
        database.close()
