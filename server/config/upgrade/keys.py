"""Keys of a behavior's sections that were renamed or have no meaning any more."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from ludus.config.imitation import BehavioralCloningConfig
from ludus.config.problems import Path, show
from ludus.config.rewards import CuriosityConfig, ExtrinsicConfig, GAILConfig, RNDConfig
from ludus.config.selfplay import SelfPlaySettings
from ludus.config.values import Section
from server.config.upgrade.notes import Notes, refuse

_SIGNALS: Final[Mapping[str, type[Section]]] = {
    "extrinsic": ExtrinsicConfig,
    "curiosity": CuriosityConfig,
    "gail": GAILConfig,
    "rnd": RNDConfig,
}
RENAMED: Final = {
    "pretraining": "behavioral_cloning",
    "play_against_current_self_ratio": "play_against_latest_model_ratio",
}
UNKNOWN: Final = "is not known, neither to ML-Agents nor here"
NO_LONGER: Final = {
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
UPDATES: Final = ("train_interval", "num_update", "num_updates", "reward_signal_num_update")
SIGNAL_UPDATES: Final = ("reward_signal_num_update", "reward_signal_steps_per_update")
"""A key of `reward_signals` beside the signals, up to 0.16: how often SAC updates the learned signals."""
PER_AGENT: Final = (
    "files of 2019 counted steps of the simulation, and steps of agents count now: multiply it by the number of agents "
    "in the scene if the file is that old"
)


class _Place(Protocol):
    """Describes the new place of a key, or of its value."""

    def __call__(self, key: str, *below: str) -> Path: ...


def replace_updates(section: dict[str, Any], signals: Any, at: Callable[[str], Path], to: Path, notes: Notes) -> None:
    """Replace updates per interval by steps per update, also those beside the reward `signals`.

    `at` says where a key was, `reward_signals` among them, `to` where the section is.
    """
    given: dict[str, Any] = {key: section.pop(key) for key in UPDATES if key in section}
    beside: dict[str, Any] = {}
    if isinstance(signals, dict):
        beside = {key: signals.pop(key) for key in SIGNAL_UPDATES if key in signals}
    paths = {key: at(key) for key in UPDATES} | {key: (*at("reward_signals"), key) for key in beside}
    for twice in given.keys() & beside.keys():
        notes.drop(at(twice), given[twice], f"has no effect beside `reward_signals.{twice}`")
    steps_key = "reward_signal_steps_per_update"
    if steps_key in beside:
        steps = beside.pop(steps_key)
        if steps_key in section:
            notes.drop(paths[steps_key], steps, f"has no effect beside `{steps_key}` of the hyperparameters")
        else:
            section[steps_key] = steps
            notes.moved(paths[steps_key], (*to, steps_key))
    given |= beside
    interval = given.pop("train_interval", None)
    if interval is not None and not given.keys() & {"num_update", "num_updates"}:
        given["num_update"] = None
    for key, count in given.items():
        new_key = "reward_signal_steps_per_update" if key == "reward_signal_num_update" else "steps_per_update"
        pair = {"train_interval": interval, key: count}
        written = {old_key: value for old_key, value in pair.items() if value is not None}
        if new_key in section:
            for old_key, value in written.items():
                notes.drop(paths[old_key], value, f"has no effect beside `{new_key}`")
            continue
        section[new_key] = ratio = _ratio(written.get("train_interval", 1), written.get(key, 1), paths[key])
        for old_key, value in written.items():
            why = f"agent steps per gradient step: train_interval / {key} (1 where not given)"
            why += f"; {PER_AGENT}" if old_key == "train_interval" else ""
            notes.changed(paths[old_key], (*to, new_key), value, ratio, why)


def _ratio(interval: Any, count: Any, path: Path) -> int | float:
    try:
        ratio = float(interval) / float(count)
    except (TypeError, ValueError, ArithmeticError):
        ratio = math.nan
    if not math.isfinite(ratio):
        message = f"train_interval {show(interval)} / {path[-1]} {show(count)} is no number of steps per update"
        raise refuse(path, "invalid_value", message)
    return int(ratio) if ratio.is_integer() else ratio


def modernise(behavior: dict[str, Any], at: Callable[[str], Path], there: _Place, notes: Notes) -> None:
    """Replace what older releases had inside a behavior's sections. `at` and `there` say where those were and are."""
    encoder = "vis_encode_type"
    rename_encoder(behavior, at(encoder), there(encoder, "network_settings", encoder), notes)
    signals = behavior.get("reward_signals")
    drop_signal_updates(signals, at("reward_signals"), notes)
    for name, signal in signals.items() if isinstance(signals, dict) else ():
        if isinstance(signal, dict) and name in _SIGNALS:
            before, after = (*at("reward_signals"), name), there("reward_signals", "reward_signals", name)
            _move_encoding(signal, before, after, notes)
            _keep_known(signal, _SIGNALS[name], before, notes)
    for key, kind in (("self_play", SelfPlaySettings), ("behavioral_cloning", BehavioralCloningConfig)):
        section = behavior.get(key)
        if isinstance(section, dict):
            rename(section, at(key), there(key, key), notes)
            _keep_known(section, kind, at(key), notes)


def drop_signal_updates(signals: Any, path: Path, notes: Notes) -> None:
    """Drop from `reward_signals` how often SAC updates them: no other trainer reads it."""
    for key in SIGNAL_UPDATES if isinstance(signals, dict) else ():
        if key in signals:
            notes.drop((*path, key), signals.pop(key), "only the trainer `sac` reads it")


def _move_encoding(signal: dict[str, Any], before: Path, after: Path, notes: Notes) -> None:
    size = signal.pop("encoding_size", None)
    if size is None:
        return
    if "network_settings" in signal:
        notes.drop((*before, "encoding_size"), size, "has no effect beside `network_settings`")
        return
    signal["network_settings"] = {"hidden_units": size}
    notes.moved((*before, "encoding_size"), (*after, "network_settings", "hidden_units"))


def rename(section: dict[str, Any], before: Path, after: Path, notes: Notes) -> None:
    """Give keys of a section their new names, in their places."""
    former = [key for key in section if key in RENAMED]
    if not former:
        return
    renamed = {RENAMED.get(key, key): value for key, value in section.items()}
    for key in former:
        notes.moved((*before, key), (*after, RENAMED[key]), "the key's new name")
    section.clear()
    section.update(renamed)


def rename_encoder(behavior: dict[str, Any], before: Path, after: Path, notes: Notes) -> None:
    """Give the default encoder of pictures its new name."""
    network = behavior.get("network_settings")
    if isinstance(network, dict) and network.get("vis_encode_type") == "default":
        network["vis_encode_type"] = "simple"
        notes.changed(before, after, "default", "simple", "the encoder's new name")


def _keep_known(section: dict[str, Any], kind: type[Section], path: Path, notes: Notes) -> None:
    """Drop the keys that a section does not have; extrinsic rewards may have a network, which is unused."""
    for key in [key for key in section if key not in kind.model_fields and key != "network_settings"]:
        notes.drop((*path, key), section.pop(key), NO_LONGER.get(key, UNKNOWN))
