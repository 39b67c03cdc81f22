"""The first pass over a document: every key is known, known elsewhere, or refused.

It removes the keys that `server.config.mlagents_keys` lists (with a problem unless they are neutral) and unknown ones
(with the nearest legal key), so that the models, which come next, report what is wrong with the values of all others.
Keys that only reward signals of older files have are rewritten, with a warning.
"""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from ludus.config.behavior import TRAINERS, PPOConfig, TrainerConfig
from ludus.config.environment_parameters import SAMPLERS, Curriculum, Lesson
from ludus.config.hyperparameters import Hyperparameters
from ludus.config.problems import Path, join_path, show
from ludus.config.rewards import IntrinsicConfig, RewardSignals
from ludus.config.run import RunConfig
from ludus.config.values import Section, sections_in
from server.config.mlagents_keys import UPGRADE, MLAgentsKey, mlagents_keys_of, path_keys
from server.kit.errors import InvalidConfig, Problem

MAX_PROBLEMS: Final = 100
"""Problems that are listed, at most."""

_OLD_BEHAVIOR_KEYS: Final = frozenset(
    {"trainer", "thresholds", "use_recurrent", "max_steps", "summary_freq", "time_horizon"}
)
_RENAMED: Final = {
    "trainer": "trainer_type",
    "use_recurrent": "memory",
    "sequence_length": "memory",
    "memory_size": "memory",
    "pretraining": "behavioral_cloning",
}
"""Keys of old formats whose new names aren't similar."""


class ValidatedKeys(NamedTuple):
    """The result of the first pass: a cleaned document, problems and warnings."""

    document: dict[str, Any]
    """Without unknown keys and those of ML-Agents alone."""
    problems: list[Problem]
    warnings: list[Problem]


def validate_keys(document: Mapping[str, Any], *, local: bool = False) -> ValidatedKeys:
    """Check a document's keys. `local`: paths are meant for this disk."""
    if _is_old(document):
        message = f"this is a format of ML-Agents before 0.17, without `behaviors`; {UPGRADE}"
        raise InvalidConfig([Problem("", "old_format", message)])
    validation = _KeyValidation(document, local=local)
    return ValidatedKeys(validation.cleaned, validation.problems, validation.warnings)


def _is_old(document: Mapping[str, Any]) -> bool:
    if not document.keys().isdisjoint({"behaviors", "default_settings"}):
        return False
    return any(isinstance(value, dict) and not _OLD_BEHAVIOR_KEYS.isdisjoint(value) for value in document.values())


def check_count(problems: list[Problem]) -> None:
    """Raise InvalidConfig if there are so many problems that a longer list is useless."""
    if len(problems) >= MAX_PROBLEMS:
        more = Problem("", "too_many_problems", f"there may be more than these {MAX_PROBLEMS}; repair them first")
        raise InvalidConfig([*problems[:MAX_PROBLEMS], more])


class _KeyValidation:
    """One pass."""

    def __init__(self, document: Mapping[str, Any], *, local: bool) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self._local = local
        defaults = document.get("default_settings")
        self._inherited_trainer = defaults.get("trainer_type", "ppo") if isinstance(defaults, dict) else "ppo"
        signals = defaults.get("reward_signals") if isinstance(defaults, dict) else None
        self._inherited_signals = frozenset(signals) if isinstance(signals, dict) else frozenset()
        self.cleaned: dict[str, Any] = self._section(RunConfig, dict(document), ())

    def _add(self, path: Path, code: str, message: str) -> None:
        self.problems.append(Problem(join_path(path), code, message))
        check_count(self.problems)

    def _warn(self, path: Path, code: str, message: str) -> None:
        self.warnings.append(Problem(join_path(path), code, message))

    def _section(self, section: type[Section], value: Any, path: Path) -> Any:
        """Check a mapping that a section is made from; anything else is left to the model to refuse."""
        if not isinstance(value, dict):
            return value
        if issubclass(section, IntrinsicConfig):
            value = self._modern(value, path)
        cleaned = {}
        mlagents_key = mlagents_keys_of(section)
        for key, item in value.items():
            if key in section.model_fields:
                cleaned[key] = self._value(section, key, item, (*path, key))
            elif key in mlagents_key:
                self._refuse_mlagents_key(mlagents_key[key], key, item, (*path, key))
            elif issubclass(section, TrainerConfig) and key == "framework":
                self._warn((*path, key), "deprecated", "`framework` has no effect: PyTorch is the only one; remove it")
            else:
                self._unknown(section, key, path)
        if section is RewardSignals and value and not cleaned:
            cleaned["extrinsic"] = {}  # what is wrong with the others was said; that one is missing would mislead
        return cleaned

    def _value(self, section: type[Section], key: str, value: Any, path: Path) -> Any:
        """Check the sections inside a key's value."""
        if section is RunConfig and key == "environment_parameters":
            return {} if value is None else self._parameters(value, path)
        if section is RunConfig and key == "default_settings":
            return self._behavior(value, path)
        if section is RunConfig and key == "behaviors" and isinstance(value, dict):
            return {name: self._behavior(item, (*path, name)) for name, item in value.items()}
        if section is Lesson and key == "value":
            return self._parameter(value, path)
        refused = None if self._local else path_keys(section).get(key)
        if refused is not None and not refused.accepts(value):
            self._add(path, refused.code, refused.message(key, value))
            return "refused"  # any text: the models have nothing to add
        inner = next(sections_in(section.model_fields[key].annotation), None)
        if inner is None:
            return value
        if isinstance(value, list):
            return [self._section(inner, item, (*path, index)) for index, item in enumerate(value)]
        return self._section(inner, value, path)

    def _behavior(self, value: Any, path: Path) -> Any:
        """Screen a behavior's section, or the template of all. Hyperparameters of no known trainer are not judged."""
        if not isinstance(value, dict):
            return value
        effective = value.get("trainer_type", self._inherited_trainer)
        trainer = TRAINERS.get(effective) if isinstance(effective, str) else None
        if trainer is not None:
            return self._section(trainer, value, path)
        if "trainer_type" in value:
            *others, last = (repr(name) for name in TRAINERS)
            message = f"must be {', '.join(others)} or {last}, but is {show(effective)}"
            self._add((*path, "trainer_type"), "invalid_value", message)
        judged = {key: item for key, item in value.items() if key not in {"trainer_type", "hyperparameters"}}
        return {"trainer_type": "ppo", **self._section(PPOConfig, judged, path)}

    def _modern(self, signal: dict[str, Any], path: Path) -> dict[str, Any]:
        """Return a signal that learns without what ML-Agents tolerates there, which it drops with a warning too."""
        modern = dict(signal)
        size = modern.pop("encoding_size", None)
        if size is not None:
            message = "`encoding_size` is deprecated: write `network_settings: {hidden_units: ...}`"
            if path[0] == "behaviors" and path[3] in self._inherited_signals:
                message += "; here it has no effect, since `default_settings` says what the signal's network is"
            else:
                modern.setdefault("network_settings", {"hidden_units": size})
            self._warn((*path, "encoding_size"), "deprecated", message)
        network = modern.get("network_settings")
        if isinstance(network, dict) and network.get("memory") is not None:
            message = "reward signals have no memory; it is dropped, as ML-Agents does"
            self._warn((*path, "network_settings", "memory"), "no_effect", message)
            modern["network_settings"] = {**network, "memory": None}
        return modern

    def _refuse_mlagents_key(self, mlagents_key: MLAgentsKey, key: str, value: object, path: Path) -> None:
        if mlagents_key.accepts(value):
            return
        self._add(path, mlagents_key.code, mlagents_key.message(key))

    def _unknown(self, section: type[Section], key: str, path: Path) -> None:
        message = _unknown_message(key, list(section.model_fields), list(mlagents_keys_of(section)))
        if home := next(
            (home for home, inner in _homes(section) if key in {*inner.model_fields, *mlagents_keys_of(inner)}), None
        ):
            message = f"{show(key)} is not a key here; it belongs under `{home}`"
        elif others := _trainers_with(section, key):
            message = (
                f"{show(key)} is a key of `trainer_type: {'` and `'.join(others)}`, not of this trainer; remove it"
            )
        elif path[:1] in {("behaviors",), ("default_settings",)} and (home := _home_in_behavior(key)):
            message = f"{show(key)} is not a key here; it belongs under `{home}`"
        self._add((*path, key), "unknown_key", message)

    def _parameters(self, value: Any, path: Path) -> Any:
        """Screen `environment_parameters`, each by the form that it has."""
        if not isinstance(value, dict):
            return value
        return {name: self._parameter(form, (*path, name)) for name, form in value.items()}

    def _parameter(self, form: Any, path: Path) -> Any:
        """Screen a sampler or a curriculum. Anything else is left to the model."""
        match form:
            case {"curriculum": _}:
                return self._section(Curriculum, form, path)
            case {"sampler_type": str(kind)} if kind in SAMPLERS:
                return self._section(SAMPLERS[kind], form, path)
            case _:
                return form


def _homes(section: type[Section]) -> Iterator[tuple[str, type[Section]]]:
    """Yield the sections below a section, for keys that were written one level too high."""
    if section is RunConfig:
        yield from (("behaviors.NAME", trainer) for trainer in TRAINERS.values())
    for key, field in section.model_fields.items():
        yield from ((key, inner) for inner in sections_in(field.annotation))


def _home_in_behavior(key: str) -> str | None:
    """Return the section of a behavior that has a key, for keys that were written in another one."""
    for trainer in TRAINERS.values():
        if key in trainer.model_fields:
            return "behaviors.NAME"
        for home, section in _homes(trainer):
            if key in section.model_fields:
                return home
            for name, inner in _homes(section):
                if key in inner.model_fields:
                    return f"{home}.{name}"
    return None


def _trainers_with(section: type[Section], key: str) -> list[str]:
    """Name the trainers that have a key which this one, or its hyperparameters, has not."""
    if issubclass(section, TrainerConfig):
        return [name for name, trainer in TRAINERS.items() if key in trainer.model_fields]
    if issubclass(section, Hyperparameters):
        numbers = {
            name: sections_in(each.model_fields["hyperparameters"].annotation) for name, each in TRAINERS.items()
        }
        return [name for name, (section,) in numbers.items() if key in section.model_fields]
    return []


def _unknown_message(key: str, legal: list[str], mlagents_key: list[str]) -> str:
    """Return the problem of an unknown key, with the most similar legal key and the list of legal ones."""
    nearest = difflib.get_close_matches(key[:60].lower(), [*legal, *mlagents_key], n=1)
    meant = _RENAMED.get(key) if _RENAMED.get(key) in {*legal, *mlagents_key} else next(iter(nearest), None)
    suggestion = f"; did you mean `{meant}`?" if meant else "."
    return f"{show(key)} is not a known key{suggestion} Legal here: {', '.join(legal)}"
