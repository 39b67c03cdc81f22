"""Runs of `ludus learn` on a server whose trainer does as told."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from ludus.cli.learn_options import LearnError
from ludus.cli.learn_run import PLACES, recordings, server_document
from ludus.client import Client
from ludus.demonstrations import write
from ludus.mlagents.results.folder import pack
from ludus.schemas.states import RunState, StopReason
from tests.ludus.cli.conftest import DOCUMENT, Invoke, printed
from tests.ludus.cli.test_learn_options import told
from tests.ludus.demonstrations.shown import make_demonstration
from tests.ludus.mlagents.results.reading import written
from tests.server.app.world import Trainer, World
from tests.waiting import eventually

REWARD, SPEED = "Environment/Cumulative Reward", "Performance/Agent Steps per Second"
FILES = {"CartPole.onnx": b"a model", "state.safetensors": b"weights", "state.json": b"{}"}


@contextmanager
def trained(world: World, work: Callable[[Trainer], None]) -> Iterator[None]:
    """Have a trainer work on the next run that is created."""
    failures: list[BaseException] = []

    def wait_and_work() -> None:
        known = {run["id"] for run in world.http.get("/v1/runs").json()["runs"]}
        begun.set()
        try:
            new = eventually(lambda: {run["id"] for run in world.http.get("/v1/runs").json()["runs"]} - known)
            work(world.claim(new.pop()).start())
        except BaseException as error:  # noqa: BLE001  told to the test below
            failures.append(error)

    begun = threading.Event()
    thread = threading.Thread(target=wait_and_work, daemon=True)
    thread.start()
    assert begun.wait(60)
    yield
    thread.join(60)
    assert not failures, failures
    assert not thread.is_alive(), "the trainer has not finished"


def test_a_demo_path_is_a_file_or_all_recordings_of_a_folder(tmp_path: Path) -> None:
    for name in ("b.demo", "a.demo", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "empty").mkdir()

    assert recordings(tmp_path) == [tmp_path / "a.demo", tmp_path / "b.demo"]
    assert recordings(tmp_path / "b.demo") == [tmp_path / "b.demo"]
    for missing in ("empty", "nothing.demo", "notes.txt"):
        with pytest.raises(LearnError):
            recordings(tmp_path / missing)


def work(trainer: Trainer, folder: Path, state: RunState = RunState.SUCCEEDED, step: int = 100) -> None:
    """Train: one summary, one checkpoint, and the end."""
    trainer.measure(REWARD, [12.5], first=step)
    trainer.measure(SPEED, [900.0], first=step)
    scratch = folder / f"scratch-{trainer.run_id}-{trainer.attempt}"
    scratch.mkdir()
    trainer.save(step, FILES, scratch)
    trainer.ledger.move(RunState.STOPPING)
    trainer.finish(state, reason="completed", detail="every behavior reached its max_steps")


def test_a_run_is_created_followed_and_mirrored(folder: Path, cli: Invoke, world: World) -> None:
    with trained(world, lambda trainer: work(trainer, folder)):
        result = cli("learn", "ppo.yaml", "--remote-env", "--run-id", "first", "--num-areas", "2", "--width", "100")

    assert result.exit_code == 0, result.output
    run = world.http.get("/v1/runs/first").json()
    assert (run["seed"], run["config"]["env_settings"]["num_areas"]) == (3, 2)
    assert run["config"]["engine_settings"]["width"] == 100
    lines = result.stdout.splitlines()
    assert any("CartPole. Step: 100. " in line and "Mean Reward: 12.500." in line for line in lines)
    assert "[INFO] Exported results/first/CartPole/CartPole-100.onnx" in lines
    assert "[INFO] Copied results/first/CartPole/CartPole-100.onnx to results/first/CartPole.onnx." in lines
    status = json.loads(Path("results/first/run_logs/training_status.json").read_text())
    assert status["CartPole"]["final_checkpoint"]["file_path"] == "results/first/CartPole.onnx"
    written = yaml.safe_load(Path("results/first/configuration.yaml").read_text())
    assert written["env_settings"]["seed"] == 3
    assert written["checkpoint_settings"]["run_id"] == "first"


def test_a_run_that_fails_exits_with_1_and_says_why(folder: Path, cli: Invoke, world: World) -> None:
    with trained(world, lambda trainer: work(trainer, folder, RunState.FAILED)):
        result = cli("learn", "ppo.yaml", "--remote-env", "--run-id", "fails")

    assert result.exit_code == 1
    assert "the run ended as FAILED" in result.stderr
    assert Path("results/fails/CartPole.onnx").exists(), "what was learned is here all the same"


@pytest.mark.long
def test_force_begins_anew_and_only_takes_away_what_was_written_before(folder: Path, cli: Invoke, world: World) -> None:
    with trained(world, lambda trainer: work(trainer, folder)):
        cli("learn", "ppo.yaml", "--remote-env", "--run-id", "forced")
    own = Path("results/forced/CartPole/my-notes.txt")
    own.write_text("keep me")

    with trained(world, lambda trainer: work(trainer, folder)):
        result = cli("learn", "ppo.yaml", "--remote-env", "--run-id", "forced", "--force")

    assert result.exit_code == 0, result.output
    assert written(Path("results/forced/CartPole"))[REWARD] == [(100, 12.5)], "of the second run alone"
    assert own.exists()


def copied_before(world: World, name: str) -> dict[str, Any]:
    """Create a run whose results an earlier command has copied to a folder of its name."""
    run = world.create(DOCUMENT | {"env_settings": {}}, name=name)
    logs = Path("results", name, "run_logs")
    logs.mkdir(parents=True)
    journal = {"version": 1, "run": run["id"], "server": world.server, "attempt": 1, "event": 0, "behaviors": {}}
    (logs / "ludus.json").write_text(json.dumps(journal))
    return run


def test_resume_goes_on_with_a_run_that_has_not_ended(folder: Path, cli: Invoke, world: World) -> None:
    run = copied_before(world, "resumed")
    trainer = world.claim(run["id"]).start()
    trainer.measure(REWARD, [1.0])

    def work_once_it_is_followed() -> None:
        eventually(lambda: "Resuming training" in printed())
        work(trainer, folder)

    thread = threading.Thread(target=work_once_it_is_followed)
    thread.start()

    result = cli("learn", "ppo.yaml", "--remote-env", "--run-id", "resumed", "--resume")

    thread.join()
    assert result.exit_code == 0, result.output
    assert "[INFO] Resuming from results/resumed." in result.stdout
    assert Path("results/resumed/CartPole/CartPole-100.onnx").exists()


@pytest.mark.long
def test_a_run_goes_on_where_an_ended_one_has_left_off_and_keeps_its_files(
    folder: Path, cli: Invoke, world: World
) -> None:
    with trained(world, lambda trainer: work(trainer, folder)):
        cli("learn", "ppo.yaml", "--remote-env", "--run-id", "ended")
    ended = world.http.get("/v1/runs/ended").json()["id"]
    (saved,) = world.http.get(f"/v1/runs/{ended}/checkpoints").json()["checkpoints"]

    with trained(world, lambda trainer: work(trainer, folder, step=200)):
        result = cli("learn", "ppo.yaml", "--remote-env", "--run-id", "ended", "--resume")

    assert result.exit_code == 0, result.output
    curve = cli("run", "series", "ended", "--metric", "reward", "--with-predecessors", "--csv", "-").stdout
    assert [line.split(",")[3:6:2] for line in curve.splitlines()[1:]] == [["100", "12.5"], ["200", "12.5"]]
    assert f"[INFO] Resuming training from step {saved['step']}." in result.stdout
    run = world.http.get("/v1/runs/ended").json()
    assert run["id"] != ended, "the newest one of the name"
    assert run["config"]["checkpoint_settings"]["resume_from"] == saved["id"]
    results = Path("results/ended")
    assert sorted(path.name for path in (results / "CartPole").glob("*.onnx")) == [
        "CartPole-100.onnx",
        "CartPole-200.onnx",
    ]
    assert [step for step, _ in written(results / "CartPole")[REWARD]] == [100, 200]
    status = json.loads((results / "run_logs" / "training_status.json").read_text())
    assert [each["steps"] for each in status["CartPole"]["checkpoints"]] == [100, 200]
    journal = json.loads((results / "run_logs" / "ludus.json").read_text())
    assert (journal["run"], journal["former"]) == (run["id"], [ended])


def test_an_ended_run_without_a_checkpoint_cannot_go_on(folder: Path, cli: Invoke, world: World) -> None:
    with trained(world, lambda trainer: trainer.finish(RunState.FAILED, reason="trainer_error")):
        cli("learn", "ppo.yaml", "--remote-env", "--run-id", "empty")

    result = cli("learn", "ppo.yaml", "--remote-env", "--run-id", "empty", "--resume")

    assert result.exit_code == 1
    assert "without a checkpoint to resume from; start again with --force" in result.stderr


def test_a_run_that_still_trains_is_not_played_without_learning(folder: Path, cli: Invoke, world: World) -> None:
    run = copied_before(world, "busy")

    result = cli("learn", "ppo.yaml", "--remote-env", "--run-id", "busy", "--resume", "--inference")

    assert result.exit_code == 1
    assert f"ludus run stop {run['id']}" in result.stderr


@pytest.mark.long
def test_after_playing_without_learning_a_run_goes_on_from_what_was_learnt_before(
    folder: Path, cli: Invoke, world: World
) -> None:
    def play(trainer: Trainer) -> None:
        trainer.measure(REWARD, [30.0, 40.0], first=200)
        trainer.measure(SPEED, [900.0, 900.0], first=200)
        trainer.finish(RunState.SUCCEEDED, reason="completed")

    arguments = ("learn", "ppo.yaml", "--remote-env", "--run-id", "played")
    with trained(world, lambda trainer: work(trainer, folder)):
        cli(*arguments)
    (saved,) = world.http.get("/v1/runs/played/checkpoints").json()["checkpoints"]
    with trained(world, play):
        shown = cli(*arguments, "--resume", "--inference")
    assert (shown.exit_code, ". Not Training." in shown.stdout) == (0, True), shown.output
    assert world.http.get("/v1/runs/played/checkpoints").json()["checkpoints"] == [saved], "the name is the trainer's"
    played = world.http.get("/v1/runs/played-inference").json()
    assert (played["continues"], played["config"]["checkpoint_settings"]["inference"]) == (None, True)
    first = world.http.get("/v1/runs/played").json()["id"]

    with trained(world, lambda trainer: work(trainer, folder, step=200)):
        result = cli(*arguments, "--resume")

    assert result.exit_code == 0, result.output
    run = world.http.get("/v1/runs/played").json()
    assert run["continues"] == first, "its curve goes on from that of the first"
    config = run["config"]["checkpoint_settings"]
    assert (config["resume_from"], config["inference"]) == (saved["id"], False)
    events = written(Path("results/played/CartPole"))[REWARD]
    assert events[-1] == (200, 12.5), "what was only played is taken back"
    assert sorted(path.name for path in Path("results/played/CartPole").glob("*.onnx")) == [
        "CartPole-100.onnx",
        "CartPole-200.onnx",
    ]


def test_networks_of_another_run_are_uploaded_and_named_by_their_id(folder: Path, cli: Invoke, world: World) -> None:
    (folder / "state.json").write_text(json.dumps({"state": {"CartPole": {}}}))
    (folder / "state.safetensors").write_bytes(b"weights")
    files = [folder / "state.safetensors", folder / "state.json"]
    pack(files, folder / "results" / "old" / "CartPole" / "checkpoint.pt")

    with trained(world, lambda trainer: work(trainer, folder)):
        result = cli("learn", "ppo.yaml", "--remote-env", "--run-id", "young", "--initialize-from", "old")

    assert result.exit_code == 0, result.output
    assert "[INFO] Initializing from results/old/CartPole/checkpoint.pt." in result.stdout
    named = world.http.get("/v1/runs/young").json()["config"]["behaviors"]["CartPole"]["initialize_from"]
    uploaded = world.http.get(f"/v1/checkpoints/{named}").json()
    assert (uploaded["format"], uploaded["modules"], uploaded["behavior"]) == ("ludus", ["CartPole"], "CartPole")


def test_a_beginning_that_is_no_checkpoint_is_refused_as_in_mlagents(folder: Path, cli: Invoke) -> None:
    behavior = {"init_path": "nowhere/checkpoint.pt"}
    (folder / "init.yaml").write_text(yaml.safe_dump({"behaviors": {"CartPole": behavior}}))

    result = cli("learn", "init.yaml", "--remote-env", "--run-id", "refused")

    assert result.exit_code == 1
    assert "Could not initialize from nowhere/checkpoint.pt." in result.stderr
    assert not (folder / "results" / "refused").exists()


def test_demonstrations_are_uploaded_and_named_by_their_ids(folder: Path, cli: Invoke, world: World) -> None:
    (folder / "demos").mkdir()
    for name in ("a.npz", "b.npz"):
        write(make_demonstration(), folder / "demos" / name)
    cloning = {"demo_path": "demos", "strength": 0.5}
    behavior = {"behavioral_cloning": cloning, "reward_signals": {"gail": {"demo_path": "demos/a.npz"}}}
    (folder / "bc.yaml").write_text(yaml.safe_dump({"behaviors": {"CartPole": behavior}}))

    with trained(world, lambda trainer: work(trainer, folder)):
        result = cli("learn", "bc.yaml", "--remote-env", "--run-id", "shown")

    assert result.exit_code == 0, result.output
    section = world.http.get("/v1/runs/shown").json()["config"]["behaviors"]["CartPole"]
    first, second = section["behavioral_cloning"]["demonstrations"]
    assert section["reward_signals"]["gail"]["demonstrations"] == [first], "a file is uploaded once"
    assert first != second
    kept = yaml.safe_load(Path("results/shown/configuration.yaml").read_text())["behaviors"]["CartPole"]
    assert kept["behavioral_cloning"]["demo_path"] == "demos"


HERE = {"collectors": {"local": 0, "edge": PLACES}}
"""Actions of a build of this machine are computed beside it."""


@pytest.mark.parametrize(
    ("typed", "simulators", "expected"),
    [
        (["--remote-env"], {}, {"startup_grace_seconds": None}),
        (["--remote-env"], {"startup_grace_seconds": 5}, {"startup_grace_seconds": 5}),
        ([], {}, {"startup_grace_seconds": None, **HERE}),
        (["--env", "game.x86_64"], {}, HERE),
    ],
)
def test_a_run_without_a_build_waits_for_play_without_limit_unless_the_file_says_for_how_long(
    folder: Path, typed: list[str], simulators: dict[str, Any], expected: dict[str, Any]
) -> None:
    settings = told(folder, *typed, document=DOCUMENT | {"simulators": simulators})

    with Client("http://127.0.0.1:9") as client:  # nothing is uploaded
        document = server_document(client, settings, print)

    assert document["simulators"] == expected


@pytest.mark.long
def test_a_paused_run_is_told_of_once_and_stayed_with(folder: Path, cli: Invoke, world: World) -> None:
    def pause(trainer: Trainer) -> None:
        trainer.finish(RunState.PAUSING, reason=StopReason.USER)
        trainer.finish(RunState.PAUSED, reason=StopReason.USER, detail="paused on request")
        time.sleep(1)  # allow: sleep, because a user is slow: the command looks ten times meanwhile
        world.http.post(f"/v1/runs/{trainer.run_id}:resume").raise_for_status()
        work(world.claim(trainer.run_id).start(), folder)

    with trained(world, pause):
        result = cli("learn", "ppo.yaml", "--remote-env", "--run-id", "paused")

    assert result.exit_code == 0, result.output
    assert result.stdout.count("is PAUSED (paused on request); `ludus run resume run_") == 1


@pytest.mark.long
def test_resume_wakes_a_run_that_is_paused(folder: Path, cli: Invoke, world: World) -> None:
    run = copied_before(world, "asleep")
    trainer = world.claim(run["id"]).start()
    trainer.finish(RunState.PAUSING, reason=StopReason.USER)
    trainer.finish(RunState.PAUSED, reason=StopReason.USER)

    def take() -> None:
        eventually(lambda: world.http.get(f"/v1/runs/{run['id']}").json()["state"] == "QUEUED")
        work(world.claim(run["id"]).start(), folder)

    thread = threading.Thread(target=take)
    thread.start()
    result = cli("learn", "ppo.yaml", "--remote-env", "--run-id", "asleep", "--resume")
    thread.join()

    assert result.exit_code == 0, result.output
