"""Changes of a live run: the keys of a behavior that may change, and the configuration after a change.

`MUTABLE` has the keys that may still change, trainer by trainer: numbers that are read again for every update.
Everything else is laid down when a behavior begins (its networks, the memory for its experience, its rewards) and is
refused by name, with the reason; another run can begin with a checkpoint of this one (`ludus run branch`).

Linear schedules: a changed value, or a changed `max_steps`, draws the line again *from step 0*: at its step the run
then has what it would have had if it had been configured so from the beginning. `learning_rate` is where that line
begins, not what it is at the moment. ML-Agents does the same on `--resume` with a changed file.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from ludus.config.behavior import (
    BehaviorConfig,
    CloneConfig,
    DQNConfig,
    POCAConfig,
    PPOConfig,
    SACConfig,
    TrainerConfig,
)
from ludus.config.divergence import DivergenceSettings
from ludus.config.hyperparameters import PPOHyperparameters
from ludus.config.problems import Path, join_path, show, split_path
from ludus.config.run import RunConfig
from server.config.resolution import Change, diff, problems_in
from server.kit.errors import InvalidEdit, Problem

_SECTION: Final = frozenset({"max_steps", "checkpoint_interval", "keep_checkpoints"})
_RATE: Final = frozenset({"learning_rate", "learning_rate_schedule"})
_ON_POLICY: Final = _RATE | {
    *("beta", "beta_schedule", "epsilon", "epsilon_schedule", "lambd", "num_epoch", "max_grad_norm"),
    *("clip_value_loss", "vtrace"),
}
_EXPLORATION: Final = frozenset(
    {"exploration_schedule", "exploration_initial_eps", "exploration_final_eps", "exploration_steps"}
)
_GROUPS: Final = frozenset({"hyperparameters", "divergence"})
"""Keys of a behavior's section whose own keys change one by one."""


def _mutable(*keys: str) -> frozenset[str]:
    return _SECTION | {f"hyperparameters.{key}" for key in keys}


_LIMITS: Final = frozenset(f"divergence.{key}" for key in DivergenceSettings.model_fields)

MUTABLE: Final[Mapping[type[TrainerConfig], frozenset[str]]] = {
    PPOConfig: _mutable(*_ON_POLICY, "critic_learning_rate") | _LIMITS,
    POCAConfig: _mutable(*_ON_POLICY) | _LIMITS,
    SACConfig: _mutable(*_RATE, "tau") | _LIMITS,
    DQNConfig: _mutable(*_RATE, *_EXPLORATION, "tau", "target_update_interval", "importance_exponent") | _LIMITS,
    CloneConfig: _mutable(*_RATE),
}
"""The keys of each trainer's section that may change while a run goes on. A test holds it against the models."""

_REASONS: Final = {
    "trainer_type": "another trainer has other networks and optimizers",
    "network_settings": "the networks are built when the behavior begins",
    "reward_signals": "the critic has a head for each signal as it was at the beginning",
    "behavioral_cloning": "demonstrations are read when the behavior starts",
    "demonstrations": "they are read when the behavior begins",
    "initialize_from": "it is read when the behavior starts",
    "init_path": "it is read when the behavior starts",
    "self_play": "the opponents are kept as it says",
    "time_horizon": "the memory for experience is laid out by it",
    "hyperparameters.buffer_size": "the memory for experience is laid out by it",
    "hyperparameters.batch_size": "batches are laid out by it",
    "hyperparameters.steps_per_update": "gradient steps are counted by it from the beginning",
    "hyperparameters.reward_signal_steps_per_update": "gradient steps are counted by it from the beginning",
    "hyperparameters.shared_critic": "the networks are built when the behavior begins",
}
"""Why a key stays what it was, as the middle of a sentence."""
_BEHAVIORS: Final = TypeAdapter(dict[str, BehaviorConfig])
_INSTEAD: Final = "branch off another run that has it from the beginning (`ludus run branch`)"


def amend(config: RunConfig, wanted: Mapping[str, Mapping[str, Any]]) -> tuple[RunConfig, list[Change]]:
    """Return a run's configuration with changes, and what has changed by that, derived values included.

    `wanted`: parts of behaviors' sections, by the behaviors' names. Raises InvalidEdit with every problem, each with
    its path.
    """
    sections = _sections(config)
    problems = list(_merge(config, wanted, sections))
    try:
        amended = _with_sections(config, sections)
    except ValidationError as error:
        raise InvalidEdit([*problems, *problems_in(error, ("behaviors",))]) from error
    if not problems:
        problems += _beside_the_models(config, amended)
    if problems:
        raise InvalidEdit(problems)
    return amended, diff(config, amended)


def apply_changes(config: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """Return a configuration with new values by their paths (`Change.path`), which `amend` has found to be legal."""
    sections = _sections(config)
    for path, value in changes.items():
        _, *parents, last = split_path(path)
        section: Any = sections
        for key in parents:
            section = section[key]
        section[last] = value
    return _with_sections(config, sections)


def _sections(config: RunConfig) -> dict[str, Any]:
    """Return the sections of the behaviors as plain values. Nothing else in a configuration changes."""
    return {name: section.model_dump(mode="json") for name, section in config.behaviors.items()}


def _with_sections(config: RunConfig, sections: Mapping[str, Any]) -> RunConfig:
    return config.model_copy(update={"behaviors": _BEHAVIORS.validate_python(sections)})


def _merge(config: RunConfig, wanted: Mapping[str, Mapping[str, Any]], sections: dict[str, Any]) -> Iterator[Problem]:
    """Put what may change into the behaviors' sections; yield what is wrong with the rest."""
    for name, part in wanted.items():
        behavior = config.behaviors.get(name)
        if behavior is None:
            yield Problem(join_path(("behaviors", name)), "not_found", _no_behavior(name, config))
            continue
        section = sections[name]
        for path, value in _leaves(part, section):
            problem = _refusal(behavior, section, name, path, value)
            if problem is not None:
                yield problem
            elif len(path) == 2:
                section[path[0]][path[1]] = value
            else:
                section[path[0]] = value


def _leaves(part: Mapping[str, Any], section: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    """Yield the keys that are given, those of groups that the section has one by one."""
    for key, value in part.items():
        if key in _GROUPS and key in section and isinstance(value, dict):
            yield from (((key, inner), item) for inner, item in value.items())
        else:
            yield (key,), value


def _refusal(behavior: TrainerConfig, section: Mapping[str, Any], name: str, path: Path, value: Any) -> Problem | None:
    """Return why a key cannot be changed; None if it can, or if its value stays the same."""
    dotted, here = ".".join(map(str, path)), join_path(("behaviors", name, *path))
    mutable = MUTABLE[type(behavior)]
    holder: Any = section[str(path[0])] if len(path) == 2 else section
    if len(path) == 1 and path[0] in _GROUPS and path[0] in section:
        return Problem(here, "wrong_type", f"must be a mapping, but is {show(value)}")
    if path[-1] not in holder:
        near = get_close_matches(str(path[-1]), names := {key.rpartition(".")[2]: key for key in mutable}, 1)
        meant = f"; did you mean `{names[near[0]]}`?" if near else "."
        message = f"{show(path[-1])} is not a key of {behavior.trainer_type} here{meant} {_legal(mutable)}"
        return Problem(here, "unknown_key", message)
    if dotted in mutable:
        return None
    if holder[path[-1]] == value:
        return None
    reason = _REASONS.get(dotted) or _REASONS.get(str(path[0])) or "it is laid down when the behavior begins"
    message = f"cannot be changed in a live run: {reason}; {_INSTEAD}. {_legal(mutable)}"
    return Problem(here, "immutable", message)


def _beside_the_models(old: RunConfig, new: RunConfig) -> Iterator[Problem]:
    """Yield what is a legal configuration, but can't be made of the one that the run has."""
    for name, behavior in new.behaviors.items():
        before, after = old.behaviors[name].hyperparameters, behavior.hyperparameters
        if isinstance(before, PPOHyperparameters) and isinstance(after, PPOHyperparameters):
            rates = (before.critic_learning_rate, after.critic_learning_rate)
            if (rates[0] is None) != (rates[1] is None):
                here = join_path(("behaviors", name, "hyperparameters", "critic_learning_rate"))
                message = (
                    f"was {show(rates[0])} and cannot become {show(rates[1])}: whether the critic's parameters have a "
                    f"rate of their own is laid down when the behavior begins; {_INSTEAD}"
                )
                yield Problem(here, "immutable", message)


def _no_behavior(name: str, config: RunConfig) -> str:
    there = ", ".join(sorted(config.behaviors)[:20]) or "none"
    template = "; those that `default_settings` trains cannot be changed one by one" if config.default_settings else ""
    return f"the configuration names no behavior {show(name)}; it names {there}{template}"


def _legal(mutable: frozenset[str]) -> str:
    return f"What can be changed: {', '.join(sorted(mutable))}"
