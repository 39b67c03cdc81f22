"""Training in self-play with real collectors."""

import json
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from ludus.sdk import Actions, Simulation, SimulatorError, StepBuilder, connect
from server.kit.db.database import Database
from server.ladders.ratings import RatingRepository
from server.ladders.refs import PlayedMatch
from server.ladders.repository import LadderRepository, PlayerRepository
from server.lifecycle.attempts import AttemptLedger
from tests.e2e.stack import environment
from tests.factories import make_claim, make_run
from tests.server.ladders.played import rate_all
from tests.toys.brawl import Brawl
from tests.toys.roshambo import PAPER, ROCK, SCISSORS, Roshambo
from tests.toys.walk import HYPERPARAMETERS
from tests.worker.selfplay.match_day import train
from tests.worker.trainer.conftest import start
from worker.trainer import checkpoint
from worker.trainer.messages import SelfPlayStatus

__all__ = ["start"]

NETWORK = {"hidden_units": 8, "num_layers": 1}
RED, BLUE, GREEN = "Brawler?team=0", "Brawler?team=1", "Brawler?team=2"


def section(trainer: str = "ppo", **overrides: Any) -> dict[str, Any]:
    """Return a behavior's section of the configuration: turns of 192 steps, a snapshot for each of their thirds."""
    self_play = {"save_steps": 63, "swap_steps": 60, "team_change": 191, "window": 4, **overrides.pop("self_play", {})}
    return {
        "trainer_type": trainer,
        "hyperparameters": HYPERPARAMETERS[trainer],
        "network_settings": NETWORK,
        "max_steps": 600,
        "summary_freq": 100,
        "self_play": self_play,
        **overrides,
    }


def learners(matches: list[PlayedMatch]) -> list[int]:
    """Return the teams that learned, in the order of their turns."""
    return [team for team, _ in groupby(match.participants[0].team for match in matches)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("trainer", "network"),
    [
        ("ppo", {}),
        pytest.param("poca", {}, marks=pytest.mark.long),
        pytest.param("sac", {}, marks=pytest.mark.long),
        pytest.param("ppo", {"memory": {"memory_size": 8}}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_teams_of_unequal_size_learn_in_turns(trainer: str, network: dict[str, Any], tmp_path: Path) -> None:
    hyperparameters = dict(HYPERPARAMETERS[trainer])
    if trainer == "sac":
        hyperparameters |= {"steps_per_update": 16}
    if network:
        network = {"memory": {"memory_size": 8, "sequence_length": 8}}
    game = Brawl({RED: 1, BLUE: 3, GREEN: 2})
    document = section(trainer, hyperparameters=hyperparameters, network_settings={**NETWORK, **network})

    finished, match_recorder = train({"Brawler": document}, [game], tmp_path)

    assert (finished.outcome, finished.reason) == ("succeeded", "completed"), finished.detail
    assert match_recorder.checkpoints[-1].steps == {"Brawler": 600}, "steps of teams that do not learn are none"
    assert learners(match_recorder.matches) == [0, 1, 2, 0]
    assert len(game.starts) == 4, "each turn begins with a reset"
    assert [event.data["team"] for event in match_recorder.named("self_play_turn_began")] == [0, 1, 2, 0]
    assert [team for team, _ in groupby(match_recorder.points("Self-play/Learning Team", "Brawler"))] == [0, 1, 2, 0]
    statuses = [message for message in match_recorder.told if isinstance(message, SelfPlayStatus)]
    assert [team for team, _ in groupby(status.learning_team for status in statuses)] == [0, 1, 2, 0]
    state = checkpoint.load(match_recorder.folders[-1])["Brawler"]["self_play"]
    assert statuses[-1].elo == {"Brawler": state["ghost"]["ratings"]["current"]}, "the present rating, not a mean"
    assert {event.data["name"] for event in match_recorder.named("team_announced")} == {BLUE, GREEN}
    (admitted,) = match_recorder.named("behavior_admitted")
    assert admitted.data["name"] == RED
    assert [match.number for match in match_recorder.matches] == list(range(1, len(match_recorder.matches) + 1))
    for match in match_recorder.matches:
        assert {participant.team for participant in match.participants} == {0, 1, 2}
        assert all(participant.snapshot is None or participant.snapshot >= 0 for participant in match.participants[1:])
    assert {participant.snapshot for match in match_recorder.matches for participant in match.participants[1:]} > {
        None,
        0,
    }
    assert match_recorder.points("Self-play/Opponent ELO Std", "Brawler")[-1] > 0
    assert (match_recorder.folders[-1] / "Brawler.onnx").exists()


@pytest.mark.long
def test_a_limit_of_the_policy_lag_drops_nothing_for_what_is_played_out_of_turn(tmp_path: Path) -> None:
    game = Brawl({RED: 1, BLUE: 3, GREEN: 2})
    document = section(hyperparameters={**HYPERPARAMETERS["ppo"], "max_policy_lag": 0})

    finished, match_recorder = train({"Brawler": document}, [game], tmp_path)

    assert (finished.outcome, finished.reason) == ("succeeded", "completed"), finished.detail
    assert learners(match_recorder.matches) == [0, 1, 2, 0]
    stale = match_recorder.points("Policy/Stale Share", "Brawler")
    assert 0.0 < max(stale) < 0.1, "steps that were answered before their round began, and no others"
    state = checkpoint.load(match_recorder.folders[-1])["Brawler"]
    assert state["algorithm"]["version"] == 10, "each of the ten rounds of at most 64 steps was learned from"


@pytest.mark.long
@pytest.mark.parametrize("collectors", [1, 2])
def test_teams_that_wait_for_late_steps_drop_none_and_come_to_their_turns(tmp_path: Path, collectors: int) -> None:
    games = [Brawl({RED: 1, BLUE: 3, GREEN: 2}) for _ in range(collectors)]
    document = section(hyperparameters={**HYPERPARAMETERS["ppo"], "max_policy_lag": 1, "late_steps": "wait"})

    finished, match_recorder = train({"Brawler": document}, games, tmp_path, collectors=collectors)

    assert (finished.outcome, finished.reason) == ("succeeded", "completed"), finished.detail
    assert set(match_recorder.points("Policy/Stale Share", "Brawler")) == {0.0}
    assert len(learners(match_recorder.matches)) >= 3


@pytest.mark.long
def test_simulators_at_several_collectors_play_opponents_of_their_own(tmp_path: Path) -> None:
    games = [Brawl({RED: 2, BLUE: 2}) for _ in range(4)]
    ratio = {"play_against_latest_model_ratio": 0.0}

    _, match_recorder = train({"Brawler": section(max_steps=1500, self_play=ratio)}, games, tmp_path, collectors=2)

    assert all(game.games for game in games)
    assert {match.simulator for match in match_recorder.matches} == {0, 1, 2, 3}
    late = [match for match in match_recorder.matches if match.participants[0].step > 1000]
    assert len({match.participants[1].snapshot for match in late}) > 1
    assert all(match.rated for match in late if match.elo != match_recorder.matches[match.number - 2].elo)


@pytest.mark.long
def test_behaviors_learn_in_turns_and_the_run_ends_when_all_are_done(tmp_path: Path) -> None:
    game = Brawl({"Hunter?team=0": 1, "Hare?team=1": 2})
    document = {"Hunter": section(max_steps=300), "Hare": section(max_steps=600, threaded=True)}

    finished, match_recorder = train(document, [game], tmp_path)

    assert finished.reason == "completed"
    assert match_recorder.checkpoints[-1].steps == {"Hunter": 300, "Hare": 600}
    turns = [behavior for behavior, _ in groupby(match.behavior for match in match_recorder.matches)]
    assert turns == ["Hunter", "Hare", "Hunter", "Hare"]
    for match in match_recorder.matches:
        assert {participant.behavior for participant in match.participants} == {"Hunter", "Hare"}
    # All that one side wins the other loses.
    state = checkpoint.load(match_recorder.folders[-1])
    hunter, hare = (state[name]["self_play"]["ghost"]["ratings"]["current"] for name in ("Hunter", "Hare"))
    assert hunter != 1200.0
    assert hare != 1200.0


class Alone(Simulation):
    """Two teams of one behavior that nobody asked to play against itself."""

    behaviors = tuple(BehaviorSpec(name, (ObservationSpec((1,)),), ActionSpec(0, (2,))) for name in (RED, BLUE))

    def reset(self, builder: StepBuilder, start: object) -> None:
        self.step(builder, ())

    def step(self, builder: StepBuilder, actions: object) -> None:
        for action in actions or [(RED, 0), (BLUE, 0)]:  # type: ignore[attr-defined]  # pairs, too
            builder.request_decision(agent=0, observation=[0.0], behavior=action[0])


def test_teams_without_self_play_train_together_and_somebody_is_told(tmp_path: Path) -> None:
    document = section(max_steps=128)
    del document["self_play"]

    finished, match_recorder = train({"Brawler": document}, [Alone()], tmp_path)

    assert finished.reason == "completed"
    assert match_recorder.events["teams_train_together"].level == "warning"
    assert "self_play" in match_recorder.events["teams_train_together"].message
    assert match_recorder.matches == []


def test_one_team_alone_learns_without_opponents_and_somebody_is_told(tmp_path: Path) -> None:
    finished, match_recorder = train({"Brawler": section(max_steps=256)}, [Brawl({BLUE: 2})], tmp_path)

    assert finished.reason == "completed"
    assert "team 1" in match_recorder.events["self_play_without_opponents"].message
    assert match_recorder.matches == []


class Leaving(Brawl):
    """Plays so many games, and is gone."""

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        if self.games >= 3:
            raise SimulatorError("gone", "the game was closed")
        super().step(builder, actions)


def test_a_team_whose_only_simulator_has_left_does_not_keep_the_other_from_learning(tmp_path: Path) -> None:
    games = [Leaving({RED: 2}), Brawl({BLUE: 2})]  # each team comes with a simulator of its own

    finished, match_recorder = train(
        {"Brawler": section(max_steps=400)}, games, tmp_path, simulators={"grace_seconds": 1.0}
    )

    assert (finished.outcome, finished.reason) == ("succeeded", "completed"), finished.detail
    assert match_recorder.events["self_play_turn_passed"].data == {"team": 0}
    state = checkpoint.load(match_recorder.folders[-1])
    assert state["Brawler"]["self_play"]["learning"] == 1


@pytest.mark.timeout(120)
@pytest.mark.long
def test_a_run_killed_in_the_middle_goes_on_with_its_opponents_team_and_ratings(tmp_path: Path) -> None:
    document = section(max_steps=100_000, checkpoint_interval=250, self_play={"interrupted_games": "draw"})
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"seed": 1, "behaviors": {"Brawler": document}}))
    command = [sys.executable, "-m", "worker.trainer", str(config), "--scratch", str(tmp_path / "scratch")]
    player: threading.Thread | None = None
    folder = None
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment()
    ) as trainer:
        try:
            assert trainer.stdout is not None
            for message in map(json.loads, trainer.stdout):
                if message["type"] == "listening" and player is None:
                    address = message["endpoints"][0]["address"]
                    player = threading.Thread(target=_play, args=(Brawl({RED: 1, BLUE: 3}), address), daemon=True)
                    player.start()
                if message["type"] == "checkpoint_written" and message["step"] > 1000:
                    folder = Path(message["folder"])
                    break
        finally:
            trainer.kill()
    assert folder is not None
    assert player is not None
    player.join(10)
    saved = checkpoint.load(folder)["Brawler"]
    ghost = saved["self_play"]["ghost"]
    step = saved["progress"]["step"]

    _, match_recorder = train(
        {"Brawler": {**document, "max_steps": step + 64}},
        [Brawl({RED: 1, BLUE: 3})],
        tmp_path / "again",
        resume_from=str(folder),
    )

    first = match_recorder.matches[0]
    assert first.number == ghost["counters"]["matches"] + 1
    assert first.participants[0].team == saved["self_play"]["learning"] == 1
    drawn = {key if key >= 0 else None for keys in ghost["teams"].values() for key in keys}
    assert {participant.snapshot for participant in first.participants[1:]} <= drawn
    assert abs(first.elo - ghost["ratings"]["current"]) <= 1.0
    after = checkpoint.load(match_recorder.folders[-1])["Brawler"]["self_play"]["ghost"]
    kept = {one["number"]: one["weights"] for one in ghost["pool"]["snapshots"]}
    assert len(kept) == 4
    again = {one["number"]: one["weights"] for one in after["pool"]["snapshots"]}
    assert set(kept) & set(again)
    for number in set(kept) & set(again):
        assert (kept[number] == again[number]).all()
    assert after["counters"]["ghost_steps"] > ghost["counters"]["ghost_steps"]


def _play(game: Simulation, address: str) -> None:
    with suppress(SimulatorError):  # its trainer has ended
        connect(game, run="alone", server=address, connect_timeout_seconds=1.0)


MOVES = {ROCK: "ckpt_" + "r" * 26, PAPER: "ckpt_" + "p" * 26, SCISSORS: "ckpt_" + "s" * 26}
MOVE_OF = {name: move for move, name in MOVES.items()}
MATCHES = 1000


def roshambo_section(**overrides: Any) -> dict[str, Any]:
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
    _, match_recorder = train({"Roshambo": roshambo_section(max_steps=64)}, [Roshambo()], folder)
    found = {}
    for move, name in MOVES.items():
        state = checkpoint.load(match_recorder.folders[-1])
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
def test_rock_meets_whom_the_selection_prefers_and_the_ladder_shows_who_beats_whom(
    pure: dict[str, str], database: Database, tmp_path: Path
) -> None:
    # Rock's shares of points against rock (twice: its own snapshot), paper, scissors are 1/2, 0, 1.
    expected = {ROCK: 2 * 0.25 / 1.5, PAPER: 1.0 / 1.5}
    document = roshambo_section(self_play={"opponents": list(MOVES.values()), "opponent_selection": "pfsp_hard"})
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
    document = roshambo_section(
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
