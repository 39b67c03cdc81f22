"""What is promised of a GPU. Every test runs on the CPU too, where it is cheap, so that a mistake in it is found there.

`make gpu` runs them where there is a GPU; elsewhere those of "cuda" are skipped.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ludus.config.behavior import POCAConfig, PPOConfig
from ludus.demonstrations import write
from tests.worker.learning.algorithms.off_policy_world import make_sac_config, random_round
from tests.worker.learning.networks.kinds import OTHERS, make_actor, remember, see
from tests.worker.rollouts import make_spec, random_rollout
from tests.worker.test_variants import ACTIONS, DEMONSTRATION, SEES, Cell, demonstrate, play
from tests.worker.trainer.rank_world import Pair
from worker.collectors.acting import POLICIES
from worker.host.gpus import find_gpus
from worker.host.resources import GPU_MEMORY, GPU_UTILIZATION, GpuMeter
from worker.learning.algorithms.algorithm import Algorithm
from worker.learning.build import Demonstrations, build_algorithm
from worker.onnx.export import export_onnx
from worker.onnx.graph import acting_graph
from worker.trainer import checkpoint
from worker.trainer.compilation import bf16_pictures
from worker.trainer.learner import sample_of
from worker.trainer.ranks import Ranks

CPU = torch.device("cpu")
NEEDS_GPU = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"))
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_GPU)]
TRAINERS = ["ppo", "sac", "poca"]
RANKED = {
    name: trainer.model_validate({"hyperparameters": {"batch_size": 8, "buffer_size": 16, "num_epoch": 2}})
    for name, trainer in (("ppo", PPOConfig), ("poca", POCAConfig))
}

# An LSTM's weights are a part of the optimizer's vector; cuDNN copies them together and says so.
pytestmark = pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk")


@pytest.fixture
def _in_float32() -> Iterator[None]:
    """Let a GPU's convolutions and LSTMs compute in float32, as the CPU does, instead of TF32."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def build(cell: Cell, device: str, folder: Path, seed: int = 1) -> Algorithm:
    path = folder / "shown.npz"
    if not path.exists():
        write(demonstrate(make_spec(observations=SEES[cell.sees], **ACTIONS[cell.actions])), path)
    shown = Demonstrations({DEMONSTRATION["demonstrations"][0]: str(path)})
    return build_algorithm(cell.config, cell.spec, torch.device(device), seed, shown)


@pytest.mark.usefixtures("_in_float32")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("sees", "memory"), [("vector", "plain"), ("visual", "lstm")])
@pytest.mark.parametrize("trainer", TRAINERS)
def test_an_update_is_that_of_the_cpu(trainer: str, sees: str, memory: str, device: str, tmp_path: Path) -> None:
    cell = Cell(trainer, "curiosity", "hybrid", sees, memory)
    here, there = build(cell, "cpu", tmp_path), build(cell, device, tmp_path)
    np.testing.assert_array_equal(here.flat_weights(), there.flat_weights())
    before = here.flat_weights()

    expected, measured = (algorithm.update(play(cell, 1), 24) for algorithm in (here, there))

    assert expected is not None
    assert measured is not None
    assert dict(measured) == pytest.approx(dict(expected), rel=2e-3, abs=2e-3)
    moved = np.abs(here.flat_weights() - before).mean()
    # Adam's first steps are the learning rate long whatever the gradient: where it is about 0, its sign is chance.
    assert np.abs(there.flat_weights() - here.flat_weights()).mean() < 0.05 * moved


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("signal", ["curiosity", "gail", "bc"])
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_run_goes_on_where_the_device_is_another_and_back(
    trainer: str, signal: str, device: str, tmp_path: Path
) -> None:
    cell = Cell(trainer, signal, "continuous", "vector", "lstm")
    algorithm = build(cell, "cpu", tmp_path)
    for number, name in enumerate((device, "cpu", device), 1):
        assert algorithm.update(play(cell, number), 24 * number) is not None
        folder = tmp_path / str(number)
        folder.mkdir()
        checkpoint.save(folder, algorithm.state_dict())
        resumed = build(cell, name, tmp_path, seed=number + 1)

        resumed.load_state_dict(checkpoint.load(folder))

        np.testing.assert_array_equal(resumed.flat_weights(), algorithm.flat_weights())
        assert resumed.version == number
        algorithm = resumed
    assert algorithm.update(play(cell, 4), 96) is not None


@pytest.mark.parametrize("device", DEVICES)
def test_pictures_in_bf16_give_nearly_the_same_update(device: str) -> None:
    spec = make_spec(observations=(2, (1, 20, 20)), branches=(3,))
    config = PPOConfig.model_validate(
        {
            "hyperparameters": {"batch_size": 8, "buffer_size": 16, "num_epoch": 1},
            "network_settings": {"hidden_units": 8, "num_layers": 1},
        }
    )
    rollout = random_rollout(spec, [8, 8], np.random.default_rng(1))
    exact, rough = (build_algorithm(config, spec, torch.device(device), 1, Demonstrations({})) for _ in range(2))

    expected = exact.update(rollout, 0)
    with bf16_pictures(enabled=True):
        measured = rough.update(rollout, 0)

    assert expected is not None
    assert measured is not None
    assert 0 < abs(measured["Losses/Value Loss"] / expected["Losses/Value Loss"] - 1) < 0.02
    assert {weight.dtype for weight in rough.actor.parameters()} == {torch.float32}


@pytest.mark.usefixtures("_in_float32")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OTHERS)
def test_acting_is_that_of_the_cpu(name: str, device: str) -> None:
    kind = OTHERS[name]
    actor = make_actor(kind)
    observations, masks = see(kind.spec, 20)
    memory = remember(actor, 20)

    here, there = (
        POLICIES.policy(kind.spec, kind.network, kind.head, where, acting_graph(actor)) for where in ("cpu", device)
    )
    acted = []
    for policy in (here, there):
        policy.load(actor.flatten())
        seen = [part.numpy() for part in observations]
        remembered = None if memory is None else memory.numpy()
        acted.append(policy.act(seen, masks.numpy(), remembered, np.random.default_rng(5)))

    np.testing.assert_array_equal(acted[0].discrete, acted[1].discrete)
    for column in ("continuous_sample", "continuous_env", "log_probs"):
        np.testing.assert_allclose(getattr(acted[1], column), getattr(acted[0], column), rtol=1e-3, atol=1e-3)
    if acted[0].memory is not None:
        np.testing.assert_allclose(acted[1].memory, acted[0].memory, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("memory", ["plain", "lstm"])
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_policy_is_exported_from_the_device_on_which_it_learns(
    trainer: str, memory: str, device: str, tmp_path: Path
) -> None:
    cell = Cell(trainer, "extrinsic", "hybrid", "visual", memory)
    algorithm, rollout = build(cell, device, tmp_path), play(cell, 1)
    algorithm.update(rollout, 24)
    observations, masks = sample_of(rollout)

    export_onnx(algorithm.actor, cell.spec, tmp_path / "model.onnx", observations, masks)

    assert (tmp_path / "model.onnx").stat().st_size > 0
    assert algorithm.actor.head.weight.device.type == device


class Reads(TorchDispatchMode):
    """Counts where numbers come back from the device: there the processor waits for all that was asked of it.

    What is copied whole comes back from a GPU only. Copies the other way are not counted: SAC's batches are drawn from
    a buffer in the computer's memory, so each gradient step sends some.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        match func.name():
            case "aten::_local_scalar_dense" | "aten::nonzero" | "aten::masked_select" | "aten::equal":
                self.count += args[0].device.type == self.device
            case "aten::_to_copy":
                self.count += args[0].is_cuda and torch.device(kwargs.get("device") or "cuda").type == "cpu"
            case "aten::copy_":
                self.count += args[1].is_cuda and not args[0].is_cuda
        return func(*args, **kwargs)


@pytest.mark.long
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("trainer", ["ppo", "sac"])
def test_more_gradient_steps_read_nothing_more_from_the_device(trainer: str, device: str) -> None:
    spec = make_spec(observations=(3, 2), continuous=2, branches=(3,))
    counts = []
    for more in (1, 6):
        if trainer == "ppo":
            hyper = {"batch_size": 8, "buffer_size": 16, "num_epoch": more}
            config: Any = PPOConfig.model_validate({"hyperparameters": hyper})
        else:
            config = make_sac_config(steps_per_update=16.0 / more)
        algorithm = build_algorithm(config, spec, torch.device(device), 1, Demonstrations({}))
        rollouts = [random_round(spec, np.random.default_rng(seed), episodes=[seed] * 3) for seed in (1, 2)]
        algorithm.update(rollouts[0], 16)
        with Reads(device) as reads:
            assert algorithm.update(rollouts[1], 32) is not None
        counts.append(reads.count)

    with Reads(device) as control:
        float(torch.ones(2, device=device).sum())
    assert counts[0] == counts[1]
    assert control.count == 1


@pytest.mark.parametrize("device", DEVICES[1:])
def test_the_drivers_library_tells_memory_and_use_of_the_gpu(device: str) -> None:
    gpus = find_gpus(None)
    assert gpus
    meter = GpuMeter.open(gpus)
    assert meter is not None
    before = meter.read()

    held = torch.ones(2**28, dtype=torch.uint8, device=device)

    use = meter.read()
    assert use[GPU_MEMORY] >= before[GPU_MEMORY] + held.nbytes
    assert 0.0 <= use.get(GPU_UTILIZATION, 0.0) <= 1.0
    meter.close()


@pytest.mark.long
@pytest.mark.xdist_group("two learners")
@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=(
                pytest.mark.gpu,
                pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two GPUs here"),
            ),
        ),
    ],
)
@pytest.mark.parametrize("trainer", ["ppo", "poca", "sac"])
def test_two_ranks_keep_the_same_weights(trainer: str, device: str, tmp_path: Path) -> None:
    spec = make_spec(observations=(3,), continuous=2)
    section = make_sac_config() if trainer == "sac" else RANKED[trainer]
    first = torch.device(device, 0) if device == "cuda" else CPU
    ranks = Ranks(2, first, tmp_path, 60.0)
    try:
        pair = Pair(ranks, section, spec, build_algorithm(section, spec, first, 1, Demonstrations({})))
        before = pair.algorithm.flat_weights()
        for number in range(3):  # each update compares the weights
            rounds = [random_round(spec, np.random.default_rng([number, rank])) for rank in range(2)]
            pair.update(*rounds, 32 * (number + 1))
        assert np.abs(pair.algorithm.flat_weights() - before).max() > 1e-5
    finally:
        ranks.close()
