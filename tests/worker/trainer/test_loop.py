"""The trainer's loop: what it can't give, runs with nothing left to learn, divergence, its log, several learners."""

import re
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import structlog
import torch
import yaml

from ludus.protocol.spec import BehaviorSpec
from ludus.sdk import SimulatorError, StepBuilder, connect
from tests.ports import free_port
from tests.worker.rollouts import make_spec
from tests.worker.trainer.attempts import Listener
from tests.worker.trainer.conftest import StartTrainer, TrainAlone, points_of
from tests.worker.trainer.differences import differences
from tests.worker.trainer.supervisor_port import Supervisor
from tests.worker.trainer.test___main__ import NETWORK, HideAndSeek
from tests.worker.trainer.test_demonstrated import Echo, document, show
from worker.trainer import checkpoint
from worker.trainer.checkpoint import load, save
from worker.trainer.loop import Trainer
from worker.trainer.messages import CheckpointWritten, Finished, Job

PINK = {"trainer_type": "sac", "hyperparameters": {"exploration_noise": "pink"}}


def make_trainer(supervisor: Supervisor, folder: Path, behavior: dict[str, Any], **torch_settings: Any) -> Trainer:
    config = {"behaviors": {"Echo": behavior}, "torch_settings": torch_settings}
    return Trainer(Job(run_id="run", attempt=1, config=config, seed=1, scratch=str(folder)), supervisor, [])


@pytest.mark.parametrize("bf16", [True, False])
def test_bf16_on_a_cpu_is_said_to_have_no_effect(tmp_path: Path, *, bf16: bool) -> None:
    clone = {"trainer_type": "clone", "demo_path": show(tmp_path / "shown.npz")}
    supervisor = Supervisor(cancels=True)

    make_trainer(supervisor, tmp_path, clone, device="cpu", bf16=bf16).run()

    event = supervisor.events.get("bf16_not_used")
    assert (event is not None) == bf16
    assert event is None or event.message.startswith("torch_settings.bf16 has no effect on cpu")


@pytest.mark.parametrize(
    ("behavior", "spec", "told"),
    [
        (PINK, make_spec(branches=(3,)), True),
        (PINK, make_spec(branches=(3,), continuous=1), False),
        ({"trainer_type": "sac"}, make_spec(branches=(3,)), False),
    ],
    ids=["in vain", "hybrid", "white"],
)
def test_pink_noise_without_continuous_actions_is_said_to_have_no_effect(
    tmp_path: Path, behavior: dict[str, Any], spec: BehaviorSpec, *, told: bool
) -> None:
    supervisor = Supervisor(cancels=True)
    trainer = make_trainer(supervisor, tmp_path, behavior, device="cpu")

    trainer.registry.register(BehaviorSpec("Echo", spec.observations, spec.actions))

    event = supervisor.events.get("exploration_noise_not_used")
    assert (event is not None) == told
    assert event is None or event.message == (
        "behaviors.Echo.hyperparameters.exploration_noise: pink has no effect, since Echo has no continuous actions; "
        "remove it"
    )
    assert "behavior_admitted" in supervisor.events
    trainer.attempt.pool.close("collector_closing", "the test is over", rejoin=False)


@pytest.mark.parametrize(("saves", "loads", "told"), [(True, True, False), (False, True, True), (True, False, True)])
def test_a_sac_says_that_its_replay_buffer_was_saved_and_resumed_without_it_in_ml_agents_words(
    tmp_path: Path, saves: bool, loads: bool, told: bool
) -> None:
    spec = make_spec(branches=(3,))
    spec = BehaviorSpec("Echo", spec.observations, spec.actions)

    def section(keep: bool) -> dict[str, Any]:
        return {"trainer_type": "sac", "hyperparameters": {"batch_size": 8, "save_replay_buffer": keep}}

    first = make_trainer(Supervisor(cancels=True), tmp_path / "first", section(saves), device="cpu")
    first.registry.register(spec)
    with structlog.testing.capture_logs() as logged:
        checkpoint = first.checkpoints.write("requested")
    counts = [(line["behavior"], line["experiences"]) for line in logged if line["event"] == "replay_buffer_saved"]
    assert counts == ([("Echo", 0)] if saves else [])
    first.attempt.pool.close("collector_closing", "the test is over", rejoin=False)

    supervisor = Supervisor(cancels=True)
    config = {"behaviors": {"Echo": section(loads)}, "torch_settings": {"device": "cpu"}}
    job = Job(run_id="run", attempt=2, config=config, seed=1, scratch=str(tmp_path), resume_from=checkpoint)
    again = Trainer(job, supervisor, [])
    again.registry.register(spec)
    again.attempt.pool.close("collector_closing", "the test is over", rejoin=False)

    event = supervisor.events.get("replay_buffer_not_loaded")
    assert (event is not None) == told
    if event is not None:
        assert event.level == "warning"
        assert "Replay buffer was unable to load, starting from scratch." in event.message
        assert "behaviors.Echo.hyperparameters.save_replay_buffer" in event.message
        assert ("save_replay_buffer is false" in event.message) == (not loads)
    loaded = supervisor.events.get("replay_buffer_loaded")
    assert (loaded is None) == told
    assert loaded is None or loaded.message == "Echo: Replay buffer loaded; it has 0 experiences"


MAX_STEPS = 64
ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {"trainer_type": "ppo"},
    "sac": {"trainer_type": "sac", "hyperparameters": {"batch_size": 8, "buffer_size": 64}},
    "poca": {"trainer_type": "poca"},
    "self-play": {"trainer_type": "ppo", "self_play": {"save_steps": 16, "team_change": 32, "swap_steps": 16}},
}


def section(kind: str = "ppo", **changed: Any) -> dict[str, Any]:
    network = {"hidden_units": 8, "num_layers": 1}
    return {"network_settings": network, "max_steps": MAX_STEPS, **ALGORITHMS[kind], **changed}


def make_job(folder: Path, behaviors: dict[str, Any], resume_from: Path | None = None, **sections: Any) -> Job:
    config = {
        "behaviors": behaviors,
        "torch_settings": {"device": "cpu"},
        "simulators": {"startup_grace_seconds": 0.3},
        **sections,
    }
    attempt, source = (1, None) if resume_from is None else (2, str(resume_from))
    return Job(run_id="run", attempt=attempt, config=config, seed=1, scratch=str(folder), resume_from=source)


def spec_of(name: str) -> BehaviorSpec:
    spec = make_spec(branches=(3,))
    return BehaviorSpec(name, spec.observations, spec.actions)


def learned(folder: Path, sections: dict[str, dict[str, Any]], steps: dict[str, int]) -> Path:
    """Write a checkpoint of behaviors that have learned so many steps; return its folder."""
    trainer = Trainer(make_job(folder / "first", sections), Supervisor(), [])
    for name, step in steps.items():
        trainer.registry.register(spec_of(f"{name}?team=1"))
        trainer.attempt.learners[name].progress.step = step  # type: ignore[attr-defined]  # of a BehaviorLearner
    checkpoint = folder / "checkpoint"
    checkpoint.mkdir()
    save(checkpoint, trainer.checkpoints.state())
    trainer.attempt.pool.close("collector_closing", "the test is over", rejoin=False)
    return checkpoint


def end_of(job: Job) -> tuple[Finished, Listener]:
    """Run an attempt to which no simulator comes. It pauses if it waits for one."""
    listener = Listener()
    return Trainer(job, listener, []).run(), listener


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_a_run_that_has_learned_everything_ends_without_a_simulator_and_with_its_model(
    tmp_path: Path, kind: str
) -> None:
    sections = {"Walker": section(kind)}
    checkpoint = learned(tmp_path, sections, {"Walker": MAX_STEPS})

    finished, listener = end_of(make_job(tmp_path / "second", sections, checkpoint))

    assert (finished.outcome, finished.reason) == ("succeeded", "completed"), finished
    (written,) = [message for message in listener.told if isinstance(message, CheckpointWritten)]
    assert (written.reason, written.steps, list(written.models)) == ("final", {"Walker": MAX_STEPS}, ["Walker.onnx"])
    assert differences(load(checkpoint), load(Path(written.folder))) == []


def test_a_run_with_two_behaviors_ends_without_a_simulator_and_with_both_models(tmp_path: Path) -> None:
    sections = {"Walker": section(), "Runner": section("sac")}
    checkpoint = learned(tmp_path, sections, {"Walker": MAX_STEPS, "Runner": MAX_STEPS + 3})

    finished, listener = end_of(make_job(tmp_path / "second", sections, checkpoint))

    assert finished.outcome == "succeeded", finished
    (written,) = [message for message in listener.told if isinstance(message, CheckpointWritten)]
    assert sorted(written.models) == ["Runner.onnx", "Walker.onnx"]


@pytest.mark.parametrize(
    ("steps", "sections"),
    [
        ({"Walker": MAX_STEPS, "Runner": 32}, {"Walker": section(), "Runner": section()}),
        ({"Walker": MAX_STEPS}, {"Walker": section(), "Runner": section()}),
    ],
    ids=["one is half way", "one has not begun"],
)
def test_a_run_with_a_behavior_that_is_not_done_waits_for_simulators(
    tmp_path: Path, steps: dict[str, int], sections: dict[str, dict[str, Any]]
) -> None:
    finished, _ = end_of(make_job(tmp_path / "second", sections, learned(tmp_path, sections, steps)))

    assert (finished.outcome, finished.reason) == ("paused", "simulators_lost")


def test_a_behavior_of_default_settings_that_is_half_way_is_waited_for_too(tmp_path: Path) -> None:
    sections = {"Walker": section(), "Runner": section()}
    checkpoint = learned(tmp_path, sections, {"Walker": MAX_STEPS, "Runner": 32})
    job = make_job(tmp_path / "second", {"Walker": section()}, checkpoint, default_settings=section())

    finished, _ = end_of(job)

    assert (finished.outcome, finished.reason) == ("paused", "simulators_lost")


def test_a_behavior_that_the_configuration_has_no_more_is_not_waited_for(tmp_path: Path) -> None:
    sections = {"Walker": section(), "Runner": section()}
    checkpoint = learned(tmp_path, sections, {"Walker": MAX_STEPS, "Runner": 32})

    finished, _ = end_of(make_job(tmp_path / "second", {"Walker": section()}, checkpoint))

    assert finished.outcome == "succeeded", finished


def test_a_run_goes_on_when_its_max_steps_was_raised(tmp_path: Path) -> None:
    checkpoint = learned(tmp_path, {"Walker": section()}, {"Walker": MAX_STEPS})

    finished, _ = end_of(make_job(tmp_path / "second", {"Walker": section(max_steps=2 * MAX_STEPS)}, checkpoint))

    assert (finished.outcome, finished.reason) == ("paused", "simulators_lost")


def test_a_run_that_plays_without_learning_waits_for_simulators_though_all_is_learned(tmp_path: Path) -> None:
    checkpoint = learned(tmp_path, {"Walker": section()}, {"Walker": MAX_STEPS})
    job = make_job(tmp_path / "second", {"Walker": section()}, checkpoint, checkpoint_settings={"inference": True})

    finished, _ = end_of(job)

    assert (finished.outcome, finished.reason) == ("paused", "simulators_lost")


OVERPAID_NETWORK = {"hidden_units": 16, "num_layers": 1}


class Overpaid(Echo):
    """Pays as `Echo` for 200 decisions, then 1e30: the squared error of its critic is more than float32 holds."""

    asked = 0

    def _ask(self, builder: StepBuilder, reward: float) -> None:
        self.asked += 1
        super()._ask(builder, reward if self.asked < 200 else 1e30)


def of_type(messages: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [message for message in messages if message["type"] == kind]


def rollbacks(messages: list[dict[str, Any]]) -> list[str]:
    """What is said of each update that was taken back."""
    return [event["message"] for event in of_type(messages, "event") if event["name"] == "update_rolled_back"]


def tensors_of(state: Any) -> list[torch.Tensor]:
    if isinstance(state, torch.Tensor):
        return [state]
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else ()
    return [tensor for part in parts for tensor in tensors_of(part)]


def test_rewards_that_no_critic_can_learn_fail_the_run_and_leave_what_was_learnt_before(start: StartTrainer) -> None:
    ppo = {"hyperparameters": {"batch_size": 32, "buffer_size": 64}, "network_settings": OVERPAID_NETWORK}
    trainer = start({"seed": 1, "behaviors": {"Echo": {**ppo, "max_steps": 10_000, "time_horizon": 16}}})

    messages = trainer.played_by(Overpaid())

    assert (messages[-1]["outcome"], messages[-1]["reason"]) == ("failed", "diverged")
    told = rollbacks(messages)
    assert len(told) == 3
    for sentence in (*told, messages[-1]["detail"]):
        assert sentence.startswith("Echo: value loss is not finite in minibatch 0; the update was taken back")
    (written,) = of_type(messages, "checkpoint_written")
    assert written["reason"] == "final"
    assert (Path(written["folder"]) / "Echo.onnx").exists()
    state = checkpoint.load(Path(written["folder"]))["Echo"]
    assert state["algorithm"]["version"] == 3, "200 decisions are three rounds of 64, and all were learned from"
    assert all(tensor.isfinite().all() for tensor in tensors_of(state))


def test_a_clone_that_learns_too_fast_fails_and_leaves_its_weights_from_before(
    start: StartTrainer, tmp_path: Path
) -> None:
    fast = {"batch_size": 32, "learning_rate": 1.0}
    network = {"hidden_units": 64, "num_layers": 6}
    shown = show(tmp_path / "expert.npz", steps=256)
    messages = list(start(document(shown, hyperparameters=fast, network_settings=network)).reports())

    assert (messages[-1]["outcome"], messages[-1]["reason"]) == ("failed", "diverged")
    told = rollbacks(messages)
    assert len(told) == 3
    assert all("Echo: Losses/Pretraining Loss exploded from 0." in sentence for sentence in told)
    assert len(set(told)) == 3, "each attempt meets other minibatches"
    (written,) = of_type(messages, "checkpoint_written")
    assert written["steps"] == {"Echo": 0}
    assert (Path(written["folder"]) / "Echo.onnx").exists()
    state = checkpoint.load(Path(written["folder"]))["Echo"]
    assert all((tensor.abs() < 10.0).all() for tensor in tensors_of(state["algorithm"]["model"]))


LogOf = Callable[[dict[str, Any]], list[tuple[str, str, str]]]

PPO_BEHAVIOR = {"hyperparameters": {"batch_size": 32, "buffer_size": 64}, "max_steps": 256, "checkpoint_interval": 128}
SAC_BEHAVIOR = {"trainer_type": "sac", "hyperparameters": {"batch_size": 16, "steps_per_update": 64}, "max_steps": 256}


@pytest.fixture
def log_of(tmp_path: Path, capfd: pytest.CaptureFixture[str], alone: TrainAlone) -> LogOf:
    """Train `Echo` alone; return level, event and the rest of each line of the trainer's log."""

    def train(document: dict[str, Any]) -> list[tuple[str, str, str]]:
        config = tmp_path / "config.yaml"
        config.write_text(yaml.safe_dump(document))
        port = free_port()

        def play() -> None:
            with suppress(SimulatorError):
                connect(Echo(), run="alone", server=f"127.0.0.1:{port}", connect_timeout_seconds=60.0)

        player = threading.Thread(target=play, daemon=True)
        player.start()
        assert alone(str(config), "--scratch", str(tmp_path / "scratch"), "--port", str(port)) == 0
        player.join(60)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", capfd.readouterr().err)
        found = re.findall(r"^\S+ \[(\w+) *\] (\w+) +(.*process=trainer.*)$", plain, re.MULTILINE)
        return [(level, event, rest) for level, event, rest in found]

    return train


@pytest.mark.parametrize(
    ("section", "metric"),
    [(PPO_BEHAVIOR, "Losses/Policy Loss"), pytest.param(SAC_BEHAVIOR, "Losses/Q1 Loss", marks=pytest.mark.long)],
)
def test_every_step_of_the_trainer_is_logged(log_of: LogOf, section: dict[str, Any], metric: str) -> None:
    lines = log_of({"seed": 1, "debug": True, "behaviors": {"Echo": section}})

    debug = [(event, rest) for level, event, rest in lines if level == "debug"]
    count = Counter(event for event, _ in debug)
    assert count["round_granted"] == count["round_gathered"] == count["update_made"] == 4
    assert count["policy_published"] == 5, "the first one, and one for each update"
    assert count["checkpoint_begun"] == count["checkpoint_written"] >= 1
    updates = [rest for event, rest in debug if event == "update_made"]
    assert [re.findall(r"\bstep=(\d+)", rest) for rest in updates] == [["64"], ["128"], ["192"], ["256"]]
    assert all(f"'{metric}': " in rest and "seconds=" in rest for rest in updates)
    events = " ".join(rest for event, rest in debug if event == "collector_event")
    for kind in ("SimulatorConnected", "BehaviorAnnounced", "SegmentsDelivered", "RoundCollected", "EpisodesEnded"):
        assert f"kind={kind} " in events
    assert " length=[5" in events, "columns that are short are logged as they are"


def test_without_debug_no_step_is_logged(log_of: LogOf) -> None:
    lines = log_of({"seed": 1, "behaviors": {"Echo": PPO_BEHAVIOR}})

    assert "behavior_admitted" in {event for _, event, _ in lines}
    assert "debug" not in {level for level, _, _ in lines}


PPO = {"batch_size": 32, "num_epoch": 1, "buffer_size": 64}
SAC = {"batch_size": 16, "buffer_size": 256, "steps_per_update": 8}


def processes_of(folder: Path) -> list[psutil.Process]:
    """The processes that were started for a trainer whose scratch folder this is."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(word.startswith(str(folder)) for word in process.cmdline()):
                found.append(process)
    return found


@pytest.mark.long
@pytest.mark.timeout(240)
def test_two_ranks_train_ppo_and_sac_together_and_leave_nothing_behind(start: StartTrainer, tmp_path: Path) -> None:
    document = {
        "seed": 1,
        "torch_settings": {"device": "cpu", "processes": 2},
        "behaviors": {
            "Hider": {"hyperparameters": PPO, "network_settings": NETWORK, "max_steps": 192, "summary_freq": 64},
            "Seeker": {
                "trainer_type": "sac",
                "hyperparameters": SAC,
                "network_settings": NETWORK,
                "max_steps": 96,
                "summary_freq": 32,
            },
        },
    }
    helpers: set[int] = set()

    def look(message: dict[str, Any]) -> None:
        if message["type"] == "checkpoint_written":
            helpers.update(process.pid for process in processes_of(tmp_path / "scratch" / "ranks-"))

    messages = start(document).played_by(HideAndSeek(), look)

    events = {message["name"]: message for message in messages if message["type"] == "event"}
    assert messages[-1]["outcome"] == "succeeded", messages[-1]
    assert "processes_not_used" not in events
    assert points_of(messages, "Losses/Policy Loss")
    assert points_of(messages, "Losses/Q1 Loss")
    assert len(helpers) == 1, "one process beside the trainer"
    assert not processes_of(tmp_path / "scratch" / "ranks-")
    assert min(points_of(messages, "Ranks/Exchanged Bytes").values()) > 0


@pytest.mark.long
@pytest.mark.timeout(240)
def test_an_attempt_that_loses_a_rank_says_which_and_another_number_of_ranks_goes_on_from_its_checkpoint(
    start: StartTrainer, tmp_path: Path
) -> None:
    learning = {"hyperparameters": PPO, "network_settings": NETWORK, "summary_freq": 64}
    behaviors = {"Hider": {**learning, "checkpoint_interval": 256}, "Seeker": {**learning, "trainer_type": "sac"}}
    behaviors["Seeker"]["hyperparameters"] = SAC
    document = {"seed": 1, "torch_settings": {"device": "cpu", "processes": 2}, "behaviors": behaviors}
    helpers: list[psutil.Process] = []

    def kill(message: dict[str, Any]) -> None:
        if message["type"] == "checkpoint_written" and not helpers:
            helpers.extend(processes_of(tmp_path / "scratch" / "ranks-"))
            for helper in helpers:
                helper.kill()

    messages = start(document).played_by(HideAndSeek(), kill)

    assert len(helpers) == 1
    assert messages[-1]["outcome"] == "lost"
    assert messages[-1]["detail"] == "rank 1 ended with signal SIGKILL; the run goes on from its last checkpoint"
    assert not processes_of(tmp_path / "scratch" / "ranks-")
    (written, *_) = [message for message in messages if message["type"] == "checkpoint_written"]
    for section in behaviors.values():
        section["max_steps"] = written["step"] + 256
    supervisor = Supervisor(HideAndSeek())
    job = Job(
        run_id="run",
        attempt=2,
        config={**document, "torch_settings": {"device": "cpu"}},
        seed=1,
        resume_from=written["folder"],
        scratch=str(tmp_path / "second"),
    )

    assert Trainer(job, supervisor, []).run().outcome == "succeeded"
    supervisor.join()


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_rank_without_a_simulator_is_told_of_and_pauses_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.trainer.attempt.UNEVEN_SECONDS", 1.0)
    learning = {"hyperparameters": PPO, "network_settings": NETWORK}
    config = {
        "torch_settings": {"device": "cpu", "processes": 2},
        "simulators": {"startup_grace_seconds": 5.0},
        "behaviors": {"Hider": learning, "Seeker": learning},
    }
    supervisor = Supervisor(HideAndSeek())

    job = Job(run_id="run", attempt=1, config=config, seed=1, scratch=str(tmp_path))
    finished = Trainer(job, supervisor, []).run()

    assert (finished.outcome, finished.reason) == ("paused", "simulators_lost")
    assert finished.detail.startswith("torch_settings.processes is 2, but 1 simulators play, and 1 ranks have none")
    assert supervisor.events["rank_without_simulator"].data == {"ranks": [1]}
