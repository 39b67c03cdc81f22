"""Self-play as a whole: trainer, collectors and games, and what survives an end in the middle."""

import json
import subprocess
import sys
import threading
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import yaml

from ludus.protocol.spec import ActionSpec, BehaviorSpec, ObservationSpec
from ludus.sdk import Actions, Simulation, SimulatorError, StepBuilder, connect
from server.ladders.refs import PlayedMatch
from tests.e2e.stack import environment
from tests.toys.brawl import Brawl
from tests.toys.walk import HYPERPARAMETERS
from tests.worker.selfplay.match_day import Recorder, train
from tests.worker.trainer.conftest import start
from worker.trainer import checkpoint
from worker.trainer.messages import EventRecord, SelfPlayStatus

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


def told(match_recorder: Recorder, name: str) -> list[EventRecord]:
    """Return the events of this name."""
    return [message for message in match_recorder.told if isinstance(message, EventRecord) and message.name == name]


def learners(matches: list[PlayedMatch]) -> list[int]:
    """Return the teams that learned, in the order of their turns."""
    return [team for team, _ in groupby(match.participants[0].team for match in matches)]


@pytest.mark.parametrize(
    ("trainer", "network"),
    [
        ("ppo", {}),
        pytest.param("poca", {}, marks=pytest.mark.long),
        ("sac", {}),
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
    assert [event.data["team"] for event in told(match_recorder, "self_play_turn_began")] == [0, 1, 2, 0]
    assert [team for team, _ in groupby(match_recorder.points("Self-play/Learning Team", "Brawler"))] == [0, 1, 2, 0]
    statuses = [message for message in match_recorder.told if isinstance(message, SelfPlayStatus)]
    assert [team for team, _ in groupby(status.learning_team for status in statuses)] == [0, 1, 2, 0]
    state = checkpoint.load(Path(match_recorder.checkpoints[-1].folder))["Brawler"]["self_play"]
    assert statuses[-1].elo == {"Brawler": state["ghost"]["ratings"]["current"]}, "the present rating, not a mean"
    assert {event.data["name"] for event in told(match_recorder, "team_announced")} == {BLUE, GREEN}
    (admitted,) = told(match_recorder, "behavior_admitted")
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
    assert Path(match_recorder.checkpoints[-1].folder, "Brawler.onnx").exists()


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
    state = checkpoint.load(Path(match_recorder.checkpoints[-1].folder))
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
    state = checkpoint.load(Path(match_recorder.checkpoints[-1].folder))
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
    after = checkpoint.load(Path(match_recorder.checkpoints[-1].folder))["Brawler"]["self_play"]["ghost"]
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
