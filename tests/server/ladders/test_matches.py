"""The ledger: complete, in order, and without a match that counts twice."""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from server.checkpoints.refs import NewCheckpoint
from server.kit.db.database import Database
from server.kit.errors import InvalidQuery, LeaseLost
from server.kit.listing import Condition, ListQuery, Operator, Order
from server.ladders.matches import MatchRepository
from server.ladders.models import LadderMatch, LadderPlayer
from server.ladders.refs import MatchInvalid, Outcome, PlayedParticipant, PlayerKind, PlayerNotFound
from server.ladders.repository import LadderRepository, PlayerRepository
from server.ladders.requests import MatchReport, ParticipantReport, PlayerCreate
from server.ladders.service import LadderService
from server.lifecycle.attempts import AttemptLedger
from server.runs.repository import RunRepository
from tests.factories import make_claim, make_run
from tests.plans import plans_of
from tests.server.ladders.played import (
    SELF_PLAY,
    computed,
    get_ladder,
    make_match,
    make_player,
    next_attempt,
    rate_all,
    read_matches,
)

ALL = ListQuery(Order("seq", descending=False), limit=1000)
EQ, NE = Operator.EQ, Operator.NE


def players(database: Database, ladder: str = "run") -> dict[str, LadderPlayer]:
    with database.read() as session:
        found = LadderRepository(session).get(ladder)
        listed = PlayerRepository(session).list(found.id, ListQuery(Order("id", descending=False), limit=1000)).items
    return {player.name.partition("/")[2] or player.name: player for player in listed}


def listed(database: Database, *conditions: Condition, ladder: str = "run", limit: int = 1000) -> list[LadderMatch]:
    with database.read() as session:
        ladder_id = LadderRepository(session).get(ladder).id
        query = ListQuery(Order("seq", descending=False), conditions, limit)
        return list(MatchRepository(session).list(ladder_id, query).items)


def numbers(found: Sequence[LadderMatch]) -> list[int | None]:
    return [each.number for each in found]


@pytest.fixture
def league(database: Database) -> str:
    """Make a ladder with two players, and return its name."""
    with database.write() as session:
        service = LadderService(session)
        service.create("league")
        for name in ("ann", "bob", "cleo"):
            service.add_player("league", PlayerCreate(name=name, kind="human"))
    return "league"


def report(
    database: Database,
    league: str,
    *participants: tuple[int | str, float | None],
    outcome: Outcome | None = None,
    **rest: Any,
) -> LadderMatch:
    sides = [ParticipantReport(player=each, team=team, score=score) for team, (each, score) in enumerate(participants)]
    match = MatchReport(participants=sides, outcome=outcome, **rest)
    with database.write() as session:
        return LadderService(session).report(league, match)


def test_a_match_is_kept_as_it_was_played(database: Database) -> None:
    ledger = make_player(database, name="run")

    ledger.matches.append([make_match(1, "loss", 3, truncated=True, rated=False, simulator=4, elo=1199.5, step=250)])

    (found,) = listed(database)
    match = found
    assert (match.seq, match.attempt, match.number, match.behavior) == (1, 1, 1, "Striker")
    assert (match.at, match.outcome, match.truncated, match.rated) == (1001.0, "loss", True, False)
    assert (match.simulator, match.step, match.elo, match.superseded_by) == (4, 250, 1199.5, None)
    learner, opponent = found.participants
    assert (learner.team, learner.rank, learner.step, learner.profile.kind) == (0, 2, 250, "policy")
    assert (opponent.team, opponent.rank, opponent.step, opponent.profile.kind) == (1, 1, 3000, "snapshot")
    assert (opponent.name, opponent.profile.key) == ("run/Striker#3", f"{match.run_id}/Striker#3")


def test_players_are_listed_by_the_present_names_of_their_runs(database: Database) -> None:
    make_player(database, name="zebra").matches.append([make_match(1, snapshot=0), make_match(2, snapshot=10)])
    query = ListQuery(Order("name"), (Condition("name", Operator.EQ, "ant/Striker#*"),), limit=1)
    with database.write() as session:
        RunRepository(session).get("zebra").name = "ant"

    with database.read() as session:
        ladder = LadderRepository(session).get("ant")
        page = PlayerRepository(session).list(ladder.id, query)
        rest = PlayerRepository(session).list(ladder.id, replace(query, after=page.next))
        ladders = LadderRepository(session).list(ListQuery(Order("name"), (Condition("name", Operator.EQ, "ant"),)))

    assert [each.name for each in (*page.items, *rest.items)] == ["ant/Striker#10", "ant/Striker#0"]
    assert rest.next is None
    assert [each.id for each in ladders.items] == [ladder.id]


def test_policies_and_snapshots_become_players_once(database: Database) -> None:
    config = {"behaviors": {"Striker": {"self_play": {"initial_elo": 900.0}}}}
    ledger = make_player(database, name="run", config=config)

    ledger.matches.append([make_match(1, snapshot=0), make_match(2, snapshot=2)])
    ledger.matches.append([make_match(3, snapshot=2), make_match(4, snapshot=5), make_match(5, snapshot=None)])

    found = players(database)
    assert [*found] == ["Striker", "Striker#0", "Striker#2", "Striker#5"]
    assert [player.id for player in found.values()] == [1, 2, 3, 4]
    assert {player.initial_elo for player in found.values()} == {900.0}
    assert [player.step for player in found.values()] == [500, 0, 2000, 5000]
    assert get_ladder(database, "run").player_seq == 4


def test_a_behavior_without_self_play_settings_begins_with_the_ladders_rating(database: Database) -> None:
    ledger = make_player(database, name="run", config={"behaviors": {"Other": {}}})

    ledger.matches.append([make_match(1)])

    assert players(database)["Striker"].initial_elo == 1200.0


def test_handing_matches_in_twice_adds_them_once(database: Database) -> None:
    ledger = make_player(database, name="run")

    ledger.matches.append([make_match(1), make_match(2)])
    ledger.matches.append([make_match(1), make_match(2), make_match(3)])
    ledger.matches.append([])

    assert numbers(listed(database)) == [1, 2, 3]
    assert get_ladder(database, "run").match_seq == 3


def test_behaviors_count_their_matches_apart(database: Database) -> None:
    ledger = make_player(database, name="run")
    goalie = (PlayedParticipant("Goalie", 1, None, 10), PlayedParticipant("Striker", 0, 0, 0))

    ledger.matches.append([make_match(1), make_match(1, behavior="Goalie", participants=goalie), make_match(2)])

    assert [(each.behavior, each.number) for each in listed(database)] == [
        ("Striker", 1),
        ("Goalie", 1),
        ("Striker", 2),
    ]


def test_a_later_attempt_supersedes_what_it_plays_anew(database: Database) -> None:
    first = make_player(database, name="run")
    first.matches.append([make_match(number) for number in range(1, 7)])
    second = next_attempt(database, first, Striker=3)
    second.matches.append([make_match(4, "loss"), make_match(5, "loss")])

    counting = listed(database)
    superseded = listed(database, Condition("superseded", EQ, True))
    third = next_attempt(database, second, Striker=4)
    third.matches.append([make_match(5, "draw")])

    assert [(each.attempt, each.number) for each in counting] == [(1, 1), (1, 2), (1, 3), (2, 4), (2, 5)]
    assert [(each.number, each.superseded_by) for each in superseded] == [(4, 2), (5, 2), (6, 2)]
    assert [(each.attempt, each.number) for each in listed(database)] == [
        (1, 1),
        (1, 2),
        (1, 3),
        (2, 4),
        (3, 5),
    ]
    assert len(read_matches(database)) == 9


def test_an_attempt_that_resumes_where_the_last_one_was_supersedes_nothing(database: Database) -> None:
    first = make_player(database, name="run")
    first.matches.append([make_match(1), make_match(2)])

    next_attempt(database, first, Striker=2).matches.append([make_match(3), make_match(4)])

    assert numbers(listed(database)) == [1, 2, 3, 4]
    assert all(match.superseded_by is None for match in read_matches(database))


def test_what_was_played_beyond_the_checkpoint_does_not_count_even_before_anything_is_played_anew(
    database: Database,
) -> None:
    first = make_player(database, name="run")
    first.matches.append([make_match(1), make_match(2)])
    rate_all(database)
    up_to_two = computed(database)
    first.matches.append([make_match(3), make_match(4)])
    rate_all(database)

    second = next_attempt(database, first, Striker=2)

    assert numbers(listed(database)) == [1, 2]
    assert computed(database) == up_to_two
    third = next_attempt(database, second, Striker=2)  # the second died before it had played anything
    third.matches.append([make_match(3, "loss")])
    assert [(each.attempt, each.number) for each in listed(database)] == [(1, 1), (1, 2), (3, 3)]


def test_an_attempt_without_a_checkpoint_begins_with_an_empty_ledger(database: Database) -> None:
    first = make_player(database, name="run")
    goalie = (PlayedParticipant("Goalie", 1, None, 10), PlayedParticipant("Striker", 0, 0, 0))
    first.matches.append([make_match(1), make_match(1, behavior="Goalie", participants=goalie)])
    other = make_player(database, name="other")
    other.matches.append([make_match(1)])

    next_attempt(database, first)

    assert listed(database) == []
    assert numbers(listed(database, ladder="other")) == [1], "another run's matches stay"


def test_policies_of_other_runs_are_players_of_their_runs(database: Database) -> None:
    origin = make_player(database, name="origin")
    checkpoint = origin.checkpoints.add(NewCheckpoint(5000, {"Striker": 5000}, "interval", "somewhere", ()))
    ledger = make_player(database, name="run", config={"behaviors": {"Striker": {"self_play": {"initial_elo": 900.0}}}})
    with database.read() as session:
        run = RunRepository(session).get("origin").id
    own = PlayedParticipant("Striker", 0, None, 100)
    guest = PlayedParticipant("Striker", 1, None, 5000, checkpoint)
    snapshot = PlayedParticipant("Striker", 1, 3, 3000, checkpoint)
    unknown = PlayedParticipant("Old", 1, None, 7, "ckpt_" + "0" * 26)

    ledger.matches.append([make_match(1, participants=(own, guest)), make_match(2, participants=(own, snapshot))])
    ledger.matches.append([make_match(3, participants=(own, guest)), make_match(4, participants=(own, unknown))])

    with database.read() as session:
        ladder = LadderRepository(session).get("run").id
        query = ListQuery(Order("id", descending=False), limit=1000)
        found = PlayerRepository(session).list(ladder, query).items
    shown = [(each.kind, each.run_id == run, each.behavior, each.snapshot, each.checkpoint_id) for each in found]
    assert shown == [
        ("policy", False, "Striker", None, None),
        ("checkpoint", True, "Striker", None, checkpoint),
        ("snapshot", True, "Striker", 3, checkpoint),
        ("checkpoint", False, "Old", None, unknown.checkpoint),
    ]
    assert [each.name for each in found[1:]] == [
        f"origin/Striker@{checkpoint}",
        "origin/Striker#3",
        f"{unknown.checkpoint}/Old@{unknown.checkpoint}",
    ]
    assert {each.initial_elo for each in found[:3]} == {900.0}


def test_a_registered_checkpoint_that_plays_is_the_player_it_was_registered_as(database: Database) -> None:
    origin = make_player(database, name="origin")
    checkpoint = origin.checkpoints.add(NewCheckpoint(5000, {"Striker": 5000}, "interval", "somewhere", ()))
    with database.write() as session:
        service = LadderService(session)
        shared = service.create("shared").id
        anchor = PlayerCreate(
            name="anchor", kind="checkpoint", checkpoint_id=checkpoint, behavior="Striker", elo=1500.0, fixed=True
        )
        service.add_player("shared", anchor)
    ledger = make_player(database, name="run", ladder=shared)
    participants = (PlayedParticipant("Striker", 0, None, 100), PlayedParticipant("Striker", 1, None, 5000, checkpoint))

    ledger.matches.append([make_match(1, participants=participants)])
    rate_all(database)

    found = players(database, "shared")
    assert [*found] == ["anchor", "Striker"]
    assert (found["anchor"].elo, found["anchor"].games) == (1500.0, 1)
    assert found["Striker"].elo > 1200.5, "a win against somebody stronger"


@pytest.mark.parametrize("registered", [True, False])
def test_a_scripted_opponent_is_the_player_of_its_name(database: Database, registered: bool) -> None:
    with database.write() as session:
        service = LadderService(session)
        shared = service.create("shared").id
        if registered:
            service.add_player("shared", PlayerCreate(name="random", kind="scripted", elo=1000.0, fixed=True))
    ledger = make_player(database, name="run", ladder=shared)
    participants = (
        PlayedParticipant("Striker", 0, None, 100),
        PlayedParticipant("Striker", 1, None, 0, scripted="random"),
    )

    ledger.matches.append([make_match(1, participants=participants)])
    ledger.matches.append([make_match(2, participants=participants)])
    rate_all(database)

    found = players(database, "shared")
    assert {name: (each.kind, each.games) for name, each in found.items()} == {
        "random": (PlayerKind.SCRIPTED, 2),
        "Striker": (PlayerKind.POLICY, 2),
    }
    assert found["random"].run_id is None
    assert (found["random"].elo == 1000.0) == registered


def test_only_the_behavior_that_plays_anew_is_superseded(database: Database) -> None:
    first = make_player(database, name="run")
    goalie = (PlayedParticipant("Goalie", 1, None, 10), PlayedParticipant("Striker", 0, 0, 0))
    first.matches.append([make_match(1), make_match(1, behavior="Goalie", participants=goalie), make_match(2)])

    next_attempt(database, first, Striker=1, Goalie=1).matches.append([make_match(2)])

    assert [(each.behavior, each.attempt) for each in listed(database)] == [
        ("Striker", 1),
        ("Goalie", 1),
        ("Striker", 2),
    ]


def test_an_attempt_that_was_replaced_writes_no_match(database: Database) -> None:
    first = make_player(database, name="run")
    next_attempt(database, first)

    with pytest.raises(LeaseLost):
        first.matches.append([make_match(1)])

    assert read_matches(database) == []


def test_two_runs_share_a_ladder_without_a_gap_in_its_numbers(database: Database) -> None:
    with database.write() as session:
        shared = LadderService(session).create("shared").id
    ledgers = []
    for name in ("a", "b"):
        make_run(database, name=name, config=SELF_PLAY, ladder=shared)
        ledgers.append(AttemptLedger(database, make_claim(database)))

    def play(ledger: AttemptLedger) -> None:
        for number in range(1, 11):
            ledger.matches.append([make_match(number)])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(play, ledgers))

    matches = read_matches(database)
    assert [match.seq for match in matches] == list(range(1, 21))
    assert {match.ladder_id for match in matches} == {shared}
    assert len(players(database, "shared")) == 2  # names without their runs
    assert get_ladder(database, "a").id == get_ladder(database, "b").id == shared
    assert get_ladder(database, "shared").player_seq == 4


def test_a_reported_match_has_ranks_by_scores(database: Database, league: str) -> None:
    found = report(database, league, ("bob", 2.0), (1, 5.0), ("cleo", 2.0), at=50.0)

    assert [(each.name, each.rank, each.score) for each in found.participants] == [
        ("bob", 2, 2.0),
        ("ann", 1, 5.0),
        ("cleo", 2, 2.0),
    ]
    assert (found.outcome, found.scored, found.at, found.run_id) == ("loss", True, 50.0, None)


@pytest.mark.parametrize("outcome", ["win", "draw", "loss"])
def test_a_reported_outcome_is_the_first_seats(database: Database, league: str, outcome: Outcome) -> None:
    found = report(database, league, ("ann", None), ("bob", None), outcome=outcome)

    assert (found.outcome, found.scored, found.rated) == (outcome, False, True)
    assert found.at == pytest.approx(found.at, abs=1)
    ranks = [each.rank for each in found.participants]
    assert ranks == {"win": [1, 2], "draw": [1, 1], "loss": [2, 1]}[outcome]


@pytest.mark.parametrize(
    ("participants", "outcome", "problem"),
    [
        ([("ann", 1.0)], None, "one participant only"),
        ([], None, "one participant only"),
        ([("ann", 1.0), (1, 0.0)], None, "player 1 takes part twice"),
        ([("ann", 1.0), ("bob", math.nan)], None, "participant 1 is nan"),
        ([("ann", math.inf), ("bob", 0.0)], None, "participant 0 is inf"),
        ([("ann", 1.0), ("bob", None)], None, "participant 1 has no score"),
        ([("ann", 1.0), ("bob", 0.0)], "win", "outcome and scores"),
        ([("ann", None), ("bob", None)], None, "participant 0 has no score"),
    ],
)
def test_what_is_no_match_is_refused_by_name(
    database: Database,
    league: str,
    participants: list[tuple[int | str, float | None]],
    outcome: Outcome | None,
    problem: str,
) -> None:
    with pytest.raises(MatchInvalid, match=problem):
        report(database, league, *participants, outcome=outcome)

    assert read_matches(database) == []
    assert get_ladder(database, league).match_seq == 0


@pytest.mark.parametrize("unknown", ["nobody", 99])
def test_an_unknown_player_is_named(database: Database, league: str, unknown: int | str) -> None:
    with pytest.raises(PlayerNotFound, match=str(unknown)):
        report(database, league, ("ann", 1.0), (unknown, 0.0))

    assert get_ladder(database, league).match_seq == 0


def test_pages_of_matches_are_disjoint_and_complete(database: Database) -> None:
    ledger = make_player(database, name="run")
    ledger.matches.append([make_match(number) for number in range(1, 8)])
    query = ListQuery(Order("seq"), limit=3)
    seen: list[int] = []

    with database.read() as session:
        ladder_id = LadderRepository(session).get("run").id
        while True:
            page = MatchRepository(session).list(ladder_id, query)
            seen += [each.seq for each in page.items]
            if page.next is None:
                break
            query = ListQuery(Order("seq"), limit=3, after=page.next)

    assert seen == [7, 6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (Condition("player", EQ, 3), [2, 4]),
        (Condition("player", EQ, 1), [1, 2, 3, 4]),
        (Condition("player", EQ, 77), []),
        (Condition("outcome", EQ, "loss"), [3]),
        (Condition("rated", EQ, False), [4]),
        (Condition("number", Operator.GE, 3), [3, 4]),
        (Condition("superseded", EQ, False), [1, 2, 3, 4]),
        (Condition("superseded", NE, False), []),
    ],
)
def test_matches_are_found_by_who_played_and_how_it_ended(
    database: Database, condition: Condition, expected: list[int]
) -> None:
    ledger = make_player(database, name="run")
    ledger.matches.append(
        [make_match(1), make_match(2, snapshot=1), make_match(3, "loss"), make_match(4, snapshot=1, rated=False)]
    )

    assert numbers(listed(database, condition)) == expected


def test_a_field_that_matches_do_not_have_is_refused(database: Database) -> None:
    make_player(database, name="run")

    with pytest.raises(InvalidQuery, match="colour"):
        listed(database, Condition("colour", EQ, "red"))


def test_superseding_takes_ratings_back_in_the_same_transaction(database: Database) -> None:
    first = make_player(database, name="run")
    first.matches.append([make_match(1), make_match(2)])
    rate_all(database)
    up_to_two = computed(database)
    first.matches.append([make_match(3), make_match(4)])
    rate_all(database)

    next_attempt(database, first, Striker=2).matches.append([make_match(3, rated=False)])

    assert get_ladder(database, "run").rated_through == 2
    assert computed(database) == up_to_two


def test_sqlite_reads_the_participants_of_a_page_of_matches_alone(database: Database, league: str) -> None:
    if database.engine.dialect.name != "sqlite":
        pytest.skip("PostgreSQL decides by its statistics")
    report(database, league, ("ann", 1.0), ("bob", 0.0))
    ladder_id = get_ladder(database, league).id

    plans = plans_of(database, lambda session: MatchRepository(session).list(ladder_id, ALL))

    assert any(plan.endswith("ladder_participants USING PRIMARY KEY (ladder_id=? AND seq=?)") for plan in plans), plans
