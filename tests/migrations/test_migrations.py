"""The schema that migrations build is the one that the models describe, on both databases."""

import threading

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from pydantic import SecretStr
from sqlalchemy import inspect

from server.app.models import Base
from server.kit.db.database import Database
from server.kit.db.migrate import _config, await_schema, check, current, downgrade_database, upgrade_database
from server.kit.errors import SchemaOutdated
from server.kit.settings import DatabaseSettings
from tests.factories import make_run, read_run


def test_there_is_one_head() -> None:
    assert len(ScriptDirectory.from_config(_config()).get_heads()) == 1


def test_every_migration_says_why() -> None:
    for script in ScriptDirectory.from_config(_config()).walk_revisions():
        assert "Why:" in script.longdoc
        assert "say the reason here" not in script.longdoc


def test_migrated_schema_equals_the_models(database: Database) -> None:
    with database.write() as session:
        context = MigrationContext.configure(session.connection(), opts={"compare_type": True})

        assert compare_metadata(context, Base.metadata) == []


def test_up_down_up_ends_where_it_began(database: Database) -> None:
    downgrade_database(database, "base")
    with database.engine.connect() as connection:
        assert set(inspect(connection).get_table_names()) == {"alembic_version"}

    upgrade_database(database)

    with database.engine.connect() as connection:
        assert set(inspect(connection).get_table_names()) == {"alembic_version", *Base.metadata.tables}


def test_upgrade_keeps_rows(database: Database) -> None:
    run = make_run(database, name="kept")

    upgrade_database(database)

    assert read_run(database, run.id).name == "kept"


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
