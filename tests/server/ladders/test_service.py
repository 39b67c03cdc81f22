"""What users and runs do with ladders."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ludus.schemas.states import RunState
from server.config.resolution import resolve
from server.kit.db.database import Database
from server.kit.errors import CheckpointNotFound, InvalidConfig, Problem
from server.ladders.refs import LadderExists, LadderInUse, LadderNotFound
from server.ladders.repository import LadderRepository
from server.ladders.requests import PlayerCreate
from server.ladders.service import LadderService
from tests.factories import make_checkpoint, make_ledger, make_run
from tests.server.ladders.played import SELF_PLAY, computed, get_ladder, make_match, make_player, rate_all


def named(**ladders: str | None) -> dict[str, Any]:
    """Configure behaviors that name ladders."""
    return {"behaviors": {name: {"self_play": {"ladder": ladder}} for name, ladder in ladders.items()}}


def create(database: Database, name: str, **fields: Any) -> str:
    with database.write() as session:
        return LadderService(session).create(name, **fields).id


def check(database: Database, config: dict[str, Any], *, lock: bool = False) -> str | None:
    with database.write() as session:
        return LadderService(session).check(resolve(config), lock=lock)


def problems(database: Database, config: dict[str, Any]) -> list[Problem]:
    with pytest.raises(InvalidConfig) as refused:
        check(database, config)
    return list(refused.value.problems)


def test_a_run_with_self_play_has_a_ladder_of_its_own_from_the_start(database: Database) -> None:
    run = make_run(database, name="mine", config=SELF_PLAY)

    found = get_ladder(database, "mine")

    assert (found.name, found.run_id, found.match_seq) == ("mine", run.id, 0)
    assert get_ladder(database, run.id).id == get_ladder(database, found.id).id == found.id


def test_a_run_without_self_play_has_no_ladder(database: Database) -> None:
    make_run(database, name="alone")

    with pytest.raises(LadderNotFound, match="alone"):
        get_ladder(database, "alone")


def test_a_run_that_reports_matches_without_self_play_gets_its_ladder_then(database: Database) -> None:
    ledger = make_ledger(database, name="match")

    ledger.matches.append([make_match(1)])

    assert get_ladder(database, "match").match_seq == 1


def test_a_ladder_goes_before_a_run_of_the_same_name(database: Database) -> None:
    make_run(database, name="league", config=SELF_PLAY)
    ladder = create(database, "league")

    assert get_ladder(database, "league").id == ladder


def test_of_several_that_take_a_name_at_once_one_gets_it(database: Database) -> None:
    def take(_: int) -> bool:
        try:
            create(database, "league")
        except LadderExists:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(take, range(4))) == [False, False, False, True]


def test_a_configuration_names_a_ladder_that_exists(database: Database) -> None:
    ladder = create(database, "league")

    assert check(database, named(A="league", B=None)) == ladder
    assert check(database, named(A="league", B="league"), lock=True) == ladder
    assert check(database, named(A=None)) is None


def test_a_runs_own_ladder_is_not_to_be_shared(database: Database) -> None:
    run = make_run(database, config=SELF_PLAY)

    assert [problem.code for problem in problems(database, named(A=run.id))] == ["not_found"]


def test_all_behaviors_of_a_run_play_on_one_ladder(database: Database) -> None:
    create(database, "one")
    create(database, "two")

    (problem,) = problems(database, named(A="one", B="two"))

    assert (problem.path, problem.code) == ("behaviors.B.self_play.ladder", "contradiction")


def test_a_ladder_of_a_running_run_is_not_deleted(database: Database) -> None:
    shared = create(database, "shared")
    ledger = make_ledger(database, config=SELF_PLAY, ladder=shared)
    ledger.matches.append([make_match(1)])
    with database.write() as session, pytest.raises(LadderInUse, match="has not ended"):
        LadderService(session).delete("shared")
    ledger.move(RunState.CANCELLED)

    with database.write() as session:
        LadderService(session).delete("shared")

    with database.read() as session:
        assert LadderRepository(session).find("shared") is None
    assert all(rows == [] for rows in computed(database).values())


def test_a_checkpoint_of_any_run_can_play_and_begins_as_the_ladder_says(database: Database) -> None:
    create(database, "league", initial_elo=1000.0)
    checkpoint = make_ledger(database).checkpoints.add(make_checkpoint())

    with database.write() as session:
        new = PlayerCreate(name="old", kind="checkpoint", checkpoint_id=checkpoint, behavior="CartPole")
        player = LadderService(session).add_player("league", new)
    nothing = PlayerCreate(name="none", kind="checkpoint", checkpoint_id=f"ckpt_{'0' * 26}")
    with database.write() as session, pytest.raises(CheckpointNotFound):
        LadderService(session).add_player("league", nothing)

    assert (player.checkpoint_id, player.behavior) == (checkpoint, "CartPole")
    assert (player.id, player.elo, player.initial_elo, player.fixed) == (1, 1000.0, 1000.0, False)
    assert get_ladder(database, "league").player_seq == 1


def test_recomputing_begins_with_nothing_rated(database: Database) -> None:
    ledger = make_player(database, name="run")
    ledger.matches.append([make_match(1)])
    rate_all(database)

    with database.write() as session:
        found = LadderService(session).recompute("run")

    assert (found.rated_through, found.match_seq, found.generation) == (0, 1, 1)
    after = computed(database)
    assert (after["points"], after["pairs"]) == ([], [])
    assert {(elo, games) for _, _, elo, _, _, games in after["players"]} == {(1200.0, 0)}
