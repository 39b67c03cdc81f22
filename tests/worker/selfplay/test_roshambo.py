"""Rock, paper, scissors, from the collectors to the ladder: payoffs and opponent choice are what theory says.

The policies are pure: checkpoints whose last layer prefers one move beyond any doubt. One of them learns at a rate that
changes nothing, the three are its opponents, beside snapshot 0 of its own.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.kit.db.database import Database
from server.ladders.ratings.repository import RatingRepository
from server.ladders.refs import PlayedMatch
from server.ladders.repository import LadderRepository, PlayerRepository
from server.lifecycle.attempts.repository import AttemptLedger
from tests.factories import make_claim, make_run
from tests.server.ladders.played import rate_all
from tests.toys.roshambo import PAPER, ROCK, SCISSORS, Roshambo
from tests.toys.walk import HYPERPARAMETERS
from tests.worker.selfplay.match_day import train
from worker.trainer import checkpoint

MOVES = {ROCK: "ckpt_" + "r" * 26, PAPER: "ckpt_" + "p" * 26, SCISSORS: "ckpt_" + "s" * 26}
MOVE_OF = {name: move for move, name in MOVES.items()}
MATCHES = 1000


def section(**overrides: Any) -> dict[str, Any]:
    """Return a configuration that plays much and learns as good as nothing."""
    self_play = {"save_steps": 10**6, "team_change": 10**6, "play_against_latest_model_ratio": 0.0, "swap_steps": 2}
    return {
        "hyperparameters": {**HYPERPARAMETERS["ppo"], "learning_rate": 1e-12, "buffer_size": 64},
        "network_settings": {"hidden_units": 4, "num_layers": 1},
        "max_steps": MATCHES,
        "summary_freq": 1000,
        **overrides,
        "self_play": {**self_play, **overrides.get("self_play", {})},
    }


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Make the three policies; return the folder of each by its checkpoint."""
    folder = tmp_path_factory.mktemp("pure")
    _, match_recorder = train({"Roshambo": section(max_steps=64)}, [Roshambo()], folder)
    found = {}
    for move, name in MOVES.items():
        state = checkpoint.load(Path(match_recorder.checkpoints[-1].folder))
        model = state["Roshambo"]["algorithm"]["model"]
        (bias,) = [value for key, value in model.items() if key.startswith("actor.head") and key.endswith("bias")]
        bias[:] = 0.0
        bias[move] = 100.0
        target = folder / name
        target.mkdir()
        checkpoint.save(target, state)
        found[name] = str(target)
    return found


def opponents_of(matches: list[PlayedMatch]) -> list[int]:
    """Return the moves of the opponents; rock's own snapshot is rock, too."""
    return [
        ROCK if match.participants[1].checkpoint is None else MOVE_OF[match.participants[1].checkpoint]
        for match in matches
    ]


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        # Rock's shares of points against rock (twice: its own snapshot), paper, scissors are 1/2, 0, 1.
        ("pfsp_hard", {ROCK: 2 * 0.25 / 1.5, PAPER: 1.0 / 1.5}),
        pytest.param("pfsp_variance", {ROCK: 1.0}, marks=pytest.mark.long),
        pytest.param("uniform", {ROCK: 0.5, PAPER: 0.25, SCISSORS: 0.25}, marks=pytest.mark.long),
    ],
)
def test_rock_meets_whom_the_selection_prefers_and_the_ladder_shows_who_beats_whom(
    selection: str, expected: dict[int, float], pure: dict[str, str], database: Database, tmp_path: Path
) -> None:
    document = section(self_play={"opponents": list(MOVES.values()), "opponent_selection": selection})
    document["initialize_from"] = MOVES[ROCK]

    # Each simulator draws for itself, so that many draws are made in a short time.
    games = [Roshambo() for _ in range(8)]

    finished, match_recorder = train({"Roshambo": document}, games, tmp_path, checkpoints=pure)

    assert finished.outcome == "succeeded", finished.detail
    matches = [match for match in match_recorder.matches if match.rated]
    assert len(matches) > 0.9 * MATCHES, "a game of one move is over before its opponent can change"
    outcomes = {ROCK: "draw", PAPER: "loss", SCISSORS: "win"}
    moves = opponents_of(matches)
    assert all(match.outcome == outcomes[move] for match, move in zip(matches, moves, strict=True))
    settled = Counter(moves[len(moves) // 4 :])  # by then all four are known
    shares = {move: settled[move] / settled.total() for move in (ROCK, PAPER, SCISSORS)}
    assert shares == {move: pytest.approx(expected.get(move, 0.0), abs=0.12) for move in shares}

    run = make_run(database, config={"behaviors": {"Roshambo": document}})
    AttemptLedger(database, make_claim(database)).matches.append(match_recorder.matches)
    rate_all(database)
    with database.read() as session:
        ladder = LadderRepository(session).get(run.id)
        players = PlayerRepository(session).played(ladder.id, 10)
        payoffs = RatingRepository(session).payoffs(ladder.id, players)
        elo = {player.checkpoint_id or player.kind: player.elo for player in players}
    (policy,) = [index for index, player in enumerate(players) if player.kind == "policy"]
    for index, player in enumerate(players):
        if index != policy:
            move = ROCK if player.checkpoint_id is None else MOVE_OF[player.checkpoint_id]
            assert payoffs.scores[policy, index] == {ROCK: 0.5, PAPER: 0.0, SCISSORS: 1.0}[move]
            assert payoffs.scores[index, policy] == 1.0 - payoffs.scores[policy, index]
    assert np.isnan(np.diag(payoffs.scores)).all()
    assert elo["policy"] == pytest.approx(matches[-1].elo, abs=1e-6), "the ladder reckons as the trainer does"
    assert sum(elo.values()) == pytest.approx(1200.0 * len(elo)), "Elo is conserved"


@pytest.mark.learning
@pytest.mark.timeout(120)
def test_hard_opponents_drive_a_policy_that_learns_round_the_circle(pure: dict[str, str], tmp_path: Path) -> None:
    # Whatever it prefers, it meets what beats that until it has learned the answer to it: no pure policy stays.
    learning = {**HYPERPARAMETERS["ppo"], "learning_rate": 3e-2, "buffer_size": 64, "batch_size": 64, "beta": 1e-4}
    document = section(
        hyperparameters={**learning, "learning_rate_schedule": "constant"},
        max_steps=6000,
        self_play={"opponents": list(MOVES.values()), "opponent_selection": "pfsp_hard"},
    )

    _, match_recorder = train({"Roshambo": document}, [Roshambo()], tmp_path, checkpoints=pure)

    moves = [
        MOVE_OF[one.participants[1].checkpoint]
        for one in match_recorder.matches
        if one.participants[1].checkpoint is not None
    ]
    windows = [Counter(moves[start : start + 200]) for start in range(400, len(moves) - 200, 200)]
    hardest = {window.most_common(1)[0][0] for window in windows}
    assert hardest == {ROCK, PAPER, SCISSORS}
