"""Beginning with the weights of a checkpoint, at step 0: of ML-Agents (`worker.mlagents`), or of a run of ours.

The behavior gets the networks, the statistics that they normalise by, and the state of their optimizers. The state of
the other run is left out: steps and schedules, generators, memories of agents,
replay buffer, and how far behavioral cloning was.

Nothing is loaded in part: networks that are not those of the configuration are refused with the names that don't fit.
One exception, for runs of ours: a clone run has a policy alone, so only the policy goes from it to another trainer, and
from another trainer to it. The `behavior_initialized` event names the parts that begin new.

Going on exactly where another run's checkpoint was taken is `resume`: with everything, and just as strict.
"""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ludus.config.behavior import BehaviorConfig
from ludus.config.hyperparameters import OffPolicyHyperparameters
from ludus.config.run import RunConfig
from ludus.config.trainer import ReinforcementConfig
from ludus.protocol.spec import BehaviorSpec
from worker.experience.state import State
from worker.learning.algorithms.algorithm import Learning
from worker.learning.networks.actor import Actor
from worker.mlagents.algorithms import Misfit, translate
from worker.mlagents.file import MLAgentsCheckpoint, Unreadable
from worker.trainer.checkpoint import MANIFEST_FILE, CheckpointDamaged, behavior_states, is_packed, load, unpack

NETWORKS = (
    *("model", "actor", "critics", "log_coefficients", "signals"),
    *("optimizer", "actor_optimizer", "critic_optimizer"),
)
"""The keys of an algorithm's state that are loaded; everything else stays as it begins."""
POLICY = "actor."
"""How the policy's tensors begin in a model that has a critic, too."""


class InitializationError(ValueError):
    """A behavior can't begin with the checkpoint that its configuration names."""


class Initialized(NamedTuple):
    """The checkpoint that a behavior began with."""

    origin: str
    """Which program wrote the checkpoint: `mlagents` or `ludus`."""
    step: int
    """The behavior's step in it."""
    new: tuple[str, ...]
    """The parts that it did not have, and that begin new; for people."""


class Sources:
    """The checkpoints that a job brought along."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        """`paths`: the folder in which the files of the checkpoint with each id lie."""
        self._paths = paths

    def resumed(self, config: RunConfig) -> Path | None:
        """Return the folder of the checkpoint that the run goes on from, if any. Raise `CheckpointDamaged`."""
        name = config.checkpoint_settings.resume_from
        if name is not None and name not in self._paths:
            raise CheckpointDamaged(Path(name), "it was not handed to this trainer; create the run again")
        return None if name is None else Path(self._paths[name])

    def of(self, config: BehaviorConfig) -> tuple[str, Path] | None:
        """Return name and path of the checkpoint that a behavior begins with, if any. Raise `InitializationError`."""
        name = config.initialize_from
        if name is None:
            return None if config.init_path is None else (config.init_path, Path(config.init_path))
        return name, self.folder(name)

    def folder(self, checkpoint: str) -> Path:
        """Return the folder of a checkpoint by its id. Raise `InitializationError` if it is missing."""
        if checkpoint not in self._paths:
            message = f"the checkpoint {checkpoint} was not handed to this trainer; create the run again"
            raise InitializationError(message)
        return Path(self._paths[checkpoint])


def initialize(algorithm: Learning, config: BehaviorConfig, spec: BehaviorSpec, name: str, path: Path) -> Initialized:
    """Give a new algorithm the networks of a checkpoint: a `.pt` of ML-Agents, or the folder of one of ours.

    `name` is what messages call it. Raise `InitializationError`; the algorithm is then as it was.
    """
    try:
        if path.is_dir() and (path / MANIFEST_FILE).exists():
            return _from_ludus(algorithm, config, spec.behavior, path)
        only = _only_file(path)
        if is_packed(only):
            with TemporaryDirectory(prefix="ludus-checkpoint-") as folder:
                unpack(only, Path(folder))
                return _from_ludus(algorithm, config, spec.behavior, Path(folder))
        file = MLAgentsCheckpoint.read(only)
        translated = translate(file, config, spec)
    except (Unreadable, CheckpointDamaged) as error:
        raise InitializationError(f"the checkpoint {name} can't be used: {error}") from error
    except Misfit as error:
        raise _refused(name, spec.behavior, error) from error
    algorithm.load_state_dict(_merged(algorithm.state_dict(), translated.state))
    return Initialized("mlagents", file.step, translated.fresh)


def resume(algorithm: Learning, spec: BehaviorSpec, state: State) -> None:
    """Continue exactly where a state was taken. Raise `InitializationError`: the algorithm is then as it was."""
    problems: list[str] = []
    _fitting(_networks(algorithm.state_dict()), _networks(state), "", problems)
    if problems:
        raise _refused("to go on from", spec.behavior, Misfit(problems))
    algorithm.load_state_dict(state)


def _refused(name: str, behavior: str, misfit: Misfit) -> InitializationError:
    return InitializationError(
        f"the checkpoint {name} does not fit behavior {behavior!r} as it is configured: {misfit}. Give the behavior "
        "the trainer_type, network_settings and reward_signals that the checkpoint was trained with, or another "
        "checkpoint"
    )


def _only_file(path: Path) -> Path:
    """Return the file that a path means: itself, or the only one in an uploaded checkpoint's folder."""
    files = sorted(path.glob("*.pt")) if path.is_dir() else [path]
    if len(files) != 1:
        raise Unreadable(f"a folder with {MANIFEST_FILE} or with one .pt file is needed, {path} has {len(files)}")
    return files[0]


def _merged(fresh: Any, loaded: Any) -> Any:
    """Return a new state, with the loaded parts in their places."""
    if isinstance(fresh, dict) and isinstance(loaded, dict):
        return {key: _merged(value, loaded[key]) if key in loaded else value for key, value in fresh.items()}
    return loaded


def _from_ludus(algorithm: Learning, config: BehaviorConfig, behavior: str, folder: Path) -> Initialized:
    _, saved = behavior_of(load(folder), behavior)
    state, new = saved["algorithm"], algorithm.state_dict()
    problems: list[str] = []
    is_clone, was_clone = "order" in new, "order" in state  # a policy and its place in the demonstrations
    if is_clone == was_clone:
        loaded = _fitting(_networks(new), _networks(state), "", problems)
        left_out = []
    else:
        policy = fitting_policy(policy_of(new), state, problems)
        prefix = "" if is_clone else POLICY
        loaded = {"model": {f"{prefix}{name}": value for name, value in policy.items()}}
        if "actor" in new:
            loaded = {"actor": policy}
        left_out = ["everything but the policy"]
    if problems:
        raise Misfit(problems)
    algorithm.load_state_dict(_merged(new, loaded))
    if isinstance(config.hyperparameters, OffPolicyHyperparameters):
        left_out.append("the replay buffer")
    if isinstance(config, ReinforcementConfig) and config.behavioral_cloning is not None:
        left_out.append("the optimizer of behavioral_cloning")
    return Initialized("ludus", int(saved["progress"]["step"]), tuple(left_out))


def _networks(state: State) -> State:
    return {key: state[key] for key in NETWORKS if key in state}


def behavior_of(state: State, behavior: str) -> tuple[str, State]:
    """Return name and state of a behavior in a training state, or of the only one. Raise `Unreadable`."""
    states = behavior_states(state)
    name = behavior if behavior in states or len(states) != 1 else next(iter(states))
    if name not in states:
        raise Unreadable(f"it has no behavior {behavior!r}, but {', '.join(sorted(states)) or 'none at all'}")
    if not isinstance(states[name], dict):
        raise Unreadable(f"its behavior {name!r} has no state")
    return name, states[name]


def fitting_policy(needed: State, state: State, problems: list[str]) -> State:
    """Return the tensors of the policy in an algorithm's state; append the differences from `needed` to `problems`."""
    fitting: State = _fitting(dict(needed), policy_of(state), "policy", problems)
    return fitting


def load_policy(actor: Actor, behavior: str, folder: Path) -> int:
    """Give an actor the policy of a run's checkpoint; return its step. Raise `InitializationError`."""
    try:
        _, saved = behavior_of(load(folder), behavior)
    except (Unreadable, CheckpointDamaged) as error:
        raise InitializationError(f"it can't be used: {error}") from error
    problems: list[str] = []
    policy = fitting_policy(actor.state_dict(), saved["algorithm"], problems)
    if problems:
        raise InitializationError(
            f"its policy does not fit what simulators say that {behavior!r} sees and does: {Misfit(problems)}. Start "
            "the game that it was trained on"
        )
    actor.load_state_dict(policy)
    return int(saved["progress"]["step"])


def policy_of(state: State) -> State:
    """Return the actor's part of an algorithm's state."""
    if "actor" in state:
        return dict(state["actor"])
    if "order" in state:  # of a clone run
        return dict(state["model"])
    return {name[len(POLICY) :]: value for name, value in state["model"].items() if name.startswith(POLICY)}


def _fitting(fresh: Any, saved: Any, path: str, problems: list[str]) -> Any:
    """Return the saved state, but generators; append each name that is missing, left over or of another shape."""
    if isinstance(fresh, dict) and isinstance(saved, dict):
        problems += [f"missing {_join(path, key)}" for key in fresh if key not in saved]
        problems += [f"unexpected {_join(path, key)}" for key in saved if key not in fresh]
        return {
            key: fresh[key] if key == "generators" else _fitting(fresh[key], saved[key], _join(path, key), problems)
            for key in fresh
            if key in saved
        }
    if isinstance(fresh, Tensor | np.ndarray) != isinstance(saved, Tensor | np.ndarray):
        problems.append(f"{path} is a {type(saved).__name__}, needed is a {type(fresh).__name__}")
    elif isinstance(fresh, Tensor | np.ndarray) and tuple(fresh.shape) != tuple(saved.shape):
        problems.append(f"{path} is {_size(saved)}, needed is {_size(fresh)}")
    return saved


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _size(array: Any) -> str:
    return "x".join(map(str, array.shape)) or "one number"
