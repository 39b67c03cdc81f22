"""Aliases and checkpoints of the previous release, before and after the migrations of this one."""

from sqlalchemy import select, text

from server.checkpoints.models import AliasMove, Checkpoint
from server.checkpoints.repository import AliasRepository
from server.kit.db.database import Database
from server.kit.db.migrate import downgrade_database, upgrade_database
from tests.factories import save_checkpoints

BEFORE = "0015"


def test_an_alias_from_before_has_its_newest_move_without_an_author(database: Database) -> None:
    (checkpoint,) = save_checkpoints(database, 100)
    downgrade_database(database, BEFORE)
    with database.write() as session:
        session.execute(
            text(
                "INSERT INTO checkpoint_aliases (name, project, checkpoint_id, version, created_at, moved_at) "
                "VALUES ('champion', 'default', :checkpoint, 7, 1000, 2000)"
            ),
            {"checkpoint": checkpoint},
        )

    upgrade_database(database)

    with database.read() as session:
        (move,) = session.scalars(select(AliasMove))
        alias = AliasRepository(session).get("champion")
    assert (move.alias, move.version, move.checkpoint_id, move.moved_at) == ("champion", 7, checkpoint, 2000.0)
    assert (move.moved_by, alias.moved_by, alias.version) == (None, None, 7)


def test_a_checkpoint_from_before_describes_no_models(database: Database) -> None:
    (checkpoint,) = save_checkpoints(database, 100)
    downgrade_database(database, BEFORE)

    upgrade_database(database)

    with database.read() as session:
        assert session.get_one(Checkpoint, checkpoint).models is None
