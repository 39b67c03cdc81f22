"""Brings configuration files of older ML-Agents releases into the format of today, and says what it changed.

It reads the flat files up to 0.16 (`default:` and one block for each behavior), their curricula (YAML by behavior, or
one JSON file for each) and sampler files, the sections `parameter_randomization` and `curriculum` up to 0.18, and keys
that were renamed since: `train_interval`, `num_update` and `reward_signal_num_update`, `pretraining`, `use_recurrent`,
`encoding_size`, `play_against_current_self_ratio`, `use_curiosity`, the trainers `offline_bc` and `online_bc`.

It goes further than `mlagents.trainers.upgrade_config`, whose lessons ML-Agents 1.1.0 refuses, which loses the sections
beside `behaviors`, and which drops what it doesn't know in silence: here everything that is dropped is listed. It
judges no values; whether the result is legal, `resolve` says.
"""

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import yaml

from server.errors import InvalidConfig, Problem
from server.training.behavior import TRAINERS
from server.training.document import Path, parse_document
from server.training.imitation import BehavioralCloningConfig
from server.training.network import MemorySettings, NetworkSettings
from server.training.parameters import SAMPLERS
from server.training.problems import join_path, show
from server.training.rewards import CuriosityConfig, ExtrinsicConfig, GAILConfig, RNDConfig
from server.training.selfplay import SelfPlaySettings
from server.training.values import OWN, Section

Document = str | bytes | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Something that is written otherwise now."""

    path: str
    """Where it was in the old document; `*` stands for each behavior."""
    to: str
    """Where it is in the new one."""
    old: Any
    """None where only the place changed."""
    new: Any
    why: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """Something that the new document doesn't have."""

    path: str
    value: Any
    why: str


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A document in the format of today."""

    document: dict[str, Any]
    text: str
    """The same as YAML: as it was sent if nothing changed, else without comments."""
    changes: tuple[Rewritten, ...]
    dropped: tuple[Dropped, ...]

    @property
    def unchanged(self) -> bool:
        """Whether the document had the format of today."""
        return not self.changes and not self.dropped


def upgrade(document: Document, *, curriculum: Document | None = None, sampler: Document | None = None) -> Upgrade:
    """Bring a document into the format of today.

    `curriculum` and `sampler` are the files that releases up to 0.16 had beside it. Raises InvalidConfig if something
    is no document at all, or can't be understood as one of an older release.
    """
    old = parse_document(document)
    notes = _Notes()
    new = _from_sections(old, notes) if "behaviors" in old else _from_blocks(old, notes)
    if sampler is not None:
        _add_parameters(new, _samplers(parse_document(sampler), ("sampler",), notes), ("sampler",), notes)
    if curriculum is not None:
        lessons = _curricula(_by_behavior(parse_document(curriculum), new), ("curriculum",), notes)
        _add_parameters(new, lessons, ("curriculum",), notes)
    if not notes.changes and not notes.dropped:
        return Upgrade(old, _text(document), (), ())
    return Upgrade(new, _written(new), tuple(notes.changes), tuple(notes.dropped))


def _text(document: Document) -> str:
    match document:
        case str():
            return document
        case bytes():
            return document.decode("utf-8-sig")
        case _:
            return _written(document)


def _written(document: Mapping[str, Any]) -> str:
    """Write a document as YAML; with escapes where PyYAML would not read its own text again (U+0085 in a key)."""
    plain = dict(document)
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)
    return text if parse_document(text) == plain else yaml.safe_dump(plain, sort_keys=False, width=120)


@dataclass(slots=True)
class _Notes:
    """What was done so far; what is done to many behaviors alike is said once."""

    changes: list[Rewritten] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)

    def moved(self, path: Path, to: Path, why: str = "has its place there now") -> None:
        self.changed(path, to, None, None, why)

    def changed(self, path: Path, to: Path, old: Any, new: Any, why: str) -> None:
        change = Rewritten(join_path(path), join_path(to), old, new, why)
        if change not in self.changes:
            self.changes.append(change)

    def drop(self, path: Path, value: Any, why: str) -> None:
        drop = Dropped(join_path(path), value, why)
        if drop not in self.dropped:
            self.dropped.append(drop)


def _refuse(path: Path, code: str, message: str) -> InvalidConfig:
    return InvalidConfig([Problem(join_path(path), code, message)])


def _mapping(value: Any, path: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _refuse(path, "wrong_type", f"must be a mapping, but is {show(value)}")
    return value


def _keys(section: type[Section]) -> list[str]:
    """Return the keys that a section has in ML-Agents."""
    return [key for key, item in section.model_fields.items() if item.json_schema_extra != OWN]


# Files without `behaviors`: one block for each behavior

_CLONES: Final = {"offline_bc", "online_bc", "imitation"}
_MEMORY: Final = _keys(MemorySettings)
_SIGNALS: Final[Mapping[str, type[Section]]] = {
    "extrinsic": ExtrinsicConfig,
    "curiosity": CuriosityConfig,
    "gail": GAILConfig,
    "rnd": RNDConfig,
}
_CURRICULUM_KEYS: Final = {"measure", "thresholds", "parameters"}
_RENAMED: Final = {
    "pretraining": "behavioral_cloning",
    "play_against_current_self_ratio": "play_against_latest_model_ratio",
}
_CURIOSITY: Final = {"curiosity_strength": "strength", "curiosity_enc_size": "encoding_size"}
_UNKNOWN: Final = "is not known, neither to ML-Agents nor here"
_NO_LONGER: Final = {
    "output_path": "results lie on the server; download them",
    "summary_path": "results lie on the server; download them",
    "model_path": "results lie on the server; download them",
    "framework": "PyTorch is the only one",
    "gamma": "has no effect beside `reward_signals`: each signal has its own gamma",
    "use_curiosity": "curiosity is one of `reward_signals`",
    "curiosity_strength": "curiosity is one of `reward_signals`",
    "curiosity_enc_size": "curiosity is one of `reward_signals`",
    "brain_to_imitate": "nobody is imitated while playing; record demonstrations, upload them (`ludus demonstration "
    "upload FILE`), and list their ids in `demonstrations`",
    "batches_per_epoch": "a clone run takes its gradient steps one after the other, up to `max_steps`",
}
"""Keys that are known and mean nothing any more."""


def _from_blocks(old: dict[str, Any], notes: _Notes) -> dict[str, Any]:
    """Convert a flat file."""
    blocks = {name: block for name, block in old.items() if isinstance(block, dict)}
    if blocks and all(block.keys() >= _CURRICULUM_KEYS for block in blocks.values()):
        return _from_curriculum(blocks, notes)
    if old.keys() >= _CURRICULUM_KEYS:
        message = "this is the curriculum of one behavior; give it beside the trainers' file, with `--curriculum`"
        raise _refuse((), "old_format", message)
    if any({"sampler-type", "sampler_type"} & block.keys() for block in blocks.values()):
        message = "this is a file of samplers alone; give it beside the trainers' file, with `--sampler`"
        raise _refuse((), "old_format", message)
    if not any(_OLD_KEYS & block.keys() for block in blocks.values()):
        raise _refuse(
            (), "missing", "this is no configuration of any release: there is neither `behaviors` nor a trainer"
        )
    for name, block in old.items():
        _mapping(block, (name,))
    default = old.get("default", {})
    new: dict[str, Any] = {}
    if default:
        why = (
            "merged under each behavior; behaviors that the file does not name have to be added to it"
            if len(old) > 1
            else "the template of all behaviors now; name at least one behavior in `behaviors`"
        )
        notes.moved(("default",), ("behaviors", "*") if len(old) > 1 else ("default_settings",), why)
    if old.keys() == {"default"}:
        new["default_settings"] = _Block("default", {}, default, notes).convert()
    new["behaviors"] = {
        name: _Block(name, block, default, notes).convert() for name, block in old.items() if name != "default"
    }
    return new


def _from_curriculum(blocks: dict[str, Any], notes: _Notes) -> dict[str, Any]:
    new: dict[str, Any] = {"behaviors": {name: {} for name in blocks}}
    why = "the file is a curriculum alone; for other than defaults give it beside the trainers' file"
    for name in blocks:
        notes.changed((name,), ("behaviors", name), None, {}, why)
    _add_parameters(new, _curricula(blocks, (), notes), (), notes)
    return new


class _Block:
    """One behavior of a flat file, on top of `default`."""

    def __init__(self, name: str, own: Mapping[str, Any], default: Mapping[str, Any], notes: _Notes) -> None:
        self._name = name
        self._own = own
        self._default = default
        self._left = copy.deepcopy({**default, **own})
        self._notes = notes
        self._to: Path = ("default_settings",) if name == "default" else ("behaviors", name)
        self._new: dict[str, Any] = {}

    def convert(self) -> dict[str, Any]:
        """Return the behavior's section."""
        trainer = self._trainer()
        config = TRAINERS[trainer]
        hyperparameters: Any = config.model_fields["hyperparameters"].annotation
        self._signals()
        self._move("hyperparameters", _keys(hyperparameters))
        if trainer == "sac":
            self._updates()
        self._network()
        for key in [*_keys(config), *_RENAMED]:
            if key in self._left:
                self._keep(key)
        if trainer == "clone":
            self._note_clone()
        for key, value in self._left.items():
            why = _NO_LONGER.get(key, f"{_UNKNOWN}, or not with trainer_type {trainer}")
            self._notes.drop(self._at(key), value, why)
        _modernise(self._new, self._at, self._there, self._notes)
        return self._new

    def _at(self, key: str) -> Path:
        """Return where a key was written, if need be under its former name."""
        names = [key, *(old for old, new in _RENAMED.items() if new == key)]
        own = next((name for name in names if name in self._own), None)
        if own is not None:
            return (self._name, own)
        return ("default", next((name for name in names if name in self._default), key))

    def _there(self, key: str, *below: str) -> Path:
        """Return where what a key said is now: in one behavior, or in each that inherits it."""
        return (*(self._to if self._at(key)[0] == self._name else ("behaviors", "*")), *below)

    def _take(self, key: str) -> Any:
        return self._left.pop(key)

    def _trainer(self) -> str:
        old = self._left.pop("trainer", None)
        if old is None:
            self._notes.changed(
                (self._name,), (*self._to, "trainer_type"), None, "ppo", "none was named; ppo is the default"
            )
            old = "ppo"
        new = "clone" if isinstance(old, str) and old in _CLONES else old
        if not isinstance(new, str) or new not in TRAINERS:
            raise _refuse(
                self._at("trainer"), "invalid_value", f"must be ppo, sac, offline_bc or online_bc, but is {show(old)}"
            )
        if new != old:
            why = "behavioral cloning is a trainer of its own, which needs uploaded demonstrations"
            self._notes.changed(self._at("trainer"), self._there("trainer", "trainer_type"), old, new, why)
        else:
            self._notes.moved(("*", "trainer"), ("behaviors", "*", "trainer_type"), "the key's new name")
        self._new["trainer_type"] = new
        return new

    def _updates(self) -> None:
        """SAC's updates per interval became steps per update."""
        keys = {key: self._take(key) for key in _UPDATES if key in self._left}
        if not keys:
            return
        section = self._new.setdefault("hyperparameters", {})
        section.update(keys)
        to = self._to if keys.keys() & self._own.keys() else ("behaviors", "*")
        _replace_updates(section, self._at, (*to, "hyperparameters"), self._notes)

    def _signals(self) -> None:
        """Before `reward_signals` there were `gamma` and curiosity's own keys."""
        left = self._left
        if "reward_signals" in left or not ("gamma" in left or left.get("use_curiosity")):
            return
        signals: dict[str, Any] = {"extrinsic": {}}
        self._move_into(signals["extrinsic"], {"gamma": "gamma"}, "reward_signals", "extrinsic")
        if left.get("use_curiosity"):
            self._take("use_curiosity")
            signals["curiosity"] = {}
            to = self._there("use_curiosity", "reward_signals", "curiosity")
            self._notes.changed(self._at("use_curiosity"), to, old=True, new={}, why="a signal of its own")
            self._move_into(signals["curiosity"], _CURIOSITY, "reward_signals", "curiosity")
        self._new["reward_signals"] = signals

    def _move_into(self, section: dict[str, Any], names: Mapping[str, str], *to: str) -> None:
        """Move keys into a section, under their new names."""
        for key, name in names.items():
            if key in self._left:
                self._notes.moved(self._at(key), self._there(key, *to, name))
                section[name] = self._take(key)

    def _move(self, section: str, keys: Iterable[str]) -> None:
        """Move keys into a section."""
        known = set(keys)
        found = {key: self._take(key) for key in list(self._left) if key in known}
        for key in found:
            self._notes.moved(("*", key), ("behaviors", "*", section, key))
        if found:
            self._new[section] = found

    def _network(self) -> None:
        self._move("network_settings", [key for key in _keys(NetworkSettings) if key != "memory"])
        recurrent = self._left.pop("use_recurrent", None)
        to = ("behaviors", "*", "network_settings", "memory")
        memory = {key: self._take(key) for key in _MEMORY if key in self._left}
        if recurrent is not None:
            new = memory if recurrent else None
            place = self._there("use_recurrent", "network_settings", "memory") if recurrent else to
            self._notes.changed(self._at("use_recurrent"), place, recurrent, new, "a section, there or not")
        if recurrent:
            self._new.setdefault("network_settings", {})["memory"] = memory
        for key, value in memory.items():
            if recurrent:
                self._notes.moved(("*", key), (*to, key))
            else:
                self._notes.drop(self._at(key), value, "has no effect without `use_recurrent`")

    def _keep(self, key: str) -> None:
        new = _RENAMED.get(key, key)
        if new != key:
            self._notes.moved(self._at(key), self._there(key, new), "the key's new name")
        self._new[new] = self._take(key)

    def _note_clone(self) -> None:
        for key in ("max_steps", "summary_freq"):
            if key in self._new:
                value = self._new[key]
                self._notes.changed(
                    self._at(key), self._there(key, key), value, value, "counts gradient steps in a clone run"
                )


_OLD_KEYS: Final = frozenset(
    {"trainer", "use_recurrent", *_RENAMED, *_keys(NetworkSettings)}
    | {key for config in TRAINERS.values() for key in _keys(config)}
)
"""Keys that tell a behavior's block from anything else."""


# What was renamed inside the sections of today

_UPDATES: Final = ("train_interval", "num_update", "num_updates", "reward_signal_num_update")


class _Place(Protocol):
    """Says where a key was, or what it said is."""

    def __call__(self, key: str, *below: str) -> Path: ...


def _replace_updates(section: dict[str, Any], at: Callable[[str], Path], to: Path, notes: _Notes) -> None:
    """Replace updates per interval by steps per update. `at` says where a key was, `to` where the section is."""
    given = {key: section.pop(key) for key in _UPDATES if key in section}
    interval = given.pop("train_interval", None)
    if interval is not None and not given.keys() & {"num_update", "num_updates"}:
        given["num_update"] = None
    for key, count in given.items():
        new_key = "reward_signal_steps_per_update" if key == "reward_signal_num_update" else "steps_per_update"
        pair = {"train_interval": interval, key: count}
        written = {old_key: value for old_key, value in pair.items() if value is not None}
        if new_key in section:
            for old_key, value in written.items():
                notes.drop(at(old_key), value, f"has no effect beside `{new_key}`")
            continue
        section[new_key] = ratio = _ratio(written.get("train_interval", 1), written.get(key, 1), at(key))
        for old_key, value in written.items():
            why = f"agent steps per gradient step: train_interval / {key} (1 where not given)"
            notes.changed(at(old_key), (*to, new_key), value, ratio, why)


def _ratio(interval: Any, count: Any, path: Path) -> int | float:
    try:
        ratio = float(interval) / float(count)
    except (TypeError, ValueError, ArithmeticError):
        ratio = math.nan
    if not math.isfinite(ratio):
        message = f"train_interval {show(interval)} / {path[-1]} {show(count)} is no number of steps per update"
        raise _refuse(path, "invalid_value", message)
    return int(ratio) if ratio.is_integer() else ratio


def _modernise(behavior: dict[str, Any], at: Callable[[str], Path], there: _Place, notes: _Notes) -> None:
    """Replace what older releases had inside a behavior's sections. `at` and `there` say where those were and are."""
    network = behavior.get("network_settings")
    if isinstance(network, dict) and network.get("vis_encode_type") == "default":
        network["vis_encode_type"] = "simple"
        key = "vis_encode_type"
        notes.changed(at(key), there(key, "network_settings", key), "default", "simple", "the encoder's new name")
    signals = behavior.get("reward_signals")
    for name, signal in signals.items() if isinstance(signals, dict) else ():
        if isinstance(signal, dict) and name in _SIGNALS:
            before, after = (*at("reward_signals"), name), there("reward_signals", "reward_signals", name)
            _move_encoding(signal, before, after, notes)
            _keep_known(signal, _SIGNALS[name], before, notes)
    for key, kind in (("self_play", SelfPlaySettings), ("behavioral_cloning", BehavioralCloningConfig)):
        section = behavior.get(key)
        if isinstance(section, dict):
            _rename(section, at(key), there(key, key), notes)
            _keep_known(section, kind, at(key), notes)


def _move_encoding(signal: dict[str, Any], before: Path, after: Path, notes: _Notes) -> None:
    size = signal.pop("encoding_size", None)
    if size is None:
        return
    if "network_settings" in signal:
        notes.drop((*before, "encoding_size"), size, "has no effect beside `network_settings`")
        return
    signal["network_settings"] = {"hidden_units": size}
    notes.moved((*before, "encoding_size"), (*after, "network_settings", "hidden_units"))


def _rename(section: dict[str, Any], before: Path, after: Path, notes: _Notes) -> None:
    """Give keys of a section their new names, in their places."""
    former = [key for key in section if key in _RENAMED]
    if not former:
        return
    renamed = {_RENAMED.get(key, key): value for key, value in section.items()}
    for key in former:
        notes.moved((*before, key), (*after, _RENAMED[key]), "the key's new name")
    section.clear()
    section.update(renamed)


def _keep_known(section: dict[str, Any], kind: type[Section], path: Path, notes: _Notes) -> None:
    """Drop the keys that a section does not have; extrinsic rewards may have a network, which nobody uses."""
    for key in [key for key in section if key not in kind.model_fields and key != "network_settings"]:
        notes.drop((*path, key), section.pop(key), _NO_LONGER.get(key, _UNKNOWN))


# Files with `behaviors`, up to 0.18


def _from_sections(old: dict[str, Any], notes: _Notes) -> dict[str, Any]:
    """Convert what older releases had beside `behaviors`, or in it; everything else stays as it is."""
    new = {
        key: value for key, value in copy.deepcopy(old).items() if key not in {"parameter_randomization", "curriculum"}
    }
    behaviors = new["behaviors"]
    if isinstance(behaviors, dict):
        for name, behavior in behaviors.items():
            if isinstance(behavior, dict):
                _repair(behavior, ("behaviors", name), notes)
    _repair_lessons(new.get("environment_parameters"), notes)
    samplers, curricula = old.get("parameter_randomization"), old.get("curriculum")
    if samplers is not None:
        path = ("parameter_randomization",)
        _add_parameters(new, _samplers(_mapping(samplers, path), path, notes), path, notes)
    if curricula is not None:
        path = ("curriculum",)
        _add_parameters(new, _curricula(_mapping(curricula, path), path, notes), path, notes)
    return new


def _repair(behavior: dict[str, Any], path: Path, notes: _Notes) -> None:
    """Replace what only older releases accept in a behavior. What today's accept, however odd, is left alone."""
    if "output_path" in behavior:
        notes.drop((*path, "output_path"), behavior.pop("output_path"), _NO_LONGER["output_path"])
    _rename(behavior, path, path, notes)
    hyperparameters = behavior.get("hyperparameters")
    if isinstance(hyperparameters, dict):
        place = (*path, "hyperparameters")
        _replace_updates(hyperparameters, lambda key: (*place, key), place, notes)
    network = behavior.get("network_settings")
    if isinstance(network, dict) and network.get("vis_encode_type") == "default":
        network["vis_encode_type"] = "simple"
        place = (*path, "network_settings", "vis_encode_type")
        notes.changed(place, place, "default", "simple", "the encoder's new name")
    if isinstance(behavior.get("self_play"), dict):
        place = (*path, "self_play")
        _rename(behavior["self_play"], place, place, notes)


def _repair_lessons(parameters: Any, notes: _Notes) -> None:
    """Rewrite lessons in the form of `mlagents.trainers.upgrade_config`, `- Lesson0: {...}`."""
    for name, form in parameters.items() if isinstance(parameters, dict) else ():
        lessons = form.get("curriculum") if isinstance(form, dict) else None
        if isinstance(lessons, list):
            path = ("environment_parameters", name, "curriculum")
            form["curriculum"] = [_repair_lesson(lesson, (*path, index), notes) for index, lesson in enumerate(lessons)]


def _repair_lesson(lesson: Any, path: Path, notes: _Notes) -> Any:
    if not (isinstance(lesson, dict) and len(lesson) == 1):
        return lesson
    ((name, inner),) = lesson.items()
    if not isinstance(inner, dict):
        return lesson
    notes.changed((*path, name), (*path, "name"), None, name, "a lesson's name is a key of the lesson")
    return {"name": name, **inner}


# Environment parameters

_NUMBERS: Final = ("seed", "min_value", "max_value", "mean", "st_dev", "intervals", "value")


def _add_parameters(new: dict[str, Any], found: Mapping[str, Any], path: Path, notes: _Notes) -> None:
    """Add parameters to those of the new document, which come first: a sampler before a curriculum, as in ML-Agents."""
    there = new.get("environment_parameters")
    parameters: dict[str, Any] = dict(there) if isinstance(there, dict) else {}
    for name, form in found.items():
        if name in parameters:
            notes.drop((*path, name), form, "the parameter has a value already, which counts, as in ML-Agents")
        else:
            parameters[name] = form
    if parameters:
        new["environment_parameters"] = parameters


def _samplers(old: Mapping[str, Any], path: Path, notes: _Notes) -> dict[str, Any]:
    """Convert a file, or a section, of samplers."""
    found = {}
    for name, form in old.items():
        if name == "resampling-interval":
            notes.drop((*path, name), form, "parameters are drawn anew whenever the game resets")
            continue
        given = dict(_mapping(form, (*path, name)))
        kind = given.pop("sampler-type", given.pop("sampler_type", None))
        numbers = dict(_mapping(given.pop("sampler_parameters", {}), (*path, name, "sampler_parameters")))
        numbers |= {key: given.pop(key) for key in _NUMBERS if key in given}
        if kind is None:
            raise _refuse((*path, name), "missing", f"has no sampler-type; it is one of {', '.join(SAMPLERS)}")
        for key, value in given.items():
            notes.drop((*path, name, key), value, _UNKNOWN)
        new = {
            "sampler_type": "multirangeuniform" if kind == "multirange_uniform" else kind,
            "sampler_parameters": numbers,
        }
        notes.changed(
            (*path, name), ("environment_parameters", name), form, new, "samplers and curricula have one place now"
        )
        found[name] = new
    return found


def _by_behavior(curriculum: dict[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return curricula by behavior; one that names none is for the only behavior there is."""
    if not curriculum.keys() >= _CURRICULUM_KEYS:
        return curriculum
    behaviors = list(_mapping(new["behaviors"], ("behaviors",)))
    if len(behaviors) != 1:
        message = "does not say for which behavior it is; write `NAME: {measure: ..., ...}`, or name the file after it"
        raise _refuse(("curriculum",), "missing", message)
    return {behaviors[0]: curriculum}


def _curricula(old: Mapping[str, Any], path: Path, notes: _Notes) -> dict[str, Any]:
    """Convert curricula by behavior."""
    found: dict[str, Any] = {}
    for behavior, form in old.items():
        here = (*path, behavior)
        given = dict(_mapping(form, here))
        if missing := sorted(_CURRICULUM_KEYS - given.keys()):
            raise _refuse(here, "missing", f"a curriculum needs {', '.join(missing)}")
        thresholds, parameters = given.pop("thresholds"), _mapping(given.pop("parameters"), (*here, "parameters"))
        if not isinstance(thresholds, list):
            raise _refuse((*here, "thresholds"), "wrong_type", f"must be a list, but is {show(thresholds)}")
        criteria = {
            "measure": given.pop("measure"),
            "behavior": behavior,
            "signal_smoothing": given.pop("signal_smoothing", False),
            "min_lesson_length": given.pop("min_lesson_length", 1),
        }
        for key, value in given.items():
            notes.drop((*here, key), value, _UNKNOWN)
        for name, values in parameters.items():
            there = (*here, "parameters", name)
            curriculum = {"curriculum": _lessons(values, thresholds, criteria, there)}
            if name in found:
                notes.drop(there, values, "the parameter has a curriculum already, which counts, as in ML-Agents")
                continue
            notes.changed(
                there, ("environment_parameters", name), values, curriculum, "each parameter has its lessons now"
            )
            found[name] = curriculum
    return found


def _lessons(values: Any, thresholds: list[Any], criteria: Mapping[str, Any], path: Path) -> list[dict[str, Any]]:
    if not isinstance(values, list) or len(values) != len(thresholds) + 1:
        message = f"must be a list of {len(thresholds) + 1} values, one more than thresholds, but is {show(values)}"
        raise _refuse(path, "wrong_type", message)
    lessons: list[dict[str, Any]] = [
        {"name": f"Lesson{index}", "completion_criteria": {**criteria, "threshold": threshold}, "value": value}
        for index, (threshold, value) in enumerate(zip(thresholds, values, strict=False))
    ]
    return [*lessons, {"name": f"Lesson{len(thresholds)}", "value": values[-1]}]
