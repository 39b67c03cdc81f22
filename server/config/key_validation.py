"""The keys of a document: every one is known, known elsewhere, or refused. The first pass, before the models'.

It removes the keys that `KEYS` lists (with a problem unless they are neutral) and unknown ones (with the nearest legal
key), so that the models report what is wrong with the values of all others. Keys that only reward signals of older
files have are rewritten, with a warning.

A key of ML-Agents' format, current or former, that Ludus does not act on is never ignored silently: it is accepted only
where it can't matter: null, its default in ML-Agents (exported files print every default), or a value that means what
Ludus does anyway. Keys that are legal but can't be run yet are in `server.config.rules`.
"""

import difflib
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from ludus.config.behavior import TRAINERS, PPOConfig
from ludus.config.builds import EnvironmentSettings
from ludus.config.environment_parameters import SAMPLERS, Curriculum, Lesson
from ludus.config.hyperparameters import Hyperparameters, POCAHyperparameters, SACHyperparameters
from ludus.config.imitation import FromDemonstrations
from ludus.config.problems import Path, join_path, show
from ludus.config.rewards import ExtrinsicConfig, RewardSignals
from ludus.config.run import CheckpointSettings, RunConfig
from ludus.config.signal import IntrinsicConfig
from ludus.config.trainer import TrainerConfig
from ludus.config.values import Extensible, Section, sections_in
from ludus.json_values import JsonObject
from ludus.plugins import broken
from server.kit.errors import InvalidConfig, Problem

MAX_PROBLEMS: Final = 100
"""Problems that are listed, at most."""

_REASONS: Final = {
    "unsupported": "is legal in ML-Agents, but Ludus does not support it yet",
    "path_refused": "is a path, and paths never mean the server's disk",
    "old_format": "is of an older format",
    "unknown_key": "is not a key of this trainer",
}


@dataclass(frozen=True, slots=True)
class MLAgentsKey:
    """A key of ML-Agents' format, current or former, that Ludus doesn't act on."""

    code: Literal["unsupported", "path_refused", "old_format", "unknown_key"]
    instead: str
    """The replacement, as the end of a sentence."""
    neutral: tuple[object, ...] = ()
    """JsonObject beside null that are accepted, since they change nothing."""
    inert: bool = False
    """Every mapping is accepted: ML-Agents doesn't use it either."""

    def accepts(self, value: object) -> bool:
        """Return whether a value changes nothing. Truth values are not numbers."""
        if value is None or (self.inert and isinstance(value, dict)):
            return True
        return any(isinstance(value, bool) == isinstance(item, bool) and value == item for item in self.neutral)

    def message(self, key: str, value: object = None) -> str:
        """Return the problem and its remedy; a given file stands for FILE."""
        file = shlex.quote(value) if isinstance(value, str) and 0 < len(value) <= 300 else "FILE"
        return f"`{key}` {_REASONS[self.code]}: {self.instead.replace('FILE', file)}"


UPGRADE: Final = "convert the file first: `ludus config upgrade FILE`"
"""The remedy for a file of an older format."""

KEYS: Final[Mapping[type[Section], Mapping[str, MLAgentsKey]]] = {
    RunConfig: {
        "parameter_randomization": MLAgentsKey("old_format", UPGRADE),
        "curriculum": MLAgentsKey("old_format", UPGRADE),
    },
    TrainerConfig: {"output_path": MLAgentsKey("unknown_key", "remove it; ML-Agents 1.1.0 refuses it, too")},
    SACHyperparameters: {
        "shared_critic": MLAgentsKey(
            "unknown_key",
            "remove it; the Q networks of SAC also see the actions, and have bodies of their own",
            (False,),
        )
    },
    POCAHyperparameters: {
        "shared_critic": MLAgentsKey(
            "unknown_key", "remove it; the critic of POCA sees the whole group, and has a body of its own", (False,)
        )
    },
    ExtrinsicConfig: {
        "network_settings": MLAgentsKey("unsupported", "remove it; extrinsic rewards need no network", inert=True)
    },
}
"""Keys that sections of Ludus, and those derived from them, don't have."""

PATHS: Final[Mapping[type[Section], Mapping[str, MLAgentsKey]]] = {
    EnvironmentSettings: {
        "env_path": MLAgentsKey(
            "path_refused", "start the game yourself and let it dial in (`ludus unity --env`, `ludus simulate`)"
        )
    },
    CheckpointSettings: {
        "initialize_from": MLAgentsKey(
            "path_refused",
            "remove it, and name the id of a checkpoint of that run in `initialize_from` of each behavior",
        ),
        "results_dir": MLAgentsKey("path_refused", "remove it, and download checkpoints from the server", ("results",)),
    },
    TrainerConfig: {
        "init_path": MLAgentsKey(
            "path_refused",
            "upload the file with `ludus checkpoint upload FILE`, and name its id, or that of a run's checkpoint, in "
            "`initialize_from` here",
        )
    },
    FromDemonstrations: {
        "demo_path": MLAgentsKey(
            "path_refused",
            "upload the file with `ludus demonstration upload FILE`, and name its id in `demonstrations` here",
        )
    },
}
"""Keys that sections have, but that are paths: only a trainer that runs alone may be given them."""


def keys_of(table: Mapping[type[Section], Mapping[str, MLAgentsKey]], section: type[Section]) -> dict[str, MLAgentsKey]:
    """Return the keys that `KEYS` or `PATHS` has for a section, its own and those of its parents."""
    return {key: entry for parent in section.__mro__ for key, entry in table.get(parent, {}).items()}


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


def hyperparameters_of(trainer: type[TrainerConfig]) -> type[Section]:
    """Return the section of a trainer's numbers."""
    (section,) = sections_in(trainer.model_fields["hyperparameters"].annotation)
    return section


class ValidatedKeys(NamedTuple):
    """The result of the first pass: a cleaned document, problems and warnings."""

    document: JsonObject
    """Without unknown keys and those of ML-Agents alone."""
    problems: list[Problem]
    warnings: list[Problem]


def validate_keys(document: JsonObject, *, local: bool = False) -> ValidatedKeys:
    """Check a document's keys. `local`: paths are meant for this disk."""
    if document.keys().isdisjoint({"behaviors", "default_settings"}) and any(
        isinstance(value, dict) and not _OLD_BEHAVIOR_KEYS.isdisjoint(value) for value in document.values()
    ):
        message = f"this is a format of ML-Agents before 0.17, without `behaviors`; {UPGRADE}"
        raise InvalidConfig([Problem("", "old_format", message)])
    validation = _KeyValidation(document, local=local)
    return ValidatedKeys(validation.section(RunConfig, document, ()), validation.problems, validation.warnings)


def check_count(problems: list[Problem]) -> None:
    """Raise InvalidConfig if there are so many problems that a longer list is useless."""
    if len(problems) >= MAX_PROBLEMS:
        last = Problem("", "too_many_problems", f"there may be more than these {MAX_PROBLEMS}; repair them first")
        raise InvalidConfig([*problems[:MAX_PROBLEMS], last])


class _KeyValidation:
    """One pass."""

    def __init__(self, document: JsonObject, *, local: bool) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self._local = local
        template = document.get("default_settings")
        self._template: JsonObject = template if isinstance(template, dict) else {}

    def _add(self, path: Path, code: str, message: str) -> None:
        self.problems.append(Problem(join_path(path), code, message))
        check_count(self.problems)

    def _warn(self, path: Path, code: str, message: str) -> None:
        self.warnings.append(Problem(join_path(path), code, message))

    def section(self, section: type[Section], written: JsonObject, path: Path) -> JsonObject:
        """Return the mapping that a section is made from without the keys that it does not have."""
        if issubclass(section, IntrinsicConfig):
            written = self._modern(written, path)
        cleaned: JsonObject = {}
        mlagents_keys = keys_of(KEYS, section)
        for key, value in written.items():
            if key in section.model_fields:
                cleaned[key] = self._value(section, key, value, (*path, key))
            elif key in mlagents_keys:
                if not mlagents_keys[key].accepts(value):
                    self._add((*path, key), mlagents_keys[key].code, mlagents_keys[key].message(key))
            elif issubclass(section, TrainerConfig) and key == "framework":
                self._warn((*path, key), "deprecated", "`framework` has no effect: PyTorch is the only one; remove it")
            else:
                self._add((*path, key), "unknown_key", _unknown(section, key, path))
        if section is RewardSignals and written and not cleaned:
            cleaned["extrinsic"] = {}  # what is wrong with the others was said; that one is missing would mislead
        return cleaned

    def _value(self, section: type[Section], key: str, value: object, path: Path) -> object:
        """Check the sections inside a key's value. What isn't a mapping is left to the model to refuse."""
        if section is RunConfig:
            match key, value:
                case "environment_parameters", None:
                    return {}
                case "environment_parameters", dict():
                    return {name: self._parameter(form, (*path, name)) for name, form in value.items()}
                case "default_settings", dict():
                    return self._behavior(value, path)
                case "behaviors", dict():
                    return {
                        name: self._behavior(behavior, (*path, name)) if isinstance(behavior, dict) else behavior
                        for name, behavior in value.items()
                    }
        if section is Lesson and key == "value":
            return self._parameter(value, path)
        refused = None if self._local else keys_of(PATHS, section).get(key)
        if refused is not None and not refused.accepts(value):
            self._add(path, refused.code, refused.message(key, value))
            return "refused"  # any text: the models have nothing to add
        inner = next(sections_in(section.model_fields[key].annotation), None)
        if inner is not None and isinstance(value, dict):
            return self.section(inner, value, path)
        if inner is not None and isinstance(value, list):
            return [
                self.section(inner, element, (*path, index)) if isinstance(element, dict) else element
                for index, element in enumerate(value)
            ]
        return value

    def _behavior(self, written: JsonObject, path: Path) -> JsonObject:
        """Check a behavior's section, or the template of all.

        Of an unknown trainer's hyperparameters only the keys are judged: some trainer has to have them.
        """
        name = written.get("trainer_type", self._template.get("trainer_type", "ppo"))
        if isinstance(name, str) and name in TRAINERS:
            return self.section(TRAINERS[name], written, path)
        if "trainer_type" in written:
            *trainers, last = (repr(trainer) for trainer in TRAINERS)
            message = f"must be {', '.join(trainers)} or {last}, but is {show(name)}{broken_words(name)}"
            self._add((*path, "trainer_type"), "invalid_value", message)
        judged = {key: value for key, value in written.items() if key not in {"trainer_type", "hyperparameters"}}
        cleaned = {"trainer_type": "ppo", **self.section(PPOConfig, judged, path)}
        numbers = written.get("hyperparameters")
        legal = {key for trainer in TRAINERS.values() for key in hyperparameters_of(trainer).model_fields}
        for key in numbers if isinstance(numbers, dict) else ():
            if key not in legal:
                message = _unknown_message(key, sorted(legal), [])
                self._add((*path, "hyperparameters", key), "unknown_key", message)
        return cleaned

    def _modern(self, signal: JsonObject, path: Path) -> JsonObject:
        """Return a signal that learns without what ML-Agents tolerates there, which it drops with a warning too."""
        modern = dict(signal)
        size = modern.pop("encoding_size", None)
        if size is not None:
            message = "`encoding_size` is deprecated: write `network_settings: {hidden_units: ...}`"
            inherited = self._template.get("reward_signals")
            if path[0] == "behaviors" and isinstance(inherited, dict) and path[3] in inherited:
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

    def _parameter(self, form: object, path: Path) -> object:
        """Check a sampler or a curriculum. Anything else is left to the model."""
        match form:
            case dict() as curriculum if "curriculum" in curriculum:
                return self.section(Curriculum, curriculum, path)
            case dict() as sampler if sampler.get("sampler_type") in [*SAMPLERS]:
                return self.section(SAMPLERS[sampler["sampler_type"]], sampler, path)
            case _:
                return form


def _unknown(section: type[Section], key: str, path: Path) -> str:
    """Return the problem of a key that a section does not have, with the place where it belongs."""
    in_behavior = path[:1] in {("behaviors",), ("default_settings",)}
    homes = (home for home, inner in _homes(section) if key in {*inner.model_fields, *keys_of(KEYS, inner)})
    if home := next(homes, None):
        return f"{show(key)} is not a key here; it belongs under `{home}`"
    trainers = []
    if issubclass(section, TrainerConfig):
        trainers = [name for name, trainer in TRAINERS.items() if key in trainer.model_fields]
    elif issubclass(section, Hyperparameters):
        trainers = [name for name, trainer in TRAINERS.items() if key in hyperparameters_of(trainer).model_fields]
    if trainers:
        return f"{show(key)} is a key of `trainer_type: {'` and `'.join(trainers)}`, not of this trainer; remove it"
    if in_behavior and (home := _home_in_behavior(key)):
        return f"{show(key)} is not a key here; it belongs under `{home}`"
    message = _unknown_message(key, list(section.model_fields), list(keys_of(KEYS, section)))
    return f"{message}{broken_words(key) if issubclass(section, Extensible) else ''}"


def broken_words(name: object) -> str:
    """Return what is wrong with a plug-in of this name, if there is one, as further sentences."""
    return "".join(f"; {problem}" for problem in broken(str(name)))


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


def _unknown_message(key: str, legal: list[str], mlagents_keys: list[str]) -> str:
    """Return the problem of an unknown key, with the most similar legal key and the list of legal ones."""
    candidates = [*legal, *mlagents_keys]
    nearest = difflib.get_close_matches(key[:60].lower(), candidates, n=1)
    meant = _RENAMED[key] if _RENAMED.get(key) in candidates else next(iter(nearest), None)
    suggestion = f"; did you mean `{meant}`?" if meant else "."
    return f"{show(key)} is not a known key{suggestion} Legal here: {', '.join(legal)}"
