"""Runs from before the migration that gives them `max_steps`, and those of the previous release after it."""

from typing import Any

import pytest
from sqlalchemy import text

from server.kit.db.database import Database
from server.kit.db.migrate import downgrade_database, upgrade_database
from tests.factories import CONFIG, make_run, read_run

BEFORE = "0020"
TWO = {"behaviors": {"Striker": {"max_steps": 3_000_000_000}, "Goalie": {"max_steps": 4000}}, "seed": 7}
CLONE = {
    "behaviors": {"CartPole": {"trainer_type": "clone", "demonstrations": [f"dem_{26 * 'a'}"], "max_steps": 77}},
    "seed": 7,
}
EVALUATE = {**CONFIG, "evaluate": {"behavior": "CartPole", "checkpoint": f"ckpt_{26 * 'a'}"}}


@pytest.mark.parametrize(
    ("config", "max_steps"), [(CONFIG, 500_000), (TWO, 3_000_004_000), (CLONE, 77), (EVALUATE, None)]
)
def test_runs_from_before_get_the_steps_of_their_configuration(
    database: Database, config: dict[str, Any], max_steps: int | None
) -> None:
    make_run(database, name="old", config=config)
    assert read_run(database, "old").max_steps == max_steps, "as it is set at the creation"
    downgrade_database(database, BEFORE)

    upgrade_database(database)

    assert read_run(database, "old").max_steps == max_steps


def test_a_configuration_without_behaviors_stops_no_upgrade(database: Database) -> None:
    make_run(database, name="odd")
    with database.write() as session:
        session.execute(text("UPDATE runs SET config = '{}'"))
    downgrade_database(database, BEFORE)

    upgrade_database(database)

    assert read_run(database, "odd").max_steps is None


def test_the_previous_release_goes_on_creating_runs(database: Database) -> None:
    run = make_run(database)
    columns = [column.name for column in type(run).__table__.columns if column.name != "max_steps"]
    chosen = ", ".join({"id": "'run_old'", "name": "'old'"}.get(name, name) for name in columns)
    with database.write() as session:
        session.execute(text(f"INSERT INTO runs ({', '.join(columns)}) SELECT {chosen} FROM runs"))

    assert read_run(database, "old").max_steps is None
