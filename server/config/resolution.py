"""Resolves a document into a configuration, or reports all of its problems at once; compares two configurations."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from ludus.config.behavior import TRAINERS, BehaviorConfig, TrainerConfig
from ludus.config.environment_parameters import FORMS
from ludus.config.problems import CODES, Path, join_path, show, split_path
from ludus.config.rewards import RewardSignals
from ludus.config.run import RunConfig
from ludus.validation import in_words
from server.config.curriculum_checks import problems_of
from server.config.document import MAX_DEPTH, Document, parse_document
from server.config.key_validation import check_count, validate_keys
from server.config.lint import warnings_of
from server.kit.errors import InvalidConfig, Problem

MAX_OVERRIDES: Final = 1000
"""Most overrides of a document."""
_TEMPLATE: Final[TypeAdapter[TrainerConfig]] = TypeAdapter(BehaviorConfig)
*_SIGNALS, _LAST_SIGNAL = RewardSignals.model_fields
_MISSING: Final = {
    "behaviors": "is missing; name at least one behavior of the game, as `behaviors: {CartPole: {}}`, or give a "
    "template for all, `default_settings`",
    "reward_signals": f"has no signal; a behavior needs at least one of {', '.join(_SIGNALS)} and {_LAST_SIGNAL}, as "
    "`extrinsic: {}`",
    "demonstrations": "is missing; upload demonstrations (`ludus demonstration upload FILE`) and list their ids, as "
    "`demonstrations: [dem_...]`, or name a file in `demo_path` where a trainer runs alone",
}
_NO_MAPPING: Final = ("wrong_type", "must be a mapping, but is {given}; `{{}}` stands for all defaults")
_TEXTS: Final = {
    "greater_than": ("out_of_range", "must be greater than {gt}, but is {given}"),
    "greater_than_equal": ("out_of_range", "must be at least {ge}, but is {given}"),
    "less_than_equal": ("out_of_range", "must be at most {le}, but is {given}"),
    "too_short": ("out_of_range", "must have at least {min_length} entry; it has none"),
    "too_long": ("out_of_range", "must have at most {max_length} entries"),
    "model_type": _NO_MAPPING,
    "dict_type": _NO_MAPPING,
    "model_attributes_type": _NO_MAPPING,
    "list_type": ("wrong_type", "must be a list, but is {given}"),
    "string_type": ("wrong_type", "must be text, but is {given}"),
    "literal_error": ("invalid_value", "must be {expected}, but is {given}"),
}
"""Code and message for the errors of pydantic, by their types."""


def resolve(document: Document, *, local: bool = False) -> RunConfig:
    """Read a configuration (YAML or JSON text, or a mapping) and fill in every default.

    Legal is what ML-Agents has; what of that can't be run yet, `server.config.unsupported` says. `local` accepts
    paths: a trainer that runs alone reads demonstrations and checkpoints from its own disk.
    Raises InvalidConfig with every problem, each with its path.
    """
    return review(document, local=local)[0]


def review(document: Document, *, local: bool = False) -> tuple[RunConfig, list[Problem]]:
    """Return what `resolve` does, and what is legal but probably not meant: warnings, each with its path."""
    cleaned, problems, warnings = validate_keys(parse_document(document), local=local)
    defaults = cleaned.get("default_settings")
    behaviors = cleaned.get("behaviors")
    if isinstance(behaviors, dict):
        cleaned["behaviors"] = merge_behaviors(defaults if isinstance(defaults, dict) else None, behaviors)
    try:
        config = RunConfig.model_validate(cleaned)
    except ValidationError as error:
        problems += _own_problems(error.errors(include_url=False), behaviors)
    else:
        problems += problems_of(config)
        problems += _too_few_gpus(config)
        if not problems:
            return config, [*warnings, *warnings_of(config)]
    check_count(problems)
    raise InvalidConfig(problems)


def _too_few_gpus(config: RunConfig) -> Iterator[Problem]:
    """Yield the problem that a slot may lack the GPUs of `torch_settings.processes`.

    Not a rule of `RunConfig`: runs of earlier releases have such configurations, and learn in one process.
    """
    torch, gpus = config.torch_settings, config.resources.gpu
    if torch.processes == 1 or torch.device == "cpu":
        return
    device = torch.device or "cuda"
    needed = int(device.partition(":")[2] or 0) + torch.processes
    if gpus < needed:
        message = (
            f"is {torch.processes}, one GPU each from {device} on, but resources.gpu is {gpus}: the slot may have "
            f"fewer than {needed}; set resources.gpu to {needed}, processes to 1, or torch_settings.device to cpu"
        )
        yield Problem("torch_settings.processes", "contradiction", message)


def merge_behaviors(defaults: Mapping[str, Any] | None, behaviors: Mapping[str, Any]) -> dict[str, Any]:
    """Return behaviors' sections on top of `default_settings`: maps merge, everything else replaces.

    As in ML-Agents, a template is merged with all of its defaults filled in: what a schedule copies, it copied from the
    template, and `extrinsic` is inherited where the template lists no signals. What ML-Agents refuses has a meaning
    here: a behavior with another trainer inherits what was written, without hyperparameters and what only the
    template's trainer has, and a signal that is null is dropped. What isn't a mapping is left for the model to refuse.
    """
    filled = None if defaults is None else _filled(defaults)
    return {name: _merge_behavior(defaults or {}, filled or {}, own) for name, own in behaviors.items()}


def _filled(defaults: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a template with every default; as it is if it has problems, which are reported where it stands."""
    try:
        return _TEMPLATE.validate_python(defaults).model_dump(mode="json")
    except ValidationError:
        return defaults


def _merge_behavior(written: Mapping[str, Any], filled: Mapping[str, Any], own: Any) -> Any:
    if not isinstance(own, dict):
        return own
    trainer = written.get("trainer_type", "ppo")
    inherited = filled
    if (wanted := own.get("trainer_type", trainer)) != trainer:
        legal = TRAINERS[wanted].model_fields.keys() - {"hyperparameters"}
        inherited = {key: value for key, value in written.items() if key in legal}
    merged = _merge(inherited, own)
    signals = merged.get("reward_signals")
    if isinstance(signals, dict):
        merged["reward_signals"] = {name: signal for name, signal in signals.items() if signal is not None}
    return merged


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = _merge(under, value) if isinstance(value, dict) and isinstance(under, dict) else value
    return merged


def apply_overrides(document: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a parsed document with values replaced or added.

    `overrides` maps dotted paths (`behaviors.CartPole.max_steps`; a key with a dot in it stands in quotes) to values,
    or is itself a part of a document; mappings are merged into mappings, anything else replaces. Whether the result
    makes sense, `resolve` says. Raises InvalidConfig if a path is malformed, or leads into something that isn't a
    mapping.
    """
    if len(overrides) > MAX_OVERRIDES:  # each copies what is above its value
        message = f"there are more than {MAX_OVERRIDES} overrides; write them into the document"
        raise InvalidConfig([Problem("", "too_large", message)])
    result = dict(document)
    for dotted, value in parse_document(overrides).items() if overrides else ():
        try:
            *parents, last = split_path(dotted)
        except ValueError as error:
            raise InvalidConfig([Problem(dotted, "unknown_key", f"{error}")]) from error
        if len(parents) >= MAX_DEPTH:
            raise InvalidConfig([Problem(show(dotted), "too_deep", f"nested deeper than {MAX_DEPTH}")])
        _refuse_blocked(result, parents)
        change: dict[str, Any] = {last: value}
        for key in reversed(parents):
            change = {key: change}
        result = _merge(result, change)
    return result


def _refuse_blocked(document: Mapping[str, Any], parents: list[str]) -> None:
    """Raise InvalidConfig if a key on the way holds something else than a mapping; null and absent are fine."""
    node: Any = document
    for depth, key in enumerate(parents):
        node = node.get(key)
        if node is None:
            return
        if not isinstance(node, dict):
            path = join_path(parents[: depth + 1])
            message = f"is {show(node)}, not a mapping, so that nothing inside it can be overridden"
            raise InvalidConfig([Problem(path, "wrong_type", message)])


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two configurations."""

    path: str
    kind: Literal["added", "removed", "changed"]
    old: Any
    """None if added."""
    new: Any
    """None if removed."""


def diff(old: RunConfig | Mapping[str, Any], new: RunConfig | Mapping[str, Any]) -> list[Change]:
    """Return what changed, in the order of the new configuration; a whole section that came or went is one change."""
    return list(_changes(_plain(old), _plain(new), ()))


def _plain(config: RunConfig | Mapping[str, Any]) -> Mapping[str, Any]:
    return config.model_dump(mode="json") if isinstance(config, RunConfig) else config


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], path: Path) -> Iterator[Change]:
    for key, value in new.items():
        here = (*path, key)
        if key not in old:
            yield Change(join_path(here), "added", None, value)
        elif isinstance(value, dict) and isinstance(old[key], dict):
            yield from _changes(old[key], value, here)
        elif old[key] != value or isinstance(old[key], bool) != isinstance(value, bool):
            yield Change(join_path(here), "changed", old[key], value)
    for key, value in old.items():
        if key not in new:
            yield Change(join_path((*path, key)), "removed", value, None)


def problems_in(error: ValidationError, root: Path) -> list[Problem]:
    """Return pydantic's errors as problems, for the part of a configuration at the path `root`."""
    details: list[ErrorDetails] = [{**item, "loc": (*root, *item["loc"])} for item in error.errors(include_url=False)]
    return list(_own_problems(details, None))


def _own_problems(errors: Iterable[ErrorDetails], behaviors: Any) -> Iterable[Problem]:
    """Translate pydantic's errors; one of `default_settings` is not repeated for each behavior that inherits it."""
    details = [item for item in errors if item["type"] != "default_factory_not_called"]
    paths = {_path(item) for item in details}
    for item in details:
        path = _path(item)
        if path[:1] == ("behaviors",) and ("default_settings", *path[2:]) in paths and not _holds(behaviors, path[1:]):
            continue
        yield _problem(item, path)


def _holds(tree: Any, path: Path) -> bool:
    """Return whether a value was given at a path."""
    for key in path:
        if not (isinstance(tree, dict) and key in tree):
            return False
        tree = tree[key]
    return True


def _path(item: ErrorDetails) -> Path:
    """Return the path of an error: the key that a validator named, or the place where it arose."""
    path: Path = ()
    for part in item["loc"]:
        if part != "[key]" and not _is_variant(path, part):
            path = (*path, part)
    at = item.get("ctx", {}).get("at")
    return path if at is None else (*path[:-1], *at.split("."))


def _is_variant(path: Path, part: str | int) -> bool:
    """Return whether a part of an error's location is not a key, but the chosen member of a union."""
    if path == ("default_settings",) or (len(path) == 2 and path[0] == "behaviors"):
        return part in TRAINERS
    if path[:1] == ("environment_parameters",) and (len(path) == 2 or (path[-1] == "value" and len(path) == 5)):
        return part in FORMS
    return path[-1:] == ("gail",) and part in {"one", "several"}


def _problem(item: ErrorDetails, path: Path) -> Problem:
    """Return an error of pydantic as a problem."""
    kind, given, limits = item["type"], show(item["input"]), item.get("ctx", {})
    match kind:
        case _ if kind in CODES and kind != "missing":
            code, message = kind, item["msg"]
        case "missing":
            code, message = "missing", _MISSING.get(str(path[-1]), "is missing")
        case _:
            code, text = _TEXTS.get(kind, ("invalid_value", f"{in_words(item)}, but is {{given}}"))
            message = text.format(given=given, **limits)
    return Problem(join_path(path), code, message)
