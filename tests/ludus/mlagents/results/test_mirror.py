import json
import shutil
import sys
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from ludus.client import Client
from ludus.config.curriculum import status_of
from ludus.config.environment_parameters import Lesson
from ludus.mlagents.results import Folder, Mirror
from ludus.schemas.states import RunState
from server.metrics.points import MetricPoint
from tests.factories import give_up
from tests.ludus.mlagents.results.reading import events_in, shown, written
from tests.server.app.world import Trainer, World

REWARD, STD = "Environment/Cumulative Reward", "Environment/Cumulative Reward Std"
SPEED, LENGTH = "Performance/Agent Steps per Second", "Environment/Episode Length"
CONFIG: dict[str, Any] = {
    "behaviors": {
        "A": {
            "trainer_type": "ppo",
            "hyperparameters": {"batch_size": 250, "buffer_size": 500},
            "max_steps": 1000,
            "summary_freq": 100,
            "keep_checkpoints": 2,
        }
    }
}
FILES = {"A.onnx": b"a model", "state.safetensors": b"weights", "state.json": b"{}"}


class Play:
    """A run that a trainer works on, and lines that its mirror prints."""

    def __init__(
        self, world: World, client: Client, tmp_path: Path, name: str = "mirrored", config: dict[str, Any] = CONFIG
    ) -> None:
        self.client = client
        self.world = world
        self.scratch = tmp_path / "scratch"
        self.scratch.mkdir()
        self.folder = Folder(tmp_path / "results" / "first")
        self.run = client.runs.get(world.create(config, name=name)["id"])
        self.trainer: Trainer = world.claim(self.run.id).start()
        self.lines: list[str] = []

    def mirror(self) -> Mirror:
        return Mirror(self.client, self.run, self.folder, say=self.lines.append, given=CONFIG)

    def sync(self) -> None:
        with self.mirror() as mirror:
            mirror.sync()

    def summary(self, step: int, values: dict[str, float]) -> None:
        at = self.run.created_at.timestamp() + step / 100
        points = {**values, SPEED: 500.0}
        self.trainer.ledger.metrics.append([MetricPoint("A", key, step, at, value) for key, value in points.items()])

    def save(self, step: int) -> str:
        return self.trainer.save(step, FILES, self.scratch, behavior="A")

    @property
    def summaries(self) -> list[str]:
        return [line for line in self.lines if ". Step: " in line]

    @property
    def events(self) -> Path:
        return self.folder.behavior("A")

    def files(self) -> set[str]:
        return {path.relative_to(self.folder.path).as_posix() for path in self.folder.path.rglob("*") if path.is_file()}


@pytest.fixture
def play(world: World, client: Client, tmp_path: Path) -> Play:
    return Play(world, client, tmp_path)


def test_summaries_become_events_and_lines_at_multiples_of_summary_freq(play: Play) -> None:
    play.summary(100, {REWARD: 1.5, STD: 0.5, LENGTH: 9})
    play.summary(200, {REWARD: 2.0, STD: 0.25, LENGTH: 9})

    play.sync()

    assert shown(play.events)[REWARD] == [(100, 1.5), (200, 2.0)]
    assert play.summaries == [
        "[INFO] A. Step: 100. Time Elapsed: 1.000 s. Mean Reward: 1.500. Std of Reward: 0.500. Training.",
        "[INFO] A. Step: 200. Time Elapsed: 2.000 s. Mean Reward: 2.000. Std of Reward: 0.250. Training.",
    ]


def test_a_second_start_goes_on_without_writing_a_point_or_a_line_twice(play: Play) -> None:
    play.summary(100, {REWARD: 1.5})
    play.sync()
    play.summary(200, {REWARD: 2.0})

    play.sync()
    play.sync()

    assert written(play.events)[REWARD] == [(100, 1.5), (200, 2.0)]
    assert len(play.summaries) == 2
    assert len(list(play.events.glob("events.*"))) == 1


def test_what_a_crash_left_behind_the_journal_is_cut_off_and_written_again(play: Play) -> None:
    play.summary(100, {REWARD: 1.5})
    play.sync()
    journal = (play.folder.logs / "ludus.json").read_text()
    play.summary(200, {REWARD: 2.0})
    play.sync()
    (file,) = play.events.glob("events.*")
    with file.open("ab") as events:
        events.write(b"half a record")
    (play.folder.logs / "ludus.json").write_text(journal)  # as if it had crashed before this was written

    play.sync()

    assert written(play.events)[REWARD] == [(100, 1.5), (200, 2.0)]


def test_a_mirror_that_is_interrupted_in_its_first_summary_writes_no_point_twice(play: Play) -> None:
    def interrupt(line: str) -> None:
        if ". Step: " in line:  # the points are in the file, and the journal does not say so yet
            raise KeyboardInterrupt

    play.summary(100, {REWARD: 1.5})
    with (
        pytest.raises(KeyboardInterrupt),
        Mirror(play.client, play.run, play.folder, say=interrupt, given=CONFIG) as mirror,
    ):
        mirror.sync()

    play.sync()

    assert written(play.events)[REWARD] == [(100, 1.5)]
    assert len(list(play.events.glob("events.*"))) == 1


def test_removed_event_files_are_written_anew_from_the_server(play: Play) -> None:
    play.summary(100, {REWARD: 1.5})
    play.sync()
    shutil.rmtree(play.events)
    play.summary(200, {REWARD: 2.0})

    play.sync()

    assert written(play.events)[REWARD] == [(100, 1.5), (200, 2.0)]
    assert len(play.summaries) == 2


def test_points_that_a_resumed_attempt_supersedes_are_hidden_and_replaced(play: Play) -> None:
    play.summary(100, {REWARD: 1.0})
    play.save(100)
    play.summary(200, {REWARD: 2.0})
    play.summary(300, {REWARD: 3.0})
    play.sync()
    play.trainer.ledger.release("released", "the worker went away")
    play.trainer = play.world.claim(play.run.id).start()
    play.summary(200, {REWARD: 2.5})

    play.sync()

    assert shown(play.events)[REWARD] == [(100, 1.0), (200, 2.5)]
    assert [line.split(". ")[1] for line in play.summaries] == ["Step: 100", "Step: 200", "Step: 300", "Step: 200"]


def test_without_tensorboard_everything_else_is_written_and_the_events_once_it_is_there(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    play.summary(100, {REWARD: 1.5})
    play.save(100)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tensorboard.compat.proto", None)
        play.sync()
    without = play.files()

    play.sync()

    assert [line for line in play.lines if "the package `tensorboard` is not installed" in line]
    assert {"A/A-100.onnx", "run_logs/training_status.json"} <= without
    assert not [name for name in without if "tfevents" in name]
    assert written(play.events)[REWARD] == [(100, 1.5)]
    assert len(play.summaries) == 1


def test_the_newest_checkpoints_are_here_under_mlagents_names(play: Play) -> None:
    play.save(100)
    play.sync()
    play.save(200)
    play.save(300)
    (play.events / "A-7.onnx").write_bytes(b"not from Ludus")

    play.sync()

    checkpoints = {"A/A-200.onnx", "A/A-200.pt", "A/A-300.onnx", "A/A-300.pt", "A/checkpoint.pt", "A.onnx"}
    logs = {"run_logs/ludus.json", "run_logs/training_status.json"}
    assert play.files() == {*checkpoints, *logs, "A/A-7.onnx", "configuration.yaml"}, "keep_checkpoints is 2"
    assert (play.folder.path / "A.onnx").read_bytes() == FILES["A.onnx"]
    with zipfile.ZipFile(play.events / "checkpoint.pt") as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {
            name: FILES[name] for name in ("state.safetensors", "state.json")
        }
    exported = [line.rpartition("/")[2] for line in play.lines if line.startswith("[INFO] Exported ")]
    assert exported == ["A-100.onnx", "A-200.onnx", "A-300.onnx"]


@pytest.mark.parametrize("marked", [True, False], ids=["with its row", "a moment before its row"])
def test_a_checkpoint_that_retention_has_removed_meanwhile_is_left_out(play: Play, marked: bool) -> None:
    gone = play.save(100)
    kept = play.save(200)
    play.world.services.artifacts.delete(f"runs/{play.run.id}/1/checkpoints/100")
    if marked:
        give_up(play.world.services.database, gone)

    play.sync()

    assert kept != gone
    assert {name for name in play.files() if name.startswith("A/")} == {"A/A-200.onnx", "A/A-200.pt", "A/checkpoint.pt"}


def test_the_end_brings_the_final_checkpoint_and_the_timers(play: Play) -> None:
    play.summary(100, {REWARD: 1.5, STD: 0.5})
    play.save(100)
    play.trainer.ledger.move(RunState.STOPPING)
    play.trainer.finish(reason="completed", detail="done")

    with play.mirror() as mirror:
        ended = mirror.finish()

    assert ended.state == "SUCCEEDED"
    status = json.loads((play.folder.logs / "training_status.json").read_text())
    timers = json.loads((play.folder.logs / "timers.json").read_text())
    base = play.folder.path.as_posix()
    assert status["A"]["final_checkpoint"]["file_path"] == f"{base}/A.onnx"
    assert status["A"]["final_checkpoint"]["auxillary_file_paths"] == [f"{base}/A/A-100.pt"]
    assert timers["gauges"]["A.Environment.CumulativeReward.mean"] == {"value": 1.5, "min": 1.5, "max": 1.5, "count": 1}
    assert play.lines[-1] == f"[INFO] Copied {base}/A/A-100.onnx to {base}/A.onnx."


def test_behaviors_introduce_themselves_with_their_hyperparameters(play: Play) -> None:
    client = "Ludus/0.1.0 Unity ML-Agents 3.0.0 (API 1.5.0)"
    play.trainer.ledger.simulators.connected("one", number=0, collector=0, client=client)
    admitted = {"behavior": "A", "name": "A?team=0"}
    play.trainer.ledger.event("behavior_admitted", "Behavior A trains", level="info", data=admitted)
    play.summary(100, {REWARD: 1.5})

    play.sync()

    assert play.lines[:2] == [
        "[INFO] Connected to Unity environment with package version 3.0.0 and communication version 1.5.0",
        "[INFO] Connected new brain: A?team=0",
    ]
    (text,) = [line for line in play.lines if "Hyperparameters" in line]
    assert text.startswith("[INFO] Hyperparameters for behavior name A: \n\ttrainer_type:\tppo\n\thyperparameters:\t\n")
    (event,) = [
        each for each in events_in(play.events) if each.summary.value and each.summary.value[0].tensor.string_val
    ]
    assert event.summary.value[0].tag == "Hyperparameters/text_summary"
    assert event.summary.value[0].tensor.string_val[0].decode() == text.partition("\n")[2]


def test_lessons_are_told_in_ml_agents_words_and_stand_in_the_status(
    world: World, client: Client, tmp_path: Path
) -> None:
    criteria = {"behavior": "A", "threshold": 5}
    lessons = [{"name": "Low", "value": 1, "completion_criteria": criteria}, {"name": "High", "value": 2}]
    config = {**CONFIG, "environment_parameters": {"wall": {"curriculum": lessons}, "gravity": 9.5}}
    play = Play(world, client, tmp_path, "lessons", config)
    line = "Parameter 'wall' is in lesson 'High' and has value 'Float: value=2.0'."
    play.sync()
    status = play.folder.logs / "training_status.json"
    assert json.loads(status.read_text())["wall"] == {"lesson_num": 0}
    parsed = [Lesson.model_validate(each) for each in lessons]
    moved = [status_of("wall", parsed, 1, 2.0), status_of("gravity", [Lesson(name="gravity", value=9.5)], 0, 9.5)]

    play.trainer.ledger.parameters.publish([asdict(each) for each in moved], 0)
    play.trainer.ledger.event("lesson_changed", f"{line} And more.", data={"log_line": line})
    play.sync()

    assert play.lines == [f"[INFO] {line}"]
    written_down = json.loads(status.read_text())
    assert (written_down["wall"], written_down["gravity"]) == ({"lesson_num": 1}, {"lesson_num": 0})


def test_every_team_and_every_parameter_is_told_at_the_start_in_ml_agents_words(play: Play) -> None:
    lines = [
        "Parameter 'wall' is in lesson 'Low' and has value 'Float: value=1.0'.",
        "Parameter 'gravity' is in lesson 'gravity' and has value 'Uniform sampler: min=0.0, max=1.0'.",
    ]
    team = {"behavior": "A", "team": 1, "name": "A?team=1"}
    play.trainer.ledger.event("behavior_admitted", "A trains", data={"behavior": "A", "name": "A?team=0"})
    play.trainer.ledger.event("team_announced", "Simulators bring team 1 of A, too", data=team)
    play.trainer.ledger.event("lessons_began", " ".join(lines), data={"log_lines": lines})

    play.sync()
    play.sync()

    told = [line for line in play.lines if "brain" in line or "Parameter" in line]
    assert told == [
        "[INFO] Connected new brain: A?team=0",
        "[INFO] Connected new brain: A?team=1",
        f"[INFO] {lines[0]}",
        f"[INFO] {lines[1]}",
    ]


def test_turns_of_teams_are_told_in_ml_agents_words(play: Play) -> None:
    line = "Learning team 1 swapped on step 301"
    play.trainer.ledger.event("self_play_turn_began", "Team 0 learns", data={"team": 0, "behaviors": ["A"]})
    swapped = {"team": 1, "behaviors": ["A"], "step": 301, "log_line": line}
    play.trainer.ledger.event("self_play_turn_began", "Team 1 learns", data=swapped)

    play.sync()

    assert [each for each in play.lines if "team" in each.lower()] == [f"[INFO] {line}"]


def test_the_status_has_the_present_elo_not_the_mean_of_the_newest_summary(play: Play) -> None:
    status = play.folder.logs / "training_status.json"
    play.trainer.ledger.self_play(0, {"A": 1200.5})
    play.save(50)
    play.sync()
    assert json.loads(status.read_text())["A"]["elo"] == 1200.5, "there is no summary yet"
    play.summary(100, {REWARD: 1.0, "Self-play/ELO": 1201.0})
    play.trainer.ledger.self_play(1, {"A": 1203.25})

    play.sync()

    assert json.loads(status.read_text())["A"]["elo"] == 1203.25


def test_the_configuration_is_there_from_the_beginning(play: Play) -> None:
    play.sync()

    written_down = yaml.safe_load((play.folder.path / "configuration.yaml").read_text())

    assert written_down["behaviors"]["A"]["max_steps"] == 1000
    assert list(written_down["behaviors"]["A"])[:3] == ["trainer_type", "hyperparameters", "checkpoint_interval"]
