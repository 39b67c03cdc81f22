"""The whole cross: every trainer with every signal, action space, observation and memory builds, learns one step,
survives a checkpoint and exports.
"""

from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from ludus.config.behavior import BehaviorConfig, POCAConfig, PPOConfig, SACConfig
from ludus.config.plugins.crossq import CrossQConfig
from ludus.config.plugins.dqn import DQNConfig
from ludus.config.plugins.offline import FinetuneConfig
from ludus.config.plugins.td3 import TD3Config
from ludus.config.plugins.tqc import TQCConfig
from ludus.config.trainer import ReinforcementConfig
from ludus.demonstrations import Demonstration, write
from ludus.protocol.spec import BehaviorSpec
from tests.ludus.demonstrations.shown import make_demonstration
from tests.worker.rollouts import equal_states, make_spec, random_observation, random_rollout
from worker.experience.rollout import Rollout
from worker.learning.algorithms.algorithm import Algorithm
from worker.learning.algorithms.poca import POCA
from worker.learning.algorithms.ppo import PPO
from worker.learning.algorithms.sac import SAC
from worker.learning.build import Demonstrations, build_algorithm
from worker.learning.plugins.crossq import CrossQ
from worker.learning.plugins.dqn.algorithm import DQN
from worker.learning.plugins.td3 import TD3
from worker.learning.plugins.tqc import TQC
from worker.onnx.export import export_onnx
from worker.trainer import checkpoint
from worker.trainer.learner import sample_of

CPU = torch.device("cpu")
ACTIONS: dict[str, dict[str, Any]] = {
    "continuous": {"continuous": 2},
    "discrete": {"branches": (3, 2)},
    "hybrid": {"continuous": 1, "branches": (3,)},
}
SEES: dict[str, tuple[int | tuple[int, ...], ...]] = {"vector": (3,), "visual": (2, (1, 8, 8))}
MEMORIES = {"plain": None, "lstm": {"sequence_length": 4, "memory_size": 6}}
LENGTHS = (5, 3, 8, 1, 6, 1)
"""Steps of the segments: more and less than a sequence."""
SMALL = {"hidden_units": 8, "num_layers": 1, "vis_encode_type": "fully_connected"}
DEMONSTRATION = {"demonstrations": ["dem_" + "0" * 26]}
INTRINSIC = {"network_settings": SMALL}
EXTRINSIC: dict[str, Any] = {"extrinsic": {}}
SIGNALS: dict[str, dict[str, Any]] = {
    "extrinsic": {"reward_signals": EXTRINSIC},
    "curiosity": {"reward_signals": {**EXTRINSIC, "curiosity": INTRINSIC}},
    "gail": {
        "reward_signals": {**EXTRINSIC, "gail": {**INTRINSIC, **DEMONSTRATION, "use_actions": True, "use_vail": True}}
    },
    "rnd": {"reward_signals": {**EXTRINSIC, "rnd": INTRINSIC}},
    "bc": {"reward_signals": EXTRINSIC, "behavioral_cloning": DEMONSTRATION},
    "scaled": {"reward_signals": {"extrinsic": {"normalize_reward": True}}},
}
OWN_METRICS = {
    "extrinsic": "Losses/Value Loss",
    "curiosity": "Losses/Curiosity Forward Loss",
    "gail": "Losses/GAIL Loss",
    "rnd": "Losses/RND Loss",
    "scaled": "Losses/Value Loss",
    "bc": "Losses/Pretraining Loss",
}
HYPERPARAMETERS: dict[str, dict[str, Any]] = {
    "ppo": {"batch_size": 8, "buffer_size": 24, "num_epoch": 1},
    "sac": {"batch_size": 8, "buffer_size": 64, "steps_per_update": 12, "save_replay_buffer": True},
    "poca": {"batch_size": 8, "buffer_size": 24, "num_epoch": 1},
    "dqn": {
        "batch_size": 8,
        "buffer_size": 64,
        "steps_per_update": 12,
        "save_replay_buffer": True,
        "dueling": True,
        "n_step": 3,
        "prioritized": True,
    },
    "td3": {"batch_size": 8, "buffer_size": 64, "steps_per_update": 12, "save_replay_buffer": True},
    "tqc": {"batch_size": 8, "buffer_size": 64, "steps_per_update": 12, "save_replay_buffer": True},
    "crossq": {
        "batch_size": 8,
        "buffer_size": 64,
        "steps_per_update": 12,
        "save_replay_buffer": True,
        "policy_delay": 1,
        "critic_hidden_units": 8,
    },
    "finetune": {"batch_size": 8, "buffer_size": 64, "steps_per_update": 12, "save_replay_buffer": True},
}
REFUSED: dict[str, set[str]] = {
    "dqn": {"continuous", "hybrid", "bc"},
    "td3": {"discrete", "hybrid", "lstm", "bc"},
    "tqc": {"discrete", "hybrid", "lstm"},
    "crossq": {"discrete", "hybrid", "lstm"},
    "finetune": {"lstm", "bc", "gail", "rnd", "curiosity", "scaled"},
}
"""What a trainer does not have."""
CONFIG: TypeAdapter[ReinforcementConfig] = TypeAdapter(BehaviorConfig)


class Cell(NamedTuple):
    trainer: str
    signal: str
    actions: str
    sees: str
    memory: str

    @property
    def spec(self) -> BehaviorSpec:
        return make_spec(observations=SEES[self.sees], **ACTIONS[self.actions])

    @property
    def config(self) -> ReinforcementConfig:
        return CONFIG.validate_python(
            {
                "trainer_type": self.trainer,
                "hyperparameters": HYPERPARAMETERS[self.trainer],
                "network_settings": {**SMALL, "normalize": True, "memory": MEMORIES[self.memory]},
                **SIGNALS[self.signal],
                **(DEMONSTRATION if self.trainer == "finetune" else {}),
            }
        )


def is_legal(cell: Cell) -> bool:
    """Whether the trainer has what a cell asks for."""
    return not REFUSED.get(cell.trainer, set()) & {*cell}


CELLS = [cell for cell in map(Cell._make, product(HYPERPARAMETERS, SIGNALS, ACTIONS, SEES, MEMORIES)) if is_legal(cell)]
HALVES = [("vector", "plain"), ("visual", "lstm")]


def is_quick(cell: Cell) -> bool:
    """Whether `make test` has a cell: one for each trainer and signal, with actions and halves in turn."""
    turn = list(SIGNALS).index(cell.signal) + list(HYPERPARAMETERS).index(cell.trainer)
    possible = [actions for actions in ACTIONS if actions not in REFUSED.get(cell.trainer, set())]
    actions = possible[turn % len(possible)]
    half = HALVES[0] if "lstm" in REFUSED.get(cell.trainer, ()) else HALVES[turn % len(HALVES)]
    return (cell.actions, cell.sees, cell.memory) == (actions, *half)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Demonstrations]:
    """Random demonstrations of every action space and observation."""
    folder = tmp_path_factory.mktemp("shown")
    found = {}
    for actions, sees in product(ACTIONS, SEES):
        path = folder / f"{actions}-{sees}.npz"
        write(demonstrate(make_spec(observations=SEES[sees], **ACTIONS[actions])), path)
        found[actions, sees] = Demonstrations({DEMONSTRATION["demonstrations"][0]: str(path)})
    return found


def demonstrate(spec: BehaviorSpec) -> Demonstration:
    rng = np.random.default_rng(5)
    seen, last = (tuple(random_observation(item, rows, rng) for item in spec.observations) for rows in (20, 2))
    return make_demonstration(spec, (10, 10), observations=seen, final_observations=last)


def play(cell: Cell, seed: int) -> Rollout:
    """Random experience; what was cut in one round goes on in that of the next seed."""
    rng = np.random.default_rng(seed)
    spec, memory = cell.spec, MEMORIES[cell.memory]
    continuous = rng.normal(size=(sum(LENGTHS), spec.actions.continuous_size))
    return random_rollout(
        spec,
        LENGTHS,
        rng,
        memory_size=0 if memory is None else memory["memory_size"],
        group_size=2 if cell.trainer == "poca" else 0,
        masked=True,
        continuous=np.tanh(continuous) if cell.trainer in {"sac", "td3", "tqc", "crossq", "finetune"} else continuous,
        sequences=np.full(len(LENGTHS), seed),
    )


def differences(one: Algorithm, other: Algorithm) -> float:
    return float(np.abs(one.flat_weights() - other.flat_weights()).max())


@pytest.mark.parametrize(
    "cell", [pytest.param(cell, marks=[] if is_quick(cell) else pytest.mark.long, id="-".join(cell)) for cell in CELLS]
)
def test_every_variant_builds_learns_survives_a_checkpoint_and_exports(
    cell: Cell, shown: dict[tuple[str, str], Demonstrations], tmp_path: Path
) -> None:
    config, spec, demonstrations = cell.config, cell.spec, shown[cell.actions, cell.sees]
    algorithm = build_algorithm(config, spec, CPU, 1, demonstrations)
    before = algorithm.flat_weights()

    measured = algorithm.update(play(cell, 0), 24)

    assert measured is not None
    assert np.isfinite(list(measured.values())).all(), measured
    assert OWN_METRICS[cell.signal] in measured
    assert algorithm.version == 1
    assert np.abs(algorithm.flat_weights() - before).max() > 0

    checkpoint.save(tmp_path, algorithm.state_dict())
    resumed = build_algorithm(config, spec, CPU, 2, demonstrations)
    assert differences(algorithm, resumed) > 0, "another seed gives other weights"
    resumed.load_state_dict(checkpoint.load(tmp_path))
    assert equal_states(algorithm.state_dict(), resumed.state_dict())
    twin = build_algorithm(config, spec, CPU, 1, demonstrations)
    twin.update(play(cell, 0), 24)
    for number in (1, 2):
        rollout, step = play(cell, number), 24 * (number + 1)
        assert resumed.update(rollout, step) == algorithm.update(rollout, step) == twin.update(rollout, step)
    assert equal_states(algorithm.state_dict(), resumed.state_dict()), "training goes on bit for bit"
    assert equal_states(algorithm.state_dict(), twin.state_dict()), "equal seeds learn alike"
    assert resumed.round_steps() == algorithm.round_steps()

    observations, masks = sample_of(rollout)
    export_onnx(algorithm.actor, spec, tmp_path / "model.onnx", observations, masks)
    assert (tmp_path / "model.onnx").stat().st_size > 0


@pytest.mark.parametrize("trainer", [name for name in HYPERPARAMETERS if "gail" not in REFUSED.get(name, ())])
def test_every_trainer_lets_gail_go_on_beyond_termination_where_that_is_asked_for(
    shown: dict[tuple[str, str], Demonstrations], trainer: str
) -> None:
    actions = "continuous" if trainer in {"td3", "tqc", "crossq"} else "discrete"
    cell = Cell(trainer, "gail", actions, "vector", "plain")
    gail = {**INTRINSIC, **DEMONSTRATION, "ignore_done": True}
    document = cell.config.model_dump(mode="json") | {"reward_signals": {**EXTRINSIC, "gail": gail}}

    algorithm = build_algorithm(CONFIG.validate_python(document), cell.spec, CPU, 1, shown[actions, "vector"])

    assert isinstance(algorithm, PPO | SAC | POCA | DQN | TD3 | TQC | CrossQ)
    assert algorithm.signals.ignores_termination.tolist() == [False, True]
    assert algorithm.update(play(cell, 1), 24) is not None


def test_the_cross_has_every_trainer_and_every_signal() -> None:
    built = {type(cell.config) for cell in CELLS}
    signals = {name for cell in CELLS for name, _ in cell.config.reward_signals.active()}

    assert len(CELLS) == 3 * 6 * 3 * 2 * 2 + 5 * 2 * 2 + 5 * 2 + 6 * 2 + 6 * 2 + 3 * 2
    assert built == {PPOConfig, SACConfig, POCAConfig, DQNConfig, TD3Config, TQCConfig, CrossQConfig, FinetuneConfig}
    assert signals == {"extrinsic", "curiosity", "gail", "rnd"}
