"""Resolves a document into a configuration, or reports all of its problems at once; compares two configurations."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from ludus.config.behavior import TRAINERS, BehaviorConfig
from ludus.config.environment_parameters import FORMS
from ludus.config.problems import CODES, Path, join_path, show, split_path
from ludus.config.rewards import RewardSignals
from ludus.config.run import RunConfig
from ludus.config.trainer import TrainerConfig
from ludus.json_values import JsonObject
from ludus.schemas import ConfigChange
from ludus.validation import in_words
from server.config.document import MAX_DEPTH, Document, parse_document
from server.config.key_validation import broken_words, check_count, validate_keys
from server.config.rules import problems_of, warnings_of
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

    Legal is what ML-Agents has; what of that can't be run yet, `server.config.rules` says. `local` accepts
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
        problems += problems_in(error, behaviors=behaviors)
    else:
        problems += problems_of(config)
        if not problems:
            doubts = (Problem(join_path(path), code, message) for path, code, message in warnings_of(config))
            return config, [*warnings, *doubts]
    check_count(problems)
    raise InvalidConfig(problems)


def merge_behaviors(defaults: JsonObject | None, behaviors: JsonObject) -> JsonObject:
    """Return behaviors' sections on top of `default_settings`: maps merge, everything else replaces.

    As in ML-Agents, a template is merged with all of its defaults filled in: what a schedule copies, it copied from the
    template, and `extrinsic` is inherited where the template lists no signals. What ML-Agents refuses has a meaning
    here: a behavior with another trainer inherits what was written, without hyperparameters and what only the
    template's trainer has, and a signal that is null is dropped. What isn't a mapping is left for the model to refuse.
    """
    template = defaults or {}
    filled = template
    if defaults is not None:
        with suppress(ValidationError):  # problems of the template are reported where it stands
            filled = _TEMPLATE.validate_python(defaults).model_dump(mode="json")
    template_trainer: str = template.get("trainer_type", "ppo")
    merged: JsonObject = {}
    for name, section in behaviors.items():
        if not isinstance(section, dict):
            merged[name] = section
            continue
        inherited = filled
        trainer: str = section.get("trainer_type", template_trainer)
        if trainer != template_trainer:
            legal = TRAINERS[trainer].model_fields.keys() - {"hyperparameters"}
            inherited = {key: value for key, value in template.items() if key in legal}
        merged[name] = behavior = _merge(inherited, section)
        if isinstance(signals := behavior.get("reward_signals"), dict):
            behavior["reward_signals"] = {key: signal for key, signal in signals.items() if signal is not None}
    return merged


def _merge(below: Mapping[str, object], above: Mapping[str, object]) -> JsonObject:
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = _merge(under, value) if isinstance(value, dict) and isinstance(under, dict) else value
    return merged


def apply_overrides(document: JsonObject, overrides: Mapping[str, object]) -> JsonObject:
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
        node: object = result
        for depth, key in enumerate(parents):
            node = node.get(key) if isinstance(node, dict) else None
            if node is not None and not isinstance(node, dict):
                message = f"is {show(node)}, not a mapping, so that nothing inside it can be overridden"
                raise InvalidConfig([Problem(join_path(parents[: depth + 1]), "wrong_type", message)])
        change: JsonObject = {last: value}
        for key in reversed(parents):
            change = {key: change}
        result = _merge(result, change)
    return result


def diff(old: RunConfig | JsonObject, new: RunConfig | JsonObject) -> list[ConfigChange]:
    """Return what changed, in the order of the new configuration; a whole section that came or went is one change."""
    before, after = (
        config.model_dump(mode="json") if isinstance(config, RunConfig) else config for config in (old, new)
    )
    return list(_changes(before, after, ()))


def _changes(old: JsonObject, new: JsonObject, above: Path) -> Iterator[ConfigChange]:
    for key, value in new.items():
        path = (*above, key)
        if key not in old:
            yield ConfigChange(path=join_path(path), kind="added", new=value)
        elif isinstance(value, dict) and isinstance(old[key], dict):
            yield from _changes(old[key], value, path)
        elif old[key] != value or isinstance(old[key], bool) != isinstance(value, bool):
            yield ConfigChange(path=join_path(path), kind="changed", old=old[key], new=value)
    for key, value in old.items():
        if key not in new:
            yield ConfigChange(path=join_path((*above, key)), kind="removed", old=value)


def problems_in(error: ValidationError, root: Path = (), behaviors: object = None) -> Iterator[Problem]:
    """Translate pydantic's errors, for the part of a configuration at the path `root`.

    An error of `default_settings` is not repeated for each of the `behaviors`, as written, that inherits it.
    """
    details = [
        (_path((*root, *detail["loc"]), detail), detail)
        for detail in error.errors(include_url=False)
        if detail["type"] != "default_factory_not_called"
    ]
    paths = {path for path, _ in details}
    for path, detail in details:
        inherited = path[:1] == ("behaviors",) and ("default_settings", *path[2:]) in paths
        if not inherited or _is_written(behaviors, path[1:]):
            yield _problem(path, detail)


def _is_written(tree: object, path: Path) -> bool:
    """Return whether a tree has a value at a path."""
    for key in path:
        if not (isinstance(tree, dict) and key in tree):
            return False
        tree = tree[key]
    return True


def _path(location: Path, detail: ErrorDetails) -> Path:
    """Return the path of an error: the key that a validator named, or the place where it arose.

    A location also has the tags of unions and a mark of keys, which are no parts of the document.
    """
    path: Path = ()
    tags: frozenset[str]
    for part in location:
        match path:
            case ("default_settings",) | ("behaviors", _):
                tags = frozenset(TRAINERS)
            case ("environment_parameters", _) | ("environment_parameters", _, _, _, "value"):
                tags = FORMS
            case (*_, "gail"):
                tags = frozenset({"one", "several"})
            case _:
                tags = frozenset()
        if part != "[key]" and part not in tags:
            path = (*path, part)
    key = detail.get("ctx", {}).get("at")
    return path if key is None else (*path[:-1], *key.split("."))


def _problem(path: Path, detail: ErrorDetails) -> Problem:
    kind, value = detail["type"], show(detail["input"])
    if kind == "missing":
        return Problem(join_path(path), "missing", _MISSING.get(str(path[-1]), "is missing"))
    if kind in CODES:
        return Problem(join_path(path), kind, detail["msg"])
    code, text = _TEXTS.get(kind, ("invalid_value", f"{in_words(detail)}, but is {{given}}"))
    words = broken_words(detail["input"]) if kind == "literal_error" else ""
    return Problem(join_path(path), code, text.format(given=value, **detail.get("ctx", {})) + words)
