"""The first pass over a document: every key is known, known elsewhere, or a mistake.

It removes the keys that `server.training.foreign` lists (with a problem unless they are neutral) and unknown ones (with
the nearest legal key), so that the models, which come next, report what is wrong with the values of all others.
"""

import difflib
from collections.abc import Mapping
from typing import Any, Final, get_args, get_origin

from server.errors import InvalidConfig, Problem
from server.training.behavior import NetworkSettings, PPOConfig, PPOHyperparameters, RewardSignals
from server.training.document import Path
from server.training.foreign import KEYS, SAMPLERS, SECTIONS, TRAINERS, Foreign
from server.training.problems import join_path, show
from server.training.run import RunConfig
from server.training.values import Section

MAX_PROBLEMS: Final = 100
"""Mistakes that are listed, at most."""

_OLD_BEHAVIOR_KEYS: Final = frozenset(
    {"trainer", "thresholds", "use_recurrent", "max_steps", "summary_freq", "time_horizon"}
)
_HOMES: Final[Mapping[type[Section], Mapping[str, type[Section]]]] = {
    RunConfig: {"behaviors.NAME": PPOConfig},
    PPOConfig: {
        "hyperparameters": PPOHyperparameters,
        "network_settings": NetworkSettings,
        "reward_signals": RewardSignals,
    },
}
"""Sections below a section, for keys that were written one level too high."""
_RENAMED: Final = {
    "trainer": "trainer_type",
    "use_recurrent": "memory",
    "sequence_length": "memory",
    "memory_size": "memory",
    "pretraining": "behavioral_cloning",
}
"""Keys of old formats whose new names aren't similar."""


def screen(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Return the document without foreign and unknown keys, and what was wrong with those."""
    if _is_old(document):
        message = (
            "this is a format of ML-Agents before 0.17, without `behaviors`; convert it with "
            "`python -m mlagents.trainers.upgrade_config` first"
        )
        raise InvalidConfig([Problem("", "old_format", message)])
    screening = _Screening(document)
    return screening.cleaned, screening.problems


def _is_old(document: Mapping[str, Any]) -> bool:
    blocks = [value for value in document.values() if isinstance(value, dict)]
    return "behaviors" not in document and any(not _OLD_BEHAVIOR_KEYS.isdisjoint(block) for block in blocks)


def check_count(problems: list[Problem]) -> None:
    """Raise InvalidConfig if there are so many mistakes that listing more helps nobody."""
    if len(problems) >= MAX_PROBLEMS:
        more = Problem("", "too_many_problems", f"there may be more than these {MAX_PROBLEMS}; repair them first")
        raise InvalidConfig([*problems[:MAX_PROBLEMS], more])


class _Screening:
    """One pass."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.problems: list[Problem] = []
        defaults = document.get("default_settings")
        self._inherited_trainer = defaults.get("trainer_type") if isinstance(defaults, dict) else None
        self.cleaned: dict[str, Any] = self._section(RunConfig, dict(document), ())

    def _add(self, path: Path, code: str, message: str) -> None:
        self.problems.append(Problem(join_path(path), code, message))
        check_count(self.problems)

    def _section(self, section: type[Section], value: Any, path: Path) -> Any:
        """Screen a mapping that a section is made from; anything else is left to the model to refuse."""
        if not isinstance(value, dict):
            return value
        cleaned = {}
        foreign = KEYS.get(section, {})
        for key, item in self._supported(section, value, path).items():
            if key in section.model_fields:
                cleaned[key] = self._value(section, key, item, (*path, key))
            elif key in foreign:
                self._foreign(foreign[key], key, item, (*path, key))
            elif section is RunConfig and key in SECTIONS:
                self._foreign_section(key, item, (key,))
            else:
                self._unknown(section, key, path)
        if section is RewardSignals and value and not cleaned:
            cleaned["extrinsic"] = {}  # what is wrong with the others was said; that one is missing would mislead
        return cleaned

    def _value(self, section: type[Section], key: str, value: Any, path: Path) -> Any:
        """Screen the sections inside a key's value."""
        if section is RunConfig and key == "environment_parameters":
            return self._parameters(value, path)
        annotation = section.model_fields[key].annotation
        inner = _inner_section(annotation)
        if inner is None:
            return value
        if get_origin(annotation) is dict and isinstance(value, dict):
            return {name: self._section(inner, item, (*path, name)) for name, item in value.items()}
        return self._section(inner, value, path)

    def _supported(self, section: type[Section], value: dict[str, Any], path: Path) -> dict[str, Any]:
        """Take a trainer that isn't supported out of a behavior, with its hyperparameters."""
        if section is not PPOConfig:
            return value
        own = value.get("trainer_type")
        if isinstance(own, str) and own in TRAINERS:
            self._add((*path, "trainer_type"), "unsupported", TRAINERS[own].message(f"trainer_type: {own}"))
        effective = value.get("trainer_type", self._inherited_trainer)
        if not (isinstance(effective, str) and effective in TRAINERS):
            return value
        return {key: item for key, item in value.items() if key not in {"trainer_type", "hyperparameters"}}

    def _foreign(self, foreign: Foreign, key: str, value: object, path: Path) -> None:
        if foreign.accepts(value):
            return
        self._add(path, foreign.code, foreign.message(key))
        for inner in foreign.paths:
            if isinstance(value, dict) and value.get(inner) is not None:
                refusal = Foreign("path_refused", "remove it; recorded demonstrations are not supported yet")
                self._add((*path, inner), refusal.code, refusal.message(inner))

    def _foreign_section(self, name: str, value: Any, path: Path) -> None:
        if value is None:
            return
        if not isinstance(value, dict):
            self._add(path, "wrong_type", f"must be a mapping, but is {show(value)}")
            return
        for key, item in value.items():
            if key in SECTIONS[name]:
                self._foreign(SECTIONS[name][key], key, item, (*path, key))
            else:
                self._add((*path, key), "unknown_key", _unknown_message(key, sorted(SECTIONS[name]), []))

    def _unknown(self, section: type[Section], key: str, path: Path) -> None:
        foreign = [*KEYS.get(section, {}), *(SECTIONS if section is RunConfig else ())]
        message = _unknown_message(key, list(section.model_fields), foreign)
        for home, inner in _HOMES.get(section, {}).items():
            if key in inner.model_fields or key in KEYS.get(inner, {}):
                message = f"{show(key)} is not a key here; it belongs under `{home}`"
        self._add((*path, key), "unknown_key", message)

    def _parameters(self, value: Any, path: Path) -> Any:
        """Screen `environment_parameters`: constants, however they are written, are numbers."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            return value
        cleaned = {}
        for name, form in value.items():
            constant = _constant(form)
            if (what := _variable(constant)) is not None:
                self._add((*path, name), "unsupported", Foreign("unsupported", "write a number").message(what))
            else:
                cleaned[name] = constant
        return cleaned


def _inner_section(annotation: Any) -> type[Section] | None:
    """Return the section that a key's value is, or may be, or is a mapping of."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, Section):
            section: type[Section] = kind
            return section
    return None


def _variable(form: Any) -> str | None:
    """Name the way in which a parameter varies; None if it doesn't, or is nonsense."""
    match form:
        case {"curriculum": _}:
            return "curriculum"
        case {"sampler_type": str(kind)} if kind in SAMPLERS:
            return f"sampler_type: {kind}"
        case _:
            return None


def _constant(form: Any) -> Any:
    """Return the number behind a parameter that is constant, and any other form as it is."""
    match form:
        case {"curriculum": [{"value": only}]}:
            return _constant(only)
        case {"sampler_type": "constant", "sampler_parameters": {"value": value}}:
            return value
        case _:
            return form


def _unknown_message(key: str, legal: list[str], foreign: list[str]) -> str:
    """Say that a key is unknown, which one may have been meant, and which are legal."""
    nearest = difflib.get_close_matches(key[:60].lower(), [*legal, *foreign], n=1)
    meant = _RENAMED.get(key) if _RENAMED.get(key) in {*legal, *foreign} else next(iter(nearest), None)
    suggestion = f"; did you mean `{meant}`?" if meant else "."
    return f"{show(key)} is not a known key{suggestion} Legal here: {', '.join(legal)}"
