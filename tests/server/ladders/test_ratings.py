"""Ratings follow from the ledger, whatever way they took."""

import random
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ludus.schemas.states import RunState
from server.kit.db.database import Database
from server.kit.db.ids import new_id
from server.kit.jobs import JobLoop
from server.ladders.models import LadderPlayer
from server.ladders.rating_systems import RatingTable, Tally, tally
from server.ladders.ratings import RatingJob, RatingRepository
from server.ladders.refs import Outcome, PlayedMatch, PlayedParticipant
from server.ladders.repository import LadderRepository, PlayerRepository
from server.ladders.requests import MatchReport, ParticipantReport, PlayerCreate
from server.ladders.service import LadderService
from server.lifecycle.attempts import AttemptLedger
from tests.examples import examples
from tests.factories import make_claim, make_run
from tests.server.ladders.played import (
    SELF_PLAY,
    computed,
    get_ladder,
    make_match,
    make_player,
    next_attempt,
    rate_all,
)

OUTCOMES: tuple[Outcome, ...] = ("win", "draw", "loss")


def random_matches(draw: random.Random, first: int, count: int, snapshots: int = 4) -> list[PlayedMatch]:
    """Draw matches of which some do not count, some are against the learning policy itself."""
    return [
        make_match(
            number,
            draw.choice(OUTCOMES),
            draw.choice([None, *range(snapshots)]),
            step=37 * number,
            rated=draw.random() < 0.8,
        )
        for number in range(first, first + count)
    ]


def recompute(database: Database, ladder: str) -> None:
    with database.write() as session:
        LadderService(session).recompute(ladder)


def player_of(database: Database, ladder: str, number: int) -> LadderPlayer:
    with database.read() as session:
        return PlayerRepository(session).get(get_ladder(database, ladder).id, number)


def test_rated_matches_move_the_players_and_only_them(database: Database) -> None:
    ledger = make_player(database, name="run")

    ledger.matches.append([make_match(1, "win"), make_match(2, "win", snapshot=1, rated=False)])
    rate_all(database)

    learner, untrained, unrated = (player_of(database, "run", number) for number in (1, 2, 3))
    assert (learner.elo, untrained.elo, unrated.elo) == (1200.5, 1199.5, 1200.0)
    assert (learner.games, untrained.games, unrated.games) == (1, 1, 0)
    assert learner.ordinal == learner.mu - 3 * learner.sigma
    assert get_ladder(database, "run").rated_through == 2


def test_the_learners_elo_is_what_the_trainer_reckons(database: Database) -> None:
    """Plays ML-Agents' ghost trainer through: a slot per snapshot that begins with the rating at its save."""
    ledger = make_player(database, name="run")
    draw = random.Random(1)
    current, slots, matches = 1200.0, {0: 1200.0}, []
    for number in range(1, 251):
        if number % 50 == 0 and number < 250:
            slots[number // 50] = current  # taken at step 1000 * (number // 50), before this match
        opponent = draw.choice(list(slots))
        outcome = draw.choice(OUTCOMES)
        score = {"win": 1.0, "draw": 0.5, "loss": 0.0}[outcome]
        gain = score - 1 / (1 + 10 ** ((slots[opponent] - current) / 400))
        current, slots[opponent] = current + gain, slots[opponent] - gain
        matches.append(make_match(number, outcome, opponent, step=20 * number, elo=current))

    ledger.matches.append(matches)
    rate_all(database, batch=70)

    assert player_of(database, "run", 1).elo == pytest.approx(current, abs=1e-9)
    for number, elo in slots.items():
        assert player_of(database, "run", number + 2).elo == pytest.approx(elo, abs=1e-9)


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_the_size_of_batches_changes_nothing(database: Database, batch: int) -> None:
    ledger = make_player(database, name="run")
    ledger.matches.append(random_matches(random.Random(3), 1, 60))
    rate_all(database)
    at_once = computed(database)

    recompute(database, "run")
    assert get_ladder(database, "run").rated_through == 0
    rate_all(database, batch)

    assert computed(database) == at_once


Attempts = list[tuple[int, int, int]]
"""For each attempt: how many matches of the last one it plays again, how many it plays, how many it reports at once."""


@pytest.mark.long
@settings(max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    attempts=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 10), st.integers(2, 6)), min_size=2, max_size=3),
    seed=st.integers(0, 1000),
    rate_every=st.integers(1, 3),
)
def test_recomputed_ratings_equal_the_live_ones_under_superseded_attempts(
    database: Database, attempts: Attempts, seed: int, rate_every: int
) -> None:
    draw = random.Random(seed)
    config = {**SELF_PLAY, "seed": seed}
    with database.write() as session:
        shared = LadderService(session).create(new_id("shared")).id
    other = make_run(database, config=config, ladder=shared)
    others = AttemptLedger(database, make_claim(database))
    run = make_run(database, config=config, ladder=shared)
    ledger, played, calls = AttemptLedger(database, make_claim(database)), 0, 0
    for again, count, at_once in attempts:
        begin = max(0, played - again) + 1
        ledger.matches.resume({"Striker": begin - 1})
        matches = random_matches(draw, begin, count)
        for start in range(0, count, at_once):
            ledger.matches.append(matches[start : start + at_once])
            calls += 1
            others.matches.append(random_matches(draw, calls, 1))
            if calls % rate_every == 0:
                RatingJob(database, 5).rate_ladder(shared)
        played = begin + count - 1
        ledger = next_attempt(database, ledger, Striker=played)
    for each in (ledger, others):
        each.move(RunState.CANCELLED)
    rate_all(database)
    live = computed(database)

    recompute(database, shared)
    rate_all(database, 3)

    assert run.id != other.id
    assert computed(database) == live


def test_what_was_superseded_leaves_no_trace(database: Database) -> None:
    """The ratings equal those of a run that never played what was superseded."""
    draw = random.Random(5)
    kept, lost, anew = (random_matches(draw, first, count) for first, count in ((1, 20), (21, 15), (21, 10)))
    straight = make_player(database, name="straight")
    straight.matches.append([*kept, *anew])
    broken = make_player(database, name="broken")
    broken.matches.append([*kept, *lost])
    rate_all(database)

    next_attempt(database, broken, Striker=20).matches.append(anew)
    rate_all(database)

    def standings(run: str) -> dict[str, tuple[float, ...]]:
        with database.read() as session:
            ladder = LadderRepository(session).get(run)
            found = PlayerRepository(session).played(ladder.id, 100)
        return {each.name.partition("/")[2]: (each.elo, each.mu, each.sigma, each.games) for each in found}

    assert standings("broken") == standings("straight")


def test_ratings_that_were_taken_back_meanwhile_are_not_added_to(database: Database) -> None:
    ledger = make_player(database, name="run")
    ledger.matches.append([make_match(1), make_match(2)])
    ladder = get_ladder(database, "run").id
    with database.read() as session:
        batch = RatingRepository(session).load(ladder)
    assert batch is not None
    book = RatingTable(batch.standings, lambda _player, _step: None)
    for game in batch.games:
        book.play(game)
    recompute(database, ladder)

    with database.write() as session:
        stored = RatingRepository(session).store(batch, book)

    assert not stored
    assert get_ladder(database, ladder).rated_through == 0


def test_two_raters_do_the_work_of_one(database: Database) -> None:
    ledger = make_player(database, name="run")
    ledger.matches.append(random_matches(random.Random(8), 1, 200))
    threads = [threading.Thread(target=rate_all, args=(database, 10)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate_all(database)
    together = computed(database)

    recompute(database, "run")
    rate_all(database)

    assert computed(database) == together


def test_a_running_rater_rates_what_comes(database: Database) -> None:
    ledger = make_player(database, name="run")
    stop = threading.Event()
    rating = threading.Thread(target=JobLoop([RatingJob(database, 3).job()], 0.01).run, args=(stop,))
    rating.start()
    try:
        ledger.matches.append([make_match(number) for number in range(1, 11)])
        for _ in range(500):
            if get_ladder(database, "run").rated_through == 10:
                break
            stop.wait(0.01)
    finally:
        stop.set()
        rating.join()

    assert player_of(database, "run", 1).games == 10


def test_payoffs_are_the_results_of_every_pair(database: Database) -> None:
    ledger = make_player(database, name="run")
    ledger.matches.append(random_matches(random.Random(2), 1, 80))
    rate_all(database)

    with database.read() as session:
        ladder = LadderRepository(session).get("run")
        ratings = RatingRepository(session)
        found = PlayerRepository(session).played(ladder.id, 100)
        payoffs = ratings.payoffs(ladder.id, found)
        counted = tally(ratings.games(ladder.id, 1, 80))
        few = ratings.payoffs(ladder.id, found[:2])

    for row, first in enumerate(found):
        for column, second in enumerate(found):
            pair = (min(first.id, second.id), max(first.id, second.id))
            wins, draws, losses = counted.get(pair, Tally(0, 0, 0))
            mine = (wins, draws, losses) if first.id < second.id else (losses, draws, wins)
            theirs = (payoffs.wins[row, column], payoffs.draws[row, column], payoffs.losses[row, column])
            assert theirs == (mine if first.id != second.id else (0, 0, 0))
    scores = payoffs.scores
    met = payoffs.games > 0
    assert (scores + scores.T)[met] == pytest.approx(1.0)
    assert few.wins.tolist() == payoffs.wins[:2, :2].tolist()


def test_a_history_is_thinned_to_evenly_spaced_games_with_the_newest(database: Database) -> None:
    ledger = make_player(database, name="run")
    ledger.matches.append([make_match(number) for number in range(1, 11)])
    rate_all(database)
    learner = player_of(database, "run", 1)

    def read(points: int) -> list[Any]:
        with database.read() as session:
            return list(RatingRepository(session).history(learner, points))

    assert [point.game for point in read(100)] == list(range(1, 11))
    assert [point.game for point in read(4)] == [2, 5, 7, 10]
    assert [point.step for point in read(1)] == [1000]
    assert read(1)[0].elo == learner.elo


def test_reported_matches_of_a_fixed_player_rate_the_other_one(database: Database) -> None:
    with database.write() as session:
        service = LadderService(session)
        service.create("league", initial_elo=1000.0)
        service.add_player("league", PlayerCreate(name="wall", kind="scripted", elo=1500.0, sigma=1.0, fixed=True))
        service.add_player("league", PlayerCreate(name="ann", kind="human"))
        participants = [
            ParticipantReport(player="ann", team=0, score=3.0),
            ParticipantReport(player="wall", team=1, score=1.0),
        ]
        service.report("league", MatchReport(participants=participants))

    rate_all(database)

    wall, ann = (player_of(database, "league", number) for number in (1, 2))
    assert (wall.elo, wall.sigma, wall.games, wall.fixed) == (1500.0, 1.0, 1, True)
    assert ann.elo == pytest.approx(1000 + 1 - 1 / (1 + 10 ** (500 / 400)))
    assert ann.mu > 25


def test_a_player_that_has_met_only_itself_is_not_among_those_that_have_met(database: Database) -> None:
    ledger = make_player(database, name="run")
    itself = tuple(PlayedParticipant("Keeper", team, None, 200) for team in (0, 1))
    ledger.matches.append([make_match(1), make_match(2, behavior="Keeper", participants=itself)])
    rate_all(database)

    with database.read() as session:
        ladder = LadderRepository(session).get("run")
        names = {player.id: player.name for player in PlayerRepository(session).played(ladder.id, 100)}
        found = [names[number] for number in RatingRepository(session).met(ladder.id, 10)]

    assert sorted(found) == ["run/Striker", "run/Striker#0"]
