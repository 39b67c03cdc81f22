"""A trainer that begins with a checkpoint of ML-Agents: it learns on, or says what does not fit."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

from ludus.demonstrations import write
from ludus.protocol.spec import BehaviorSpec
from ludus.sdk import Actions, ResetInfo, Simulation, StepBuilder
from server.config.resolution import resolve
from tests.ludus.demonstrations.shown import make_demonstration
from tests.worker.mlagents.results import DEMONSTRATION, RESULTS, Result
from tests.worker.rollouts import make_spec
from tests.worker.trainer.conftest import StartTrainer
from worker.learning.build import Demonstrations, build_algorithm, build_demonstrated
from worker.trainer import checkpoint
from worker.trainer.initialization import InitializationError, Sources, initialize

RESULT = Result("ppo-lstm-curiosity-rnd-curriculum")


class Game(Simulation):
    """One agent that sees four random numbers and does something; episodes last eight steps."""

    def __init__(self, spec: BehaviorSpec) -> None:
        self.behaviors = (spec,)
        self._rng = np.random.default_rng(1)
        self._tick = 0

    def reset(self, builder: StepBuilder, start: ResetInfo) -> None:
        del start
        self._ask(builder)

    def step(self, builder: StepBuilder, actions: Actions) -> None:
        assert len(list(actions)) == 1
        self._tick += 1
        if self._tick % 8 == 0:
            builder.end_episode(agent=0, observation=self._see(), reward=1.0)
        self._ask(builder)

    def _ask(self, builder: StepBuilder) -> None:
        builder.request_decision(agent=0, observation=self._see(), reward=0.1)

    def _see(self) -> list[float]:
        return [float(number) for number in self._rng.normal(size=4)]


def train(start: StartTrainer, spec: BehaviorSpec, **changes: Any) -> list[dict[str, Any]]:
    """Train with a simulator to the end; return what was reported."""
    section = {**RESULT.section(), "init_path": str(RESULT.checkpoint), "max_steps": 256, **changes}
    return start({"seed": 1, "behaviors": {"A": section}}).played_by(Game(spec))


def test_it_learns_on_from_step_0_with_the_statistics_and_moments_of_the_checkpoint(
    start: StartTrainer, tmp_path: Path
) -> None:
    messages = train(start, RESULT.spec)

    assert messages[-1]["outcome"] == "succeeded", messages[-1]
    (began,) = [message for message in messages if message.get("name") == "behavior_initialized"]
    assert began["message"] == (
        f"Behavior A begins with checkpoint {RESULT.checkpoint}, which had learned for 720 steps; new are the "
        "optimizer of curiosity, the optimizer of rnd"
    )
    assert began["data"]["fresh"] == ["the optimizer of curiosity", "the optimizer of rnd"]
    written = [message for message in messages if message["type"] == "checkpoint_written"][-1]
    assert written["steps"] == {"A": 256}, "counted from 0"
    state = checkpoint.load(Path(written["folder"]))["A"]["algorithm"]
    assert float(state["model"]["actor.body.normalizer.count"]) == 721 + 256
    assert float(state["optimizer"]["steps"]) == 35 + 2 * 128 / 32
    model = onnxruntime.InferenceSession(Path(written["folder"]) / "A.onnx")
    assert [entry.name for entry in model.get_inputs()] == ["obs_0", "action_masks", "recurrent_in"]


@pytest.mark.long
def test_a_checkpoint_of_other_networks_fails_the_run_with_the_names(start: StartTrainer) -> None:
    spec = replace(RESULT.spec, actions=replace(RESULT.spec.actions, discrete_branches=(3, 4)))

    messages = train(start, spec)

    assert (messages[-1]["outcome"], messages[-1]["reason"]) == ("failed", "invalid_config")
    detail = messages[-1]["detail"]
    assert detail.startswith(f"the checkpoint {RESULT.checkpoint} does not fit behavior 'A'")
    assert "Policy/action_model._discrete_distribution.branches.1.weight is 2x4, needed is 4x4" in detail
    assert "Module:Curiosity/discrete_action_prediction.bias is 5, needed is 7" in detail
    (refused,) = [message for message in messages if message.get("name") == "behavior_refused"]
    assert refused["message"] in detail


SPEC = replace(make_spec(branches=(3, 2)), name="A")
NETWORK = {"hidden_units": 8, "num_layers": 1}
CKPT = f"ckpt_{'0' * 26}"


def build(tmp_path: Path, trainer: str = "ppo", seed: int = 1, **section: Any) -> tuple[Any, Any]:
    """Return an algorithm and its section."""
    network = section.pop("network_settings", NETWORK)
    document = {"trainer_type": trainer, "network_settings": network, **section}
    write(make_demonstration(SPEC, lengths=(20, 20)), tmp_path / "shown.npz")
    demonstrations = Demonstrations({DEMONSTRATION: str(tmp_path / "shown.npz")})
    if trainer == "clone":
        config = resolve({"behaviors": {"A": {**document, "demonstrations": [DEMONSTRATION]}}}).behaviors["A"]
        return build_demonstrated(config, "A", torch.device("cpu"), seed, demonstrations)[0], config
    config = resolve({"behaviors": {"A": document}}).behaviors["A"]
    return build_algorithm(config, SPEC, torch.device("cpu"), seed, demonstrations), config


def saved(folder: Path, **states: dict[str, Any]) -> Path:
    """Write a checkpoint of ours with these behaviors."""
    folder.mkdir()
    checkpoint.save(folder, {name: {"progress": {"step": 700}, "algorithm": state} for name, state in states.items()})
    return folder


def flat(state: Any, path: str = "") -> dict[str, Tensor]:
    """Return the tensors of a state by their paths."""
    if isinstance(state, dict):
        return {name: one for key, value in state.items() for name, one in flat(value, f"{path}.{key}").items()}
    return {path: state} if isinstance(state, Tensor) else {}


# ML-Agents ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RESULTS)
def test_real_checkpoints_fill_every_network_of_their_configuration(tmp_path: Path, name: str) -> None:
    result = Result(name)
    algorithm, config = result.built(tmp_path)
    before = algorithm.state_dict()

    began = initialize(algorithm, config, result.spec, "checkpoint.pt", result.checkpoint)

    after = algorithm.state_dict()
    networks = [key for key in ("model", "actor", "critics", "signals") if key in after]
    old, new = (
        {path: one for key in networks for path, one in flat(state[key], key).items()} for state in (before, after)
    )
    kept = [path for path in new if torch.equal(new[path], old[path]) and new[path].any()]
    assert not [path for path in kept if ".optimizer." not in path and ".generators." not in path]
    assert began.origin == "mlagents"
    assert after["version"] == 0
    assert float(after["optimizer"]["steps"]) > 0


def test_what_starts_anew_is_named(tmp_path: Path) -> None:
    fresh = {}
    for name in RESULTS:
        algorithm, config = Result(name).built(tmp_path)
        fresh[name] = initialize(algorithm, config, Result(name).spec, "it", Result(name).checkpoint).new

    assert fresh == {
        "ppo-lstm-curiosity-rnd-curriculum": ("the optimizer of curiosity", "the optimizer of rnd"),
        "sac-replay-buffer": ("the entropy coefficients", "the replay buffer"),
        "selfplay-gail-vail-bc": ("the optimizer of gail", "the optimizer of behavioral_cloning"),
    }


def test_the_folder_of_an_uploaded_checkpoint_is_read_too(tmp_path: Path) -> None:
    result = Result("sac-replay-buffer")
    algorithm, config = result.built()
    shutil.copy(result.checkpoint, tmp_path / "checkpoint.pt")

    assert initialize(algorithm, config, result.spec, CKPT, tmp_path).step == 320


def test_a_misfit_names_checkpoint_behavior_and_tensors_and_changes_nothing(tmp_path: Path) -> None:
    result = Result("sac-replay-buffer")
    algorithm, config = build(tmp_path, "ppo")
    before = flat(algorithm.state_dict())

    with pytest.raises(InitializationError) as caught:
        initialize(algorithm, config, SPEC, CKPT, result.checkpoint)

    message = str(caught.value)
    assert message.startswith(f"the checkpoint {CKPT} does not fit behavior 'A' as it is configured: ")
    assert "missing Optimizer:critic/network_body" in message
    assert "Policy/network_body._body_endoder.seq_layers.0.weight is 16x4, needed is 8x4" in message
    assert message.endswith("another checkpoint")
    after = flat(algorithm.state_dict())
    assert all(torch.equal(after[path], before[path]) for path in before)


@pytest.mark.parametrize("files", [(), ("a.pt", "b.pt")])
def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path, files: tuple[str, ...]) -> None:
    algorithm, config = build(tmp_path)
    for file in files:
        (tmp_path / file).write_bytes(b"")

    with pytest.raises(InitializationError, match=f"has {len(files)}"):
        initialize(algorithm, config, SPEC, CKPT, tmp_path)


# Our own --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trainer", ["ppo", "sac", "poca", "clone"])
def test_networks_and_optimizers_are_taken_over_and_the_run_begins_anew(tmp_path: Path, trainer: str) -> None:
    source, _ = build(tmp_path, trainer, seed=1)
    state = {**source.state_dict(), "version": 9}
    state["optimizer"] = {
        "steps": torch.tensor(55.0),
        **{key: {name: one + 0.5 for name, one in state["optimizer"][key].items()} for key in ("first", "second")},
    }
    folder = saved(tmp_path / "old", A=state)
    algorithm, config = build(tmp_path, trainer, seed=2)
    generator = algorithm.state_dict()["generator"]

    began = initialize(algorithm, config, SPEC, CKPT, folder)

    after = algorithm.state_dict()
    for key in ("model", "actor", "critics", "log_coefficients", "optimizer"):
        if key in state:
            expected = flat({key: state[key]})
            assert all(torch.equal(flat({key: after[key]})[path], one) for path, one in expected.items()), key
    assert (began.origin, began.step) == ("ludus", 700)
    assert after["version"] == 0
    assert torch.equal(after["generator"], generator), "the run's own"


def test_signals_are_taken_over_with_their_optimizers(tmp_path: Path) -> None:
    signals = {"extrinsic": {}, "curiosity": {"network_settings": NETWORK}}
    source, _ = build(tmp_path, seed=1, reward_signals=signals)
    folder = saved(tmp_path / "old", A=source.state_dict())
    algorithm, config = build(tmp_path, seed=2, reward_signals=signals)

    initialize(algorithm, config, SPEC, CKPT, folder)

    expected, found = flat(source.state_dict()["signals"]), flat(algorithm.state_dict()["signals"])
    assert len(expected) > 10
    assert all(torch.equal(found[path], one) for path, one in expected.items())


def test_the_only_behavior_of_a_checkpoint_counts_whatever_its_name(tmp_path: Path) -> None:
    source, _ = build(tmp_path, seed=1)
    folder = saved(tmp_path / "old", Another=source.state_dict())
    algorithm, config = build(tmp_path, seed=2)

    initialize(algorithm, config, SPEC, CKPT, folder)

    assert (algorithm.flat_weights() == source.flat_weights()).all()


def test_of_several_behaviors_the_name_must_be_there(tmp_path: Path) -> None:
    source, _ = build(tmp_path, seed=1)
    folder = saved(tmp_path / "old", B=source.state_dict(), C=source.state_dict())
    algorithm, config = build(tmp_path, seed=2)

    with pytest.raises(InitializationError, match="has no behavior 'A', but B, C"):
        initialize(algorithm, config, SPEC, CKPT, folder)


def test_other_networks_are_refused_by_name(tmp_path: Path) -> None:
    source, _ = build(tmp_path)
    folder = saved(tmp_path / "old", A=source.state_dict())
    curiosity = {"extrinsic": {}, "curiosity": {}}
    algorithm, config = build(tmp_path, network_settings={**NETWORK, "normalize": True}, reward_signals=curiosity)

    with pytest.raises(InitializationError) as caught:
        initialize(algorithm, config, SPEC, CKPT, folder)

    message = str(caught.value)
    assert "missing model.actor.body.normalizer.mean" in message
    assert "missing signals.curiosity" in message
    assert "model.critic.heads.weight is 1x8, needed is 2x8" in message


@pytest.mark.parametrize(("origin", "goal"), [("clone", "ppo"), ("clone", "poca"), ("clone", "sac"), ("ppo", "clone")])
def test_to_and_from_a_clone_run_the_policy_goes_alone(tmp_path: Path, origin: str, goal: str) -> None:
    """What was cloned is a policy of discrete actions here: that of SAC has the same form."""
    source, _ = build(tmp_path, origin, seed=1)
    folder = saved(tmp_path / "old", A=source.state_dict())
    algorithm, config = build(tmp_path, goal, seed=2)
    before = algorithm.state_dict()

    began = initialize(algorithm, config, SPEC, CKPT, folder)

    assert (algorithm.flat_weights() == source.flat_weights()).all()
    assert began.new[0] == "everything but the policy"
    after = flat(algorithm.state_dict())
    others = {path: one for path, one in flat(before).items() if "critic" in path or "optimizer" in path}
    assert all(torch.equal(after[path], one) for path, one in others.items())


def test_a_policy_of_another_form_is_refused_from_a_clone_run_too(tmp_path: Path) -> None:
    source, _ = build(tmp_path, "clone")
    folder = saved(tmp_path / "old", A=source.state_dict())
    algorithm, config = build(tmp_path, "ppo", network_settings={**NETWORK, "num_layers": 2})

    with pytest.raises(InitializationError, match=r"missing policy\.body\.hidden\.layers\.1\.weight"):
        initialize(algorithm, config, SPEC, CKPT, folder)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    source, _ = build(tmp_path)
    folder = saved(tmp_path / "old", A=source.state_dict())
    (folder / checkpoint.TENSORS_FILE).write_bytes(b"altered")
    algorithm, config = build(tmp_path)

    with pytest.raises(InitializationError, match="is not what was written"):
        initialize(algorithm, config, SPEC, CKPT, folder)


# Where it lies --------------------------------------------------------------------------------------------------------


def named(**section: str) -> Any:
    return resolve({"behaviors": {"A": section}}, local=True).behaviors["A"]


def test_a_behavior_begins_with_what_it_names_by_id_or_by_path(tmp_path: Path) -> None:
    sources = Sources({CKPT: str(tmp_path)})

    assert sources.of(named()) is None
    assert sources.of(named(initialize_from=CKPT)) == (CKPT, tmp_path)
    assert sources.of(named(init_path="a/checkpoint.pt")) == ("a/checkpoint.pt", Path("a/checkpoint.pt"))


def test_a_checkpoint_that_was_not_handed_over_is_named() -> None:
    with pytest.raises(InitializationError, match=f"{CKPT} was not handed"):
        Sources({}).of(named(initialize_from=CKPT))
