"""What a configuration asks for and a trainer can't give: it says so, or does not begin."""

from pathlib import Path
from typing import Any

import pytest
import structlog

from ludus.protocol.spec import BehaviorSpec
from tests.worker.rollouts import make_spec
from tests.worker.trainer.supervisor_port import Supervisor
from tests.worker.trainer.test_clone import show
from worker.trainer.loop import Trainer
from worker.trainer.messages import Job

PINK = {"trainer_type": "sac", "hyperparameters": {"exploration_noise": "pink"}}


def make_trainer(supervisor: Supervisor, folder: Path, behavior: dict[str, Any], **torch_settings: Any) -> Trainer:
    config = {"behaviors": {"Echo": behavior}, "torch_settings": torch_settings}
    return Trainer(Job(run_id="run", attempt=1, config=config, seed=1, scratch=str(folder)), supervisor, [])


@pytest.mark.parametrize("bf16", [True, False])
def test_bf16_on_a_cpu_is_said_to_have_no_effect(tmp_path: Path, *, bf16: bool) -> None:
    clone = {"trainer_type": "clone", "demo_path": show(tmp_path / "shown.npz")}
    supervisor = Supervisor(cancels=True)

    make_trainer(supervisor, tmp_path, clone, device="cpu", bf16=bf16).run()

    event = supervisor.events().get("bf16_not_used")
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

    trainer._registry.register(BehaviorSpec("Echo", spec.observations, spec.actions))

    event = supervisor.events().get("exploration_noise_not_used")
    assert (event is not None) == told
    assert event is None or event.message == (
        "behaviors.Echo.hyperparameters.exploration_noise: pink has no effect, since Echo has no continuous actions; "
        "remove it"
    )
    assert "behavior_admitted" in supervisor.events()
    trainer._attempt.pool.close("collector_closing", "the test is over", rejoin=False)


@pytest.mark.parametrize(
    ("saves", "loads", "told"),
    [(True, True, False), (False, True, True), (True, False, True), (False, False, True)],
)
def test_a_sac_says_that_its_replay_buffer_was_saved_and_resumed_without_it_in_ml_agents_words(
    tmp_path: Path, saves: bool, loads: bool, told: bool
) -> None:
    spec = make_spec(branches=(3,))
    spec = BehaviorSpec("Echo", spec.observations, spec.actions)

    def section(keep: bool) -> dict[str, Any]:
        return {"trainer_type": "sac", "hyperparameters": {"batch_size": 8, "save_replay_buffer": keep}}

    first = make_trainer(Supervisor(cancels=True), tmp_path / "first", section(saves), device="cpu")
    first._registry.register(spec)
    with structlog.testing.capture_logs() as logged:
        checkpoint = first._checkpoints.write("requested")
    counts = [(line["behavior"], line["experiences"]) for line in logged if line["event"] == "replay_buffer_saved"]
    assert counts == ([("Echo", 0)] if saves else [])
    first._attempt.pool.close("collector_closing", "the test is over", rejoin=False)

    supervisor = Supervisor(cancels=True)
    config = {"behaviors": {"Echo": section(loads)}, "torch_settings": {"device": "cpu"}}
    job = Job(run_id="run", attempt=2, config=config, seed=1, scratch=str(tmp_path), resume_from=checkpoint)
    again = Trainer(job, supervisor, [])
    again._registry.register(spec)
    again._attempt.pool.close("collector_closing", "the test is over", rejoin=False)

    event = supervisor.events().get("replay_buffer_not_loaded")
    assert (event is not None) == told
    if event is not None:
        assert event.level == "warning"
        assert "Replay buffer was unable to load, starting from scratch." in event.message
        assert "behaviors.Echo.hyperparameters.save_replay_buffer" in event.message
        assert ("save_replay_buffer is false" in event.message) == (not loads and saves)
    loaded = supervisor.events().get("replay_buffer_loaded")
    assert (loaded is None) == told
    assert loaded is None or loaded.message == "Echo: Replay buffer loaded; it has 0 experiences"


def test_a_sac_that_begins_misses_no_replay_buffer(tmp_path: Path) -> None:
    supervisor = Supervisor(cancels=True)
    trainer = make_trainer(supervisor, tmp_path, {"trainer_type": "sac"}, device="cpu")

    trainer._registry.register(
        BehaviorSpec("Echo", make_spec(branches=(3,)).observations, make_spec(branches=(3,)).actions)
    )
    trainer._attempt.pool.close("collector_closing", "the test is over", rejoin=False)

    assert "replay_buffer_not_loaded" not in supervisor.events()
