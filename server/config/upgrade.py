"""Converts configuration files of older ML-Agents releases to the present format, and lists the changes.

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
from dataclasses import dataclass, field, replace
from typing import Final

import yaml

from ludus.config.behavior import TRAINERS
from ludus.config.environment_parameters import SAMPLERS
from ludus.config.imitation import BehavioralCloningConfig
from ludus.config.network import MemorySettings, NetworkSettings
from ludus.config.problems import Path, join_path, parse_path, show
from ludus.config.rewards import CuriosityConfig, ExtrinsicConfig, GAILConfig, RNDConfig
from ludus.config.selfplay import SelfPlaySettings
from ludus.config.values import OWN, Section
from ludus.json_values import JsonObject
from ludus.schemas import ConfigDrop, ConfigRewrite
from server.config.document import Document, Repeated, located, parse_document, text_of
from server.config.key_validation import hyperparameters_of
from server.kit.errors import InvalidConfig, Problem

_RENAMED: Final = {
    "pretraining": "behavioral_cloning",
    "play_against_current_self_ratio": "play_against_latest_model_ratio",
}
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
    "brain_to_imitate": "online imitation no longer exists; record demonstrations, upload them (`ludus demonstration "
    "upload FILE`), and list their ids in `demonstrations`",
    "batches_per_epoch": "a clone run takes its gradient steps one after the other, up to `max_steps`",
}
"""Keys that are known and mean nothing any more."""
_UPDATES: Final = ("train_interval", "num_update", "num_updates", "reward_signal_num_update")
_SIGNAL_STEPS: Final = "reward_signal_steps_per_update"
_SIGNAL_UPDATES: Final = ("reward_signal_num_update", _SIGNAL_STEPS)
"""A key of `reward_signals` beside the signals, up to 0.16: how often SAC updates the learned signals."""
_PER_AGENT: Final = (
    "files of 2019 counted steps of the simulation, and steps of agents count now: multiply it by the number of agents "
    "in the scene if the file is that old"
)
_NEW_NAME: Final = "the key's new name"
_NEW_PLACE: Final = "has its place there now"
_SIGNALS: Final[Mapping[str, type[Section]]] = {
    "extrinsic": ExtrinsicConfig,
    "curiosity": CuriosityConfig,
    "gail": GAILConfig,
    "rnd": RNDConfig,
}
_CURRICULUM_KEYS: Final = {"measure", "thresholds", "parameters"}
_SAMPLER_NUMBERS: Final = ("seed", "min_value", "max_value", "mean", "st_dev", "intervals", "value")
_STEPS: Final = {"max_steps", "summary_freq", "buffer_init_steps"}
_CLONES: Final = {"offline_bc", "online_bc", "imitation"}
_CURIOSITY: Final = {"curiosity_strength": "strength", "curiosity_enc_size": "encoding_size"}


def _keys(section: type[Section]) -> list[str]:
    """Return the keys that a section has in ML-Agents."""
    return [key for key, item in section.model_fields.items() if item.json_schema_extra != OWN]


_OLD_KEYS: Final = frozenset(
    {"trainer", "use_recurrent", *_RENAMED, *_keys(NetworkSettings)}
    | {key for config in TRAINERS.values() for key in _keys(config)}
)
"""Keys that tell a behavior's block from anything else."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A document in the format of today."""

    document: JsonObject
    text: str
    """The same as YAML: as it was sent if nothing changed, else without comments."""
    changes: tuple[ConfigRewrite, ...]
    dropped: tuple[ConfigDrop, ...]

    @property
    def unchanged(self) -> bool:
        """Whether the document had the format of today."""
        return not self.changes and not self.dropped


@dataclass(slots=True)
class _Notes:
    """The changes so far; a change that concerns many behaviors alike is listed once.

    The keys of both are their values as text: a hostile document has tens of thousands, with values of any type.
    """

    changes: dict[str, ConfigRewrite] = field(default_factory=dict)
    dropped: dict[str, ConfigDrop] = field(default_factory=dict)

    def moved(self, path: Path, to: Path, why: str = _NEW_PLACE) -> None:
        """Add a change of only the place."""
        self.changed(path, to, None, None, why)

    def changed(self, path: Path, to: Path, old: object, new: object, why: str) -> None:
        change = ConfigRewrite(path=join_path(path), to=join_path(to), old=old, new=new, why=why)
        self.changes.setdefault(repr(change), change)

    def drop(self, path: Path, value: object, why: str) -> None:
        drop = ConfigDrop(path=join_path(path), value=value, why=why)
        self.dropped.setdefault(repr(drop), drop)


def upgrade(document: Document, *, curriculum: Document | None = None, sampler: Document | None = None) -> Upgrade:
    """Bring a document into the format of today.

    `curriculum` and `sampler` are the files that releases up to 0.16 had beside it. Raises InvalidConfig if something
    is no document at all, or can't be understood as one of an older release.
    """
    notes = _Notes()
    repeated: Repeated = []
    with located(document):
        old = parse_document(document, repeated)
        for path, value in repeated:
            notes.drop(path, value, "stands twice, with the same value")
        is_modern = not old.keys().isdisjoint({"behaviors", "default_settings"})
        new = _from_sections(old, notes) if is_modern else _from_blocks(old, notes)
    if sampler is not None:
        _add_samplers(new, _parse_beside(sampler, "sampler"), ("sampler",), notes)
    if curriculum is not None:
        curricula = _parse_beside(curriculum, "curriculum")
        if curricula.keys() >= _CURRICULUM_KEYS:  # names no behavior: it is for the only one that there is
            behaviors = list(_mapping(new.get("behaviors", {}), ("behaviors",)))
            if len(behaviors) != 1:
                message = (
                    "does not say for which behavior it is; write `NAME: {measure: ..., ...}`, or name the file after "
                    "it"
                )
                raise _refusal(("curriculum",), "missing", message)
            curricula = {behaviors[0]: curricula}
        _add_curricula(new, curricula, ("curriculum",), notes)
    if not notes.changes and not notes.dropped:
        return Upgrade(old, text_of(document, _written), (), ())
    return Upgrade(new, _written(new), tuple(notes.changes.values()), tuple(notes.dropped.values()))


def _parse_beside(document: Document, name: str) -> JsonObject:
    """Parse a file beside the trainers'. Its problems have its name in front of their paths, and no lines of theirs."""
    try:
        return parse_document(document)
    except InvalidConfig as error:
        raise InvalidConfig(
            [
                Problem(join_path((name, *parse_path(problem.path))), problem.code, str(replace(problem, path="")))
                for problem in error.problems
            ]
        ) from error


def _written(document: Mapping[str, object]) -> str:
    """Write a document as YAML; with escapes where PyYAML would not read its own text again (U+0085 in a key)."""
    plain = dict(document)
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)
    return text if parse_document(text) == plain else yaml.safe_dump(plain, sort_keys=False, width=120)


def _refusal(path: Path, code: str, message: str) -> InvalidConfig:
    return InvalidConfig([Problem(join_path(path), code, message)])


def _mapping(value: object, path: Path) -> JsonObject:
    """Return what has to be a mapping. Raises InvalidConfig that says where it is none."""
    if not isinstance(value, dict):
        raise _refusal(path, "wrong_type", f"must be a mapping, but is {show(value)}")
    return value


# --- environment parameters: samplers and curricula, from files or sections of their own ----------------------------


def _add_parameters(new: JsonObject, parameters: JsonObject, path: Path, notes: _Notes) -> None:
    """Add parameters to those of the new document, which come first: a sampler before a curriculum, as in ML-Agents."""
    former = new.get("environment_parameters")
    merged: JsonObject = dict(former) if isinstance(former, dict) else {}
    for name, form in parameters.items():
        if name in merged:
            notes.drop((*path, name), form, "the parameter has a value already, which counts, as in ML-Agents")
        else:
            merged[name] = form
    if merged:
        new["environment_parameters"] = merged


def _add_samplers(new: JsonObject, old: JsonObject, path: Path, notes: _Notes) -> None:
    """Convert a file, or a section, of samplers."""
    samplers: JsonObject = {}
    for name, form in old.items():
        if name == "resampling-interval":
            notes.drop((*path, name), form, "parameters are drawn again whenever the game resets")
            continue
        given = dict(_mapping(form, (*path, name)))
        kind = given.pop("sampler-type", given.pop("sampler_type", None))
        numbers = dict(_mapping(given.pop("sampler_parameters", {}), (*path, name, "sampler_parameters")))
        numbers |= {key: given.pop(key) for key in _SAMPLER_NUMBERS if key in given}
        if kind is None:
            raise _refusal((*path, name), "missing", f"has no sampler-type; it is one of {', '.join(SAMPLERS)}")
        for key, value in given.items():
            notes.drop((*path, name, key), value, _UNKNOWN)
        kind = "multirangeuniform" if kind == "multirange_uniform" else kind
        samplers[name] = sampler = {"sampler_type": kind, "sampler_parameters": numbers}
        to = ("environment_parameters", name)
        notes.changed((*path, name), to, form, sampler, "samplers and curricula have one place now")
    _add_parameters(new, samplers, path, notes)


def _add_curricula(new: JsonObject, old: JsonObject, path: Path, notes: _Notes) -> None:
    """Convert curricula by behavior: thresholds, and for each parameter one value more than there are thresholds."""
    curricula: JsonObject = {}
    for behavior, form in old.items():
        place = (*path, behavior)
        given = dict(_mapping(form, place))
        if missing := sorted(_CURRICULUM_KEYS - given.keys()):
            raise _refusal(place, "missing", f"a curriculum needs {', '.join(missing)}")
        thresholds, parameters = given.pop("thresholds"), _mapping(given.pop("parameters"), (*place, "parameters"))
        if not isinstance(thresholds, list):
            raise _refusal((*place, "thresholds"), "wrong_type", f"must be a list, but is {show(thresholds)}")
        criteria = {
            "measure": given.pop("measure"),
            "behavior": behavior,
            "signal_smoothing": given.pop("signal_smoothing", False),
            "min_lesson_length": given.pop("min_lesson_length", 1),
        }
        for key, value in given.items():
            notes.drop((*place, key), value, _UNKNOWN)
        count = len(thresholds) + 1
        for name, values in parameters.items():
            inner = (*place, "parameters", name)
            if not isinstance(values, list) or len(values) != count:
                message = f"must be a list of {count} values, one more than thresholds, but is {show(values)}"
                raise _refusal(inner, "wrong_type", message)
            if name in curricula:
                notes.drop(inner, values, "the parameter has a curriculum already, which counts, as in ML-Agents")
                continue
            lessons: list[JsonObject] = [
                {"name": f"Lesson{index}", "completion_criteria": {**criteria, "threshold": threshold}, "value": value}
                for index, (threshold, value) in enumerate(zip(thresholds, values, strict=False))
            ]
            lessons.append({"name": f"Lesson{len(thresholds)}", "value": values[-1]})
            curricula[name] = {"curriculum": lessons}
            to = ("environment_parameters", name)
            notes.changed(inner, to, values, curricula[name], "each parameter has its lessons now")
    _add_parameters(new, curricula, path, notes)


# --- keys of a behavior's sections that were renamed or have no meaning any more -------------------------------------


def _replace_updates(section: JsonObject, signals: object, at: Callable[[str], Path], to: Path, notes: _Notes) -> None:
    """Replace SAC's updates per interval by steps per update, also those beside the reward `signals`.

    `at` says where a key was, `reward_signals` among them, `to` where the section is.
    """
    given: JsonObject = {key: section.pop(key) for key in _UPDATES if key in section}
    beside: JsonObject = {}
    if isinstance(signals, dict):
        beside = {key: signals.pop(key) for key in _SIGNAL_UPDATES if key in signals}
    paths = {key: at(key) for key in _UPDATES} | {key: (*at("reward_signals"), key) for key in beside}
    for twice in given.keys() & beside.keys():
        notes.drop(at(twice), given[twice], f"has no effect beside `reward_signals.{twice}`")
    if _SIGNAL_STEPS in beside:
        steps = beside.pop(_SIGNAL_STEPS)
        if _SIGNAL_STEPS in section:
            notes.drop(paths[_SIGNAL_STEPS], steps, f"has no effect beside `{_SIGNAL_STEPS}` of the hyperparameters")
        else:
            section[_SIGNAL_STEPS] = steps
            notes.moved(paths[_SIGNAL_STEPS], (*to, _SIGNAL_STEPS))
    given |= beside
    interval = given.pop("train_interval", None)
    if interval is not None and not given.keys() & {"num_update", "num_updates"}:
        given["num_update"] = None
    for key, count in given.items():
        new_key = _SIGNAL_STEPS if key == "reward_signal_num_update" else "steps_per_update"
        pair = {"train_interval": interval, key: count}
        written = {old_key: value for old_key, value in pair.items() if value is not None}
        if new_key in section:
            for old_key, value in written.items():
                notes.drop(paths[old_key], value, f"has no effect beside `{new_key}`")
            continue
        section[new_key] = ratio = _ratio(written.get("train_interval", 1), written.get(key, 1), paths[key])
        for old_key, value in written.items():
            why = f"agent steps per gradient step: train_interval / {key} (1 where not given)"
            why += f"; {_PER_AGENT}" if old_key == "train_interval" else ""
            notes.changed(paths[old_key], (*to, new_key), value, ratio, why)


def _ratio(interval: str | float, count: str | float, path: Path) -> int | float:
    try:
        ratio = float(interval) / float(count)
    except (TypeError, ValueError, ArithmeticError):
        ratio = math.nan
    if not math.isfinite(ratio):
        message = f"train_interval {show(interval)} / {path[-1]} {show(count)} is no number of steps per update"
        raise _refusal(path, "invalid_value", message)
    return int(ratio) if ratio.is_integer() else ratio


def _drop_signal_updates(signals: object, path: Path, notes: _Notes) -> None:
    """Drop from `reward_signals` how often SAC updates them: no other trainer reads it."""
    for key in _SIGNAL_UPDATES:
        if isinstance(signals, dict) and key in signals:
            notes.drop((*path, key), signals.pop(key), "only the trainer `sac` reads it")


def _rename(section: JsonObject, before: Path, after: Path, notes: _Notes) -> None:
    """Give keys of a section their new names, in their places."""
    renamed = {_RENAMED.get(key, key): value for key, value in section.items()}
    for key in section:
        if key in _RENAMED:
            notes.moved((*before, key), (*after, _RENAMED[key]), _NEW_NAME)
    section.clear()
    section.update(renamed)


def _rename_encoder(behavior: JsonObject, before: Path, after: Path, notes: _Notes) -> None:
    """Give the default encoder of pictures its new name."""
    network = behavior.get("network_settings")
    if isinstance(network, dict) and network.get("vis_encode_type") == "default":
        network["vis_encode_type"] = "simple"
        notes.changed(before, after, "default", "simple", "the encoder's new name")


def _keep_known(section: JsonObject, kind: type[Section], path: Path, notes: _Notes) -> None:
    """Drop the keys that a section does not have; extrinsic rewards may have a network, which is unused."""
    for key in [key for key in section if key not in kind.model_fields and key != "network_settings"]:
        notes.drop((*path, key), section.pop(key), _NO_LONGER.get(key, _UNKNOWN))


# --- files without `behaviors`, up to 0.16: one block for each behavior, on top of `default` -------------------------


def _from_blocks(old: JsonObject, notes: _Notes) -> JsonObject:
    blocks = {name: block for name, block in old.items() if isinstance(block, dict)}
    if blocks and all(block.keys() >= _CURRICULUM_KEYS for block in blocks.values()):
        why = "the file is a curriculum alone; for other than defaults give it beside the trainers' file"
        for name in blocks:
            notes.changed((name,), ("behaviors", name), None, {}, why)
        curriculum_alone: JsonObject = {"behaviors": {name: {} for name in blocks}}
        _add_curricula(curriculum_alone, blocks, (), notes)
        return curriculum_alone
    if old.keys() >= _CURRICULUM_KEYS:
        message = "this is the curriculum of one behavior; give it beside the trainers' file, with `--curriculum`"
        raise _refusal((), "old_format", message)
    if any({"sampler-type", "sampler_type"} & block.keys() for block in blocks.values()):
        message = "this is a file of samplers alone; give it beside the trainers' file, with `--sampler`"
        raise _refusal((), "old_format", message)
    if not any(_OLD_KEYS & block.keys() for block in blocks.values()):
        message = "this is no configuration of any release: there is neither `behaviors` nor a trainer"
        raise _refusal((), "missing", message)
    for name, block in old.items():
        _mapping(block, (name,))
    default = old.get("default", {})
    if old.keys() == {"default"}:
        if default:
            why = "the template of all behaviors that the game announces"
            notes.moved(("default",), ("default_settings",), why)
        return {"default_settings": _Block("default", {}, default, notes).convert()}
    if default:
        why = "merged under each behavior; behaviors that the file does not name have to be added to it"
        notes.moved(("default",), ("behaviors", "*"), why)
    names = [name for name in old if name != "default"]
    return {"behaviors": {name: _Block(name, old[name], default, notes).convert() for name in names}}


class _Block:
    """One behavior of a flat file, on top of `default`."""

    def __init__(self, name: str, own: JsonObject, default: JsonObject, notes: _Notes) -> None:
        self._name = name
        self._own = own
        self._default = default
        self._remaining = copy.deepcopy({**default, **own})
        self._notes = notes
        self._to: Path = ("default_settings",) if name == "default" else ("behaviors", name)
        self._new: JsonObject = {}

    def convert(self) -> JsonObject:
        """Return the behavior's section."""
        trainer = self._trainer()
        config = TRAINERS[trainer]
        self._convert_signals()
        self._move("hyperparameters", _keys(hyperparameters_of(config)))
        if trainer == "sac":
            self._convert_updates()
        self._convert_network()
        for key in [*_keys(config), *_RENAMED]:
            if key in self._remaining:
                self._keep(key)
        for key in ("max_steps", "summary_freq"):
            if trainer == "clone" and key in self._new:
                value = self._new[key]
                to = self._new_place(key, key)
                self._notes.changed(self._at(key), to, value, value, "counts gradient steps in a clone run")
        for key, value in self._remaining.items():
            why = _NO_LONGER.get(key, f"{_UNKNOWN}, or not with trainer_type {trainer}")
            self._notes.drop(self._at(key), value, why)
        self._modernise()
        return self._new

    def _at(self, key: str) -> Path:
        """Return where a key was written, if need be under its former name."""
        names = [key, *(old for old, new in _RENAMED.items() if new == key)]
        for block, path in ((self._own, self._name), (self._default, "default")):
            for name in names:
                if name in block:
                    return (path, name)
        return ("default", key)

    def _new_place(self, key: str, *below: str) -> Path:
        """Return where what a key said is now: in one behavior, or in each that inherits it."""
        return (*(self._to if self._at(key)[0] == self._name else ("behaviors", "*")), *below)

    def _trainer(self) -> str:
        old = self._remaining.pop("trainer", None)
        if old is None:
            to = (*self._to, "trainer_type")
            self._notes.changed((self._name,), to, None, "ppo", "none was named; ppo is the default")
            old = "ppo"
        new = "clone" if isinstance(old, str) and old in _CLONES else old
        if not isinstance(new, str) or new not in TRAINERS:
            message = f"must be ppo, sac, offline_bc or online_bc, but is {show(old)}"
            raise _refusal(self._at("trainer"), "invalid_value", message)
        if new != old:
            why = "behavioral cloning is a trainer of its own, which needs uploaded demonstrations"
            self._notes.changed(self._at("trainer"), self._new_place("trainer", "trainer_type"), old, new, why)
        else:
            self._notes.moved(("*", "trainer"), ("behaviors", "*", "trainer_type"), _NEW_NAME)
        self._new["trainer_type"] = new
        return new

    def _convert_updates(self) -> None:
        """SAC's updates per interval became steps per update."""
        updates = {key: self._remaining.pop(key) for key in _UPDATES if key in self._remaining}
        signals = self._remaining.get("reward_signals")
        beside = isinstance(signals, dict) and signals.keys() & set(_SIGNAL_UPDATES)
        if updates or beside:
            section = self._new.setdefault("hyperparameters", {})
            section.update(updates)
            sources = {*updates, "reward_signals"} if beside else updates.keys()
            to = self._to if sources & self._own.keys() else ("behaviors", "*")
            _replace_updates(section, signals, self._at, (*to, "hyperparameters"), self._notes)

    def _convert_signals(self) -> None:
        """Before `reward_signals` there were `gamma` and curiosity's own keys."""
        remaining = self._remaining
        if "reward_signals" in remaining or not ("gamma" in remaining or remaining.get("use_curiosity")):
            return
        signals: JsonObject = {"extrinsic": {}}
        moves = {"extrinsic": {"gamma": "gamma"}}
        if remaining.get("use_curiosity"):
            del remaining["use_curiosity"]
            signals["curiosity"] = {}
            moves["curiosity"] = _CURIOSITY
            to = self._new_place("use_curiosity", "reward_signals", "curiosity")
            self._notes.changed(self._at("use_curiosity"), to, old=True, new={}, why="a signal of its own")
        for signal, names in moves.items():
            for key, name in names.items():
                if key in remaining:
                    self._notes.moved(self._at(key), self._new_place(key, "reward_signals", signal, name))
                    signals[signal][name] = remaining.pop(key)
        self._new["reward_signals"] = signals

    def _move(self, section: str, keys: Iterable[str]) -> None:
        """Move keys into a section."""
        for key in [key for key in self._remaining if key in set(keys)]:
            why = _PER_AGENT if key in _STEPS else _NEW_PLACE
            self._notes.moved(("*", key), ("behaviors", "*", section, key), why)
            self._new.setdefault(section, {})[key] = self._remaining.pop(key)

    def _convert_network(self) -> None:
        self._move("network_settings", [key for key in _keys(NetworkSettings) if key != "memory"])
        recurrent = self._remaining.pop("use_recurrent", None)
        to = ("behaviors", "*", "network_settings", "memory")
        memory = {key: self._remaining.pop(key) for key in _keys(MemorySettings) if key in self._remaining}
        if recurrent is not None:
            place = self._new_place("use_recurrent", "network_settings", "memory") if recurrent else to
            section = memory if recurrent else None
            self._notes.changed(self._at("use_recurrent"), place, recurrent, section, "a section, there or not")
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
            self._notes.moved(self._at(key), self._new_place(key, new), _NEW_NAME)
        elif key in _STEPS and self._new["trainer_type"] != "clone":
            self._notes.moved(("*", key), ("behaviors", "*", key), _PER_AGENT)
        self._new[new] = self._remaining.pop(key)

    def _modernise(self) -> None:
        """Replace what older releases had inside the behavior's sections."""
        encoder = "vis_encode_type"
        place = self._new_place(encoder, "network_settings", encoder)
        _rename_encoder(self._new, self._at(encoder), place, self._notes)
        signals = self._new.get("reward_signals")
        _drop_signal_updates(signals, self._at("reward_signals"), self._notes)
        for name, signal in signals.items() if isinstance(signals, dict) else ():
            if not (isinstance(signal, dict) and name in _SIGNALS):
                continue
            before = (*self._at("reward_signals"), name)
            after = self._new_place("reward_signals", "reward_signals", name)
            size = signal.pop("encoding_size", None)
            if size is not None and "network_settings" in signal:
                self._notes.drop((*before, "encoding_size"), size, "has no effect beside `network_settings`")
            elif size is not None:
                signal["network_settings"] = {"hidden_units": size}
                self._notes.moved((*before, "encoding_size"), (*after, "network_settings", "hidden_units"))
            _keep_known(signal, _SIGNALS[name], before, self._notes)
        for key, kind in (("self_play", SelfPlaySettings), ("behavioral_cloning", BehavioralCloningConfig)):
            section = self._new.get(key)
            if isinstance(section, dict):
                _rename(section, self._at(key), self._new_place(key, key), self._notes)
                _keep_known(section, kind, self._at(key), self._notes)


# --- files with `behaviors`, up to 0.18: the sections that older releases had beside it, or in it ---------------------


def _from_sections(old: JsonObject, notes: _Notes) -> JsonObject:
    """Convert what older releases had beside `behaviors`, or in it; everything else stays as it is."""
    new = copy.deepcopy(old)
    beside = {key: new.pop(key, None) for key in ("parameter_randomization", "curriculum")}
    behaviors = new.get("behaviors")
    sections: dict[Path, object] = {("default_settings",): new.get("default_settings")}
    if isinstance(behaviors, dict):
        sections |= {("behaviors", name): behavior for name, behavior in behaviors.items()}
    for path, section in sections.items():
        if isinstance(section, dict):
            _repair(section, path, notes)
    parameters = new.get("environment_parameters")
    for name, form in parameters.items() if isinstance(parameters, dict) else ():
        lessons = form.get("curriculum") if isinstance(form, dict) else None
        if not isinstance(lessons, list):
            continue
        for index, lesson in enumerate(lessons):
            ((title, inner),) = lesson.items() if isinstance(lesson, dict) and len(lesson) == 1 else [("", None)]
            if isinstance(inner, dict):  # as `mlagents.trainers.upgrade_config` writes it: `- Lesson0: {...}`
                path = ("environment_parameters", name, "curriculum", index)
                notes.changed((*path, title), (*path, "name"), None, title, "a lesson's name is a key of the lesson")
                lessons[index] = {"name": title, **inner}
    for (key, form), add in zip(beside.items(), (_add_samplers, _add_curricula), strict=True):
        if form is not None:
            add(new, _mapping(form, (key,)), (key,), notes)
    return new


def _repair(behavior: JsonObject, path: Path, notes: _Notes) -> None:
    """Replace what only older releases accept in a behavior. Values that today's releases accept stay, however odd."""
    if "output_path" in behavior:
        notes.drop((*path, "output_path"), behavior.pop("output_path"), _NO_LONGER["output_path"])
    _rename(behavior, path, path, notes)
    signals = behavior.get("reward_signals")
    if behavior.get("trainer_type", "sac") != "sac":
        _drop_signal_updates(signals, (*path, "reward_signals"), notes)
    beside = isinstance(signals, dict) and signals.keys() & set(_SIGNAL_UPDATES)
    hyperparameters = behavior.setdefault("hyperparameters", {}) if beside else behavior.get("hyperparameters")
    if isinstance(hyperparameters, dict):
        place = (*path, "hyperparameters")

        def at(key: str) -> Path:
            return (*path, key) if key == "reward_signals" else (*place, key)

        _replace_updates(hyperparameters, signals, at, place, notes)
    encoder = (*path, "network_settings", "vis_encode_type")
    _rename_encoder(behavior, encoder, encoder, notes)
    if isinstance(behavior.get("self_play"), dict):
        _rename(behavior["self_play"], (*path, "self_play"), (*path, "self_play"), notes)
