"""Files without `behaviors`, up to 0.16: one block for each behavior, on top of `default`."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ludus.config.behavior import TRAINERS
from ludus.config.network import MemorySettings, NetworkSettings
from ludus.config.problems import Path, show
from ludus.config.values import OWN, Section
from server.config.upgrade.environment_parameters import CURRICULUM_KEYS, add_parameters, read_curricula
from server.config.upgrade.keys import (
    NO_LONGER,
    PER_AGENT,
    RENAMED,
    SIGNAL_UPDATES,
    UNKNOWN,
    UPDATES,
    modernise,
    replace_updates,
)
from server.config.upgrade.notes import Notes, mapping_at, refuse


def _keys(section: type[Section]) -> list[str]:
    """Return the keys that a section has in ML-Agents."""
    return [key for key, item in section.model_fields.items() if item.json_schema_extra != OWN]


_STEPS: Final = {"max_steps", "summary_freq", "buffer_init_steps"}
_CLONES: Final = {"offline_bc", "online_bc", "imitation"}
_MEMORY: Final = _keys(MemorySettings)
_CURIOSITY: Final = {"curiosity_strength": "strength", "curiosity_enc_size": "encoding_size"}
_OLD_KEYS: Final = frozenset(
    {"trainer", "use_recurrent", *RENAMED, *_keys(NetworkSettings)}
    | {key for config in TRAINERS.values() for key in _keys(config)}
)
"""Keys that tell a behavior's block from anything else."""


def from_blocks(old: dict[str, Any], notes: Notes) -> dict[str, Any]:
    """Convert a flat file."""
    blocks = {name: block for name, block in old.items() if isinstance(block, dict)}
    if blocks and all(block.keys() >= CURRICULUM_KEYS for block in blocks.values()):
        return _from_curriculum(blocks, notes)
    if old.keys() >= CURRICULUM_KEYS:
        message = "this is the curriculum of one behavior; give it beside the trainers' file, with `--curriculum`"
        raise refuse((), "old_format", message)
    if any({"sampler-type", "sampler_type"} & block.keys() for block in blocks.values()):
        message = "this is a file of samplers alone; give it beside the trainers' file, with `--sampler`"
        raise refuse((), "old_format", message)
    if not any(_OLD_KEYS & block.keys() for block in blocks.values()):
        raise refuse(
            (), "missing", "this is no configuration of any release: there is neither `behaviors` nor a trainer"
        )
    for name, block in old.items():
        mapping_at(block, (name,))
    default = old.get("default", {})
    new: dict[str, Any] = {}
    if default:
        why = (
            "merged under each behavior; behaviors that the file does not name have to be added to it"
            if len(old) > 1
            else "the template of all behaviors that the game announces"
        )
        notes.moved(("default",), ("behaviors", "*") if len(old) > 1 else ("default_settings",), why)
    if old.keys() == {"default"}:
        return {"default_settings": _Block("default", {}, default, notes).convert()}
    new["behaviors"] = {
        name: _Block(name, block, default, notes).convert() for name, block in old.items() if name != "default"
    }
    return new


def _from_curriculum(blocks: dict[str, Any], notes: Notes) -> dict[str, Any]:
    new: dict[str, Any] = {"behaviors": {name: {} for name in blocks}}
    why = "the file is a curriculum alone; for other than defaults give it beside the trainers' file"
    for name in blocks:
        notes.changed((name,), ("behaviors", name), None, {}, why)
    add_parameters(new, read_curricula(blocks, (), notes), (), notes)
    return new


class _Block:
    """One behavior of a flat file, on top of `default`."""

    def __init__(self, name: str, own: Mapping[str, Any], default: Mapping[str, Any], notes: Notes) -> None:
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
        for key in [*_keys(config), *RENAMED]:
            if key in self._left:
                self._keep(key)
        if trainer == "clone":
            self._note_clone()
        for key, value in self._left.items():
            why = NO_LONGER.get(key, f"{UNKNOWN}, or not with trainer_type {trainer}")
            self._notes.drop(self._at(key), value, why)
        modernise(self._new, self._at, self._there, self._notes)
        return self._new

    def _at(self, key: str) -> Path:
        """Return where a key was written, if need be under its former name."""
        names = [key, *(old for old, new in RENAMED.items() if new == key)]
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
            raise refuse(
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
        keys = {key: self._take(key) for key in UPDATES if key in self._left}
        signals = self._left.get("reward_signals")
        beside = isinstance(signals, dict) and signals.keys() & set(SIGNAL_UPDATES)
        if not keys and not beside:
            return
        section = self._new.setdefault("hyperparameters", {})
        section.update(keys)
        sources = {*keys, "reward_signals"} if beside else keys.keys()
        to = self._to if sources & self._own.keys() else ("behaviors", "*")
        replace_updates(section, signals, self._at, (*to, "hyperparameters"), self._notes)

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
            why = PER_AGENT if key in _STEPS else "has its place there now"
            self._notes.moved(("*", key), ("behaviors", "*", section, key), why)
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
        new = RENAMED.get(key, key)
        if new != key:
            self._notes.moved(self._at(key), self._there(key, new), "the key's new name")
        elif key in _STEPS and self._new["trainer_type"] != "clone":
            self._notes.moved(("*", key), ("behaviors", "*", key), PER_AGENT)
        self._new[new] = self._take(key)

    def _note_clone(self) -> None:
        for key in ("max_steps", "summary_freq"):
            if key in self._new:
                value = self._new[key]
                self._notes.changed(
                    self._at(key), self._there(key, key), value, value, "counts gradient steps in a clone run"
                )
