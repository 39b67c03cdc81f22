"""Whole checkpoints of ML-Agents, as parts of the states of our algorithms."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ludus.config.behavior import BehaviorConfig, CloneConfig, POCAConfig, PPOConfig, SACConfig
from ludus.config.rewards import CuriosityConfig, GAILConfig, RNDConfig
from ludus.config.trainer import ReinforcementConfig
from ludus.protocol.spec import BehaviorSpec
from worker.experience.state import State
from worker.learning.fast.critics import StackedCritics
from worker.learning.networks.actor import Actor
from worker.learning.networks.actor_critic import ActorCritic
from worker.learning.networks.multi_agent import TeamCritic
from worker.learning.networks.soft_actor_critic import build_critics
from worker.learning.rewards.curiosity import CuriosityNetworks
from worker.learning.rewards.gail import Discriminator
from worker.learning.rewards.rnd import RNDNetworks
from worker.mlagents.file import POLICY, MLAgentsCheckpoint, Shape
from worker.mlagents.networks import CRITIC, Q_NETWORK, VALUE, Find, Translation

ACTIVATION = "swish"
"""Of all their hidden layers."""
LISTED = 20
"""Names that a refusal lists, at most."""


class Misfit(ValueError):
    """A checkpoint is not of the networks that are configured. The message lists the names, `LISTED` at most."""

    def __init__(self, problems: Sequence[str]) -> None:
        listed = list(problems[:LISTED])
        if len(problems) > LISTED:
            listed.append(f"and {len(problems) - LISTED} more")
        super().__init__("; ".join(listed))
        self.problems = tuple(problems)


class Translated(NamedTuple):
    """A translated checkpoint: parts of an algorithm's `state_dict`, and the names of the parts that are missing."""

    state: State
    """As the algorithm's own `state_dict`, without what stays as it begins."""
    fresh: tuple[str, ...]
    """The parts that stay as they begin, for people."""


Parameters = Mapping[str, Shape]
"""Names and shapes in an optimizer's order."""
Fill = Callable[[Translation], None]


class _Networks(NamedTuple):
    """The networks of an algorithm, as it would build them, and how to fill them."""

    modules: dict[str, nn.Module]
    """By their keys in the algorithm's `state_dict`."""
    fill: Fill
    trained: Sequence[tuple[str, Tensor]]
    """Parameters by their names in the algorithm's optimizer."""
    optimizers: Sequence[tuple[str, Callable[[MLAgentsCheckpoint], Parameters]]]
    """ML-Agents' optimizers of these parameters, and what each descends."""
    fill_moments: Fill
    """As `fill`, and what the file has moments for, but no weights."""
    doubled: str = ""
    """A module of the file that is another one once more."""


class _Signal(NamedTuple):
    """The network of a reward signal, and how to fill it."""

    network: nn.Module
    fill: Fill


def translate(file: MLAgentsCheckpoint, config: BehaviorConfig, spec: BehaviorSpec) -> Translated:
    """Return a checkpoint as parts of the state of the algorithm that `config` builds for `spec`.

    A clone run has a policy and nothing else: of the file it takes no other module. Raise `Misfit`.
    """
    activation = config.network_settings.activation
    if activation != ACTIVATION:
        raise Misfit([f"network_settings.activation is {activation}, in ML-Agents it is always {ACTIVATION}"])
    networks = _networks(config, spec)
    signals = _signals(config, spec) if isinstance(config, ReinforcementConfig) else {}
    read: set[str] = set()
    problems: list[str] = []
    weights = Translation(_finder(file.tensors, read, problems))
    for fill in (networks.fill, *(signal.fill for signal in signals.values())):
        fill(weights)
    unread = file.unread(read)
    if isinstance(config, CloneConfig):
        unread = [name for name in unread if name.startswith(f"{POLICY}/")]
    elif networks.doubled:
        unread = [name for name in unread if not name.startswith(f"{networks.doubled}/")]
    problems += [f"unexpected {name} ({_shape(file.tensors[name].shape)})" for name in unread]
    if problems:
        raise Misfit(problems)
    state: State = {key: weights.of_module(module) for key, module in networks.modules.items()}
    state["signals"] = {name: {"model": weights.of_module(signal.network)} for name, signal in signals.items()}
    missing = [f"the optimizer of {name}" for name in signals]
    optimizer = _optimizer(file, networks)
    if optimizer is None:
        missing.append("the optimizer")
    else:
        state["optimizer"] = optimizer
    if isinstance(config, SACConfig):
        missing += ["the entropy coefficients", "the replay buffer"]
    if isinstance(config, ReinforcementConfig) and config.behavioral_cloning is not None:
        missing.append("the optimizer of behavioral_cloning")
    return Translated(state, tuple(missing))


def _finder(tensors: Mapping[str, Tensor], read: set[str], problems: list[str]) -> Find:
    """Return a finder that records names and problems; for a tensor with a problem it returns ones."""

    def find(name: str, shape: Shape) -> Tensor:
        read.add(name)
        tensor = tensors.get(name)
        if tensor is None:
            problems.append(f"missing {name} ({_shape(shape)})")
        elif tuple(tensor.shape) != shape:
            problems.append(f"{name} is {_shape(tensor.shape)}, needed is {_shape(shape)}")
        elif tensor.layout is not torch.strided or not bool(tensor.isfinite().all()):
            problems.append(f"{name} has values that are no finite numbers")
        else:
            return tensor if name.endswith(".normalization_steps") else tensor.float()
        return torch.ones(shape)

    return find


def _shape(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "one number"


def _optimizer(file: MLAgentsCheckpoint, networks: _Networks) -> State | None:
    """Return the state of our Adam; None if the file has none that fits."""
    if not networks.optimizers:
        return None
    steps = [0.0]
    first: dict[str, Tensor] = {}
    second: dict[str, Tensor] = {}
    for name, parameters in networks.optimizers:
        moments = file.moments(name, parameters(file))
        if moments is None:
            return None
        steps += moments.steps
        first |= moments.first
        second |= moments.second

    def translated(moments: Mapping[str, Tensor]) -> dict[str, Tensor]:
        def find(name: str, shape: Shape) -> Tensor:
            """Return a moment; those of parameters that were never descended are 0."""
            return moments[name].float() if name in moments else torch.zeros(shape)

        translation = Translation(find)
        networks.fill_moments(translation)
        return translation.of(networks.trained)

    return {"steps": torch.tensor(max(steps)), "first": translated(first), "second": translated(second)}


def _parameters_of(*modules: str) -> Callable[[MLAgentsCheckpoint], Parameters]:
    def parameters(file: MLAgentsCheckpoint) -> Parameters:
        return {name: shape for module in modules for name, shape in file.parameters(module).items()}

    return parameters


# Algorithms -----------------------------------------------------------------------------------------------------------


def _networks(config: BehaviorConfig, spec: BehaviorSpec) -> _Networks:
    hidden = config.network_settings.hidden_type
    if hidden != "dense":
        raise Misfit([f"ML-Agents 1.1.0 has no network_settings.hidden_type {hidden}; remove the key"])
    if config.network_settings.privileged_observations:
        raise Misfit(["ML-Agents 1.1.0 has no network_settings.privileged_observations; remove the key"])
    match config:
        case PPOConfig():
            return _ppo(config, spec)
        case POCAConfig():
            return _poca(config, spec)
        case SACConfig():
            return _sac(config, spec)
        case CloneConfig():
            actor = Actor(spec, config.network_settings, torch.Generator())
            fill = partial(Translation.actor, actor=actor)
            return _Networks({"model": actor}, fill, [], [], fill)
        case _:
            raise Misfit([f"ML-Agents 1.1.0 has no trainer {config.trainer_type}"])


def _ppo(config: PPOConfig, spec: BehaviorSpec) -> _Networks:
    names, shared = _names(config), config.hyperparameters.shared_critic
    model = ActorCritic(
        spec, config.network_settings, signals=len(names), shared_critic=shared, generator=torch.Generator()
    )
    fill = partial(Translation.actor_critic, model=model, signals=names)
    descended = _parameters_of(POLICY) if shared else _parameters_of(POLICY, CRITIC)
    return _Networks(
        {"model": model},
        fill,
        list(model.named_parameters()),
        [("Optimizer:value_optimizer", descended)],
        fill,
        doubled=CRITIC if shared else "",
    )


def _poca(config: POCAConfig, spec: BehaviorSpec) -> _Networks:
    names, generator = _names(config), torch.Generator()
    actor = Actor(spec, config.network_settings, generator)
    critic = TeamCritic(spec, config.network_settings, len(names), generator)
    model = nn.ModuleDict({"actor": actor, "critic": critic})

    def fill(translation: Translation) -> None:
        translation.actor(actor)
        translation.team_critic(critic, actor.body.layout, names)

    optimizers = [("Optimizer:adam", _parameters_of(POLICY, CRITIC))]
    return _Networks({"model": model}, fill, list(model.named_parameters()), optimizers, fill)


def _sac(config: SACConfig, spec: BehaviorSpec) -> _Networks:
    names, generator = _names(config), torch.Generator()
    columns, branches = spec.actions.continuous_size, len(spec.actions.discrete_branches)
    actor = Actor(spec, config.network_settings, generator, head=config.head)
    critics = build_critics(spec, config.network_settings, len(names), generator)
    coefficients = torch.zeros(branches + bool(columns))
    entropies = {"entropy/discrete": (branches,), "entropy/continuous": (1,)}

    def fill(translation: Translation) -> None:
        translation.actor(actor)
        choices = max(spec.actions.mask_size, 1)
        if isinstance(critics, StackedCritics):
            translation.stacked_critics(critics, actor.body.layout, names, choices)
        else:
            translation.modular_critics(critics, names, choices)

    def fill_moments(translation: Translation) -> None:
        fill(translation)
        parts = [translation.find(name, shape) for name, shape in entropies.items()]
        translation.set(coefficients, torch.cat(parts)[: len(coefficients)])

    return _Networks(
        {"actor": actor, "critics": critics},
        fill,
        [
            *((f"actor.{name}", part) for name, part in actor.named_parameters()),
            *((f"critics.{name}", part) for name, part in critics.named_parameters()),
            ("log_coefficients", coefficients),
        ],
        [
            ("Optimizer:policy_optimizer", _parameters_of(POLICY)),
            ("Optimizer:value_optimizer", _parameters_of(Q_NETWORK, VALUE)),
            ("Optimizer:entropy_optimizer", lambda _: entropies),
        ],
        fill_moments,
    )


def _names(config: ReinforcementConfig) -> list[str]:
    """Return the names of the reward signals, in the order of the value heads."""
    return [name for name, _ in config.reward_signals.active()]


def _signals(config: ReinforcementConfig, spec: BehaviorSpec) -> dict[str, _Signal]:
    """Return the networks of reward signals, by the signals' names."""
    signals: dict[str, _Signal] = {}
    for name, signal in config.reward_signals.active():
        match signal:
            case CuriosityConfig():
                curiosity = CuriosityNetworks(signal, spec, torch.Generator())
                signals[name] = _Signal(curiosity, partial(Translation.curiosity, networks=curiosity, spec=spec))
            case RNDConfig():
                rnd = RNDNetworks(signal, spec, torch.Generator())
                signals[name] = _Signal(rnd, partial(Translation.rnd, networks=rnd))
            case GAILConfig():
                gail = Discriminator(signal, spec, torch.Generator())
                signals[name] = _Signal(gail, partial(Translation.gail, network=gail))
            case _:  # Ludus' own, and the game's rewards: the file has nothing for them
                pass
    return signals
