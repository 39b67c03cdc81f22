"""Ladders and runs of the previous release, before and after the migration that gives projects their own names."""

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from server.kit.db.database import Database
from server.kit.db.migrate import downgrade_database, upgrade_database
from server.ladders.models import Ladder
from server.ladders.repository import LadderRepository
from server.ladders.service import LadderService
from tests.factories import make_run, read_run

BEFORE = "0011"


def made_by_the_previous_release(session: Session, ladder_id: str, name: str, project: str) -> str | None:
    """Insert a ladder with the statement of the previous release; return its id, None where it finds the name taken."""
    statement = (
        "INSERT INTO ladders (id, project, name, description, run_id, initial_elo, player_seq, match_seq, "
        "rated_through, generation, created_at) VALUES (:id, :project, :name, '', NULL, 1200, 0, 0, 0, 0, 0) "
        "ON CONFLICT (name) DO NOTHING RETURNING id"
    )
    made: str | None = session.execute(text(statement), {"id": ladder_id, "name": name, "project": project}).scalar()
    return made


def ladders(database: Database, project: str) -> dict[str, str]:
    with database.within(project).read() as session:
        names = session.scalars(select(Ladder.name).order_by(Ladder.name)).all()
        return {name: LadderRepository(session).get(name).id for name in names}


def test_ladders_from_before_keep_their_names_in_their_projects(database: Database) -> None:
    downgrade_database(database, BEFORE)
    with database.write() as session:
        made_by_the_previous_release(session, "ldr_1", "league", "default")
        made_by_the_previous_release(session, "ldr_2", "cup", "bots")

    upgrade_database(database)

    assert ladders(database, "default") == {"league": "ldr_1"}
    assert ladders(database, "bots") == {"cup": "ldr_2"}


def test_the_previous_release_goes_on_making_ladders_and_runs(database: Database) -> None:
    with database.within("bots").write() as session:
        ours = LadderService(session).create("league").id

    with database.write() as session:
        assert made_by_the_previous_release(session, "ldr_1", "league", "default") == "ldr_1"
        assert made_by_the_previous_release(session, "ldr_2", "league", "default") is None, "as it always said"
        assert made_by_the_previous_release(session, "ldr_3", "cup", "default") == "ldr_3"
        former = session.execute(text("SELECT name FROM ladders WHERE id = :id"), {"id": ours}).scalar_one()

    assert ladders(database, "default") == {"cup": "ldr_3", "league": "ldr_1"}
    assert ladders(database, "bots") == {"league": ours}
    assert former == ours, "the previous release looks it up by its id"


def test_a_run_of_the_previous_release_counts_as_one_without_a_token(database: Database) -> None:
    run = make_run(database)
    columns = [column.name for column in type(run).__table__.columns if column.name != "token_id"]
    chosen = ", ".join({"id": "'run_old'", "name": "'old'"}.get(name, name) for name in columns)
    with database.write() as session:
        session.execute(text(f"INSERT INTO runs ({', '.join(columns)}) SELECT {chosen} FROM runs"))

    assert read_run(database, "old").token_id == ""


def test_taking_it_back_leaves_one_ladder_of_a_name_and_loses_none(database: Database) -> None:
    made = {}
    for project in ("default", "bots"):
        with database.within(project).write() as session:
            made[project] = LadderService(session).create("league").id

    downgrade_database(database, BEFORE)

    with database.read() as session:
        rows = {row.id: row.name for row in session.execute(text("SELECT id, name FROM ladders"))}
    first, second = sorted(made.values())
    assert rows == {first: "league", second: second}
    upgrade_database(database)
    assert [*ladders(database, "default").values(), *ladders(database, "bots").values()] == list(made.values())
