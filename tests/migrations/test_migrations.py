"""The schema that migrations build is the one that the models describe, on both databases."""

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect

from server.app.models import Base
from server.kit.db.database import Database
from server.kit.db.migrate import _config, downgrade_database, upgrade_database
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
