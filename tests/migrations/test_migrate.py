"""Migrating: by any number of processes at once, whole or not at all, and what those say that wait for it."""

import threading

import pytest
from alembic import command
from pydantic import SecretStr
from sqlalchemy import inspect

from server.kit.db.database import Database
from server.kit.db.migrate import _config, await_schema, check, current, downgrade_database, upgrade_database
from server.kit.errors import SchemaOutdated
from server.kit.settings import DatabaseSettings


@pytest.mark.long
def test_several_processes_may_migrate_at_once(database_url: str) -> None:
    first = Database(database_url)
    downgrade_database(first, "base")
    errors: list[BaseException] = []

    def migrate() -> None:
        own = Database(database_url)
        try:
            upgrade_database(own)
        except BaseException as error:  # noqa: BLE001  # a test reports whatever went wrong in a thread
            errors.append(error)
        finally:
            own.close()

    threads = [threading.Thread(target=migrate) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    check(first)
    first.close()


def test_an_empty_database_is_called_outdated(database: Database) -> None:
    downgrade_database(database, "base")

    with pytest.raises(SchemaOutdated, match="ludus migrate"):
        check(database)


def test_a_newer_schema_is_accepted_by_an_older_release(database: Database) -> None:
    with database.write() as session:
        session.connection().exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")

    check(database)


@pytest.mark.long
def test_a_failed_migration_leaves_nothing_behind(database: Database) -> None:
    downgrade_database(database, "base")

    def fail_half_way() -> None:
        with database.write() as session:
            command.upgrade(_config(session.connection()), "head")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fail_half_way()

    with database.engine.connect() as connection:
        assert current(connection) is None
        assert inspect(connection).get_table_names() == ["alembic_version"]


@pytest.mark.long
def test_a_worker_that_starts_beside_the_migration_waits_for_it(database_url: str) -> None:
    database = Database(database_url)
    downgrade_database(database, "base")
    migrating = threading.Timer(0.3, upgrade_database, (database,))
    migrating.start()

    await_schema(DatabaseSettings(url=SecretStr(database_url), await_schema_seconds=30))

    check(database)
    migrating.join(10)
    database.close()


def test_a_worker_that_waits_in_vain_says_which_schema_it_needs(database_url: str) -> None:
    database = Database(database_url)
    downgrade_database(database, "base")

    with pytest.raises(SchemaOutdated, match="ludus migrate"):
        await_schema(DatabaseSettings(url=SecretStr(database_url), await_schema_seconds=0.2))

    database.close()
