"""Changes of a live run: the keys of a behavior that may change, and the configuration after a change.

The keys that may still change are in `amendable` of each trainer's configuration: numbers that are read again for every
update.
Everything else is laid down when a behavior begins (its networks, the memory for its experience, its rewards) and is
refused by name, with the reason; another run can begin with a checkpoint of this one (`ludus run branch`).

Linear schedules: a changed value, or a changed `max_steps`, draws the line again *from step 0*: at its step the run
then has what it would have had if it had been configured so from the beginning. `learning_rate` is where that line
begins, not what it is at the moment. ML-Agents does the same on `--resume` with a changed file.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Final

from pydantic import TypeAdapter, ValidationError

from ludus.config.behavior import BehaviorConfig
from ludus.config.hyperparameters import PPOHyperparameters
from ludus.config.problems import Path, join_path, show, split_path
from ludus.config.recording import RecordConfig
from ludus.config.run import RunConfig
from ludus.config.trainer import TrainerConfig
from ludus.json_values import JsonObject
from ludus.schemas import ConfigChange
from server.config.resolution import diff, problems_in
from server.kit.errors import InvalidEdit, Problem

_GROUPS: Final = frozenset({"hyperparameters", "divergence"})
"""Keys of a behavior's section whose own keys change one by one."""
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


def amend(
    config: RunConfig, edits: Mapping[str, Mapping[str, object]], record: object = None
) -> tuple[RunConfig, list[ConfigChange]]:
    """Return a run's configuration with changes, and what has changed by that, derived values included.

    `edits`: parts of behaviors' sections, by the behaviors' names. `record`: of `simulators.record`, as configurations
    write it; keys that it lacks stay. Raises InvalidEdit with every problem, each with its path.
    """
    sections = _sections(config)
    problems = list(_merge(config, edits, sections))
    former, config = config, _recording(config, record, problems)
    try:
        amended = _with_sections(config, sections)
    except ValidationError as error:
        raise InvalidEdit([*problems, *problems_in(error, ("behaviors",))]) from error
    if not problems:
        problems += _rate_problems(config, amended)
    if problems:
        raise InvalidEdit(problems)
    return amended, diff(former, amended)


def _recording(config: RunConfig, record: object, problems: list[Problem]) -> RunConfig:
    """Return a configuration with another `simulators.record`; what is wrong with that is added to `problems`."""
    if record is None:
        return config
    present = config.simulators.record.model_dump()
    try:
        given = record if isinstance(record, dict) else {"share": RecordConfig.model_validate(record).share}
        simulators = {"record": RecordConfig.model_validate({**present, **given})}
    except ValidationError as error:
        problems += problems_in(error, ("simulators", "record"))
        return config
    return config.model_copy(update={"simulators": config.simulators.model_copy(update=simulators)})


def apply_changes(config: RunConfig, changes: Mapping[str, object]) -> RunConfig:
    """Return a configuration with new values by their paths (`ConfigChange.path`), which `amend` has found legal."""
    sections = _sections(config)
    record = config.simulators.record.model_dump()
    for path, value in changes.items():
        root, *parents, last = split_path(path)
        section = sections
        if root == "simulators":
            parents, section = [], record
        for key in parents:
            section = section[key]
        section[last] = value
    config = _recording(config, record, [])
    return _with_sections(config, sections)


def _sections(config: RunConfig) -> JsonObject:
    """Return the sections of the behaviors as plain values. But `simulators.record` nothing else changes."""
    return {name: section.model_dump(mode="json") for name, section in config.behaviors.items()}


def _with_sections(config: RunConfig, sections: JsonObject) -> RunConfig:
    return config.model_copy(update={"behaviors": _BEHAVIORS.validate_python(sections)})


def _merge(config: RunConfig, edits: Mapping[str, Mapping[str, object]], sections: JsonObject) -> Iterator[Problem]:
    """Put what may change into the behaviors' sections; yield what is wrong with the rest."""
    for name, edit in edits.items():
        behavior = config.behaviors.get(name)
        if behavior is None:
            names = ", ".join(sorted(config.behaviors)[:20]) or "none"
            message = f"the configuration names no behavior {show(name)}; it names {names}"
            if config.default_settings:
                message += "; those that `default_settings` trains cannot be changed one by one"
            yield Problem(join_path(("behaviors", name)), "not_found", message)
            continue
        section = sections[name]
        for key, value in edit.items():
            if key not in _GROUPS or key not in section:
                yield from _set(behavior, section, ("behaviors", name, key), key, value)
            elif isinstance(value, dict):
                for inner, item in value.items():
                    yield from _set(behavior, section[key], ("behaviors", name, key, inner), f"{key}.{inner}", item)
            else:
                message = f"must be a mapping, but is {show(value)}"
                yield Problem(join_path(("behaviors", name, key)), "wrong_type", message)


def _set(behavior: TrainerConfig, section: JsonObject, path: Path, dotted: str, value: object) -> Iterator[Problem]:
    """Set the last key of a path in its section, or yield why it cannot be changed. An equal value is no change."""
    mutable = behavior.amendable
    key = str(path[-1])
    legal = f"What can be changed: {', '.join(sorted(mutable))}"
    if key not in section:
        near = get_close_matches(key, names := {name.rpartition(".")[2]: name for name in mutable}, 1)
        meant = f"; did you mean `{names[near[0]]}`?" if near else "."
        message = f"{show(key)} is not a key of {behavior.trainer_type} here{meant} {legal}"
        yield Problem(join_path(path), "unknown_key", message)
    elif dotted in mutable:
        section[key] = value
    elif section[key] != value:
        default = "it is laid down when the behavior begins"
        reason = _REASONS.get(dotted) or _REASONS.get(dotted.partition(".")[0], default)
        message = f"cannot be changed in a live run: {reason}; {_INSTEAD}. {legal}"
        yield Problem(join_path(path), "immutable", message)


def _rate_problems(old: RunConfig, new: RunConfig) -> Iterator[Problem]:
    """Yield critics' rates that are legal, but can't be made of what the run has."""
    for name, behavior in new.behaviors.items():
        before, after = old.behaviors[name].hyperparameters, behavior.hyperparameters
        if isinstance(before, PPOHyperparameters) and isinstance(after, PPOHyperparameters):
            former, rate = before.critic_learning_rate, after.critic_learning_rate
            if (former is None) != (rate is None):
                message = (
                    f"was {show(former)} and cannot become {show(rate)}: whether the critic's parameters have a "
                    f"rate of their own is laid down when the behavior begins; {_INSTEAD}"
                )
                path = join_path(("behaviors", name, "hyperparameters", "critic_learning_rate"))
                yield Problem(path, "immutable", message)
