"""Files with `behaviors`, up to 0.18: the sections that older releases had beside it, or in it."""

import copy
from typing import Any

from ludus.config.problems import Path
from server.config.upgrade.environment_parameters import add_parameters, read_curricula, read_samplers
from server.config.upgrade.keys import (
    NO_LONGER,
    SIGNAL_UPDATES,
    drop_signal_updates,
    rename,
    rename_encoder,
    replace_updates,
)
from server.config.upgrade.notes import Notes, mapping_at


def from_sections(old: dict[str, Any], notes: Notes) -> dict[str, Any]:
    """Convert what older releases had beside `behaviors`, or in it; everything else stays as it is."""
    new = {
        key: value for key, value in copy.deepcopy(old).items() if key not in {"parameter_randomization", "curriculum"}
    }
    behaviors = new.get("behaviors")
    sections: dict[Path, Any] = {("default_settings",): new.get("default_settings")}
    if isinstance(behaviors, dict):
        sections |= {("behaviors", name): behavior for name, behavior in behaviors.items()}
    for place, section in sections.items():
        if isinstance(section, dict):
            _repair(section, place, notes)
    _repair_lessons(new.get("environment_parameters"), notes)
    samplers, curricula = old.get("parameter_randomization"), old.get("curriculum")
    if samplers is not None:
        path = ("parameter_randomization",)
        add_parameters(new, read_samplers(mapping_at(samplers, path), path, notes), path, notes)
    if curricula is not None:
        path = ("curriculum",)
        add_parameters(new, read_curricula(mapping_at(curricula, path), path, notes), path, notes)
    return new


def _repair(behavior: dict[str, Any], path: Path, notes: Notes) -> None:
    """Replace what only older releases accept in a behavior. Values that today's releases accept stay, however odd."""
    if "output_path" in behavior:
        notes.drop((*path, "output_path"), behavior.pop("output_path"), NO_LONGER["output_path"])
    rename(behavior, path, path, notes)
    _repair_updates(behavior, path, notes)
    place = (*path, "network_settings", "vis_encode_type")
    rename_encoder(behavior, place, place, notes)
    if isinstance(behavior.get("self_play"), dict):
        place = (*path, "self_play")
        rename(behavior["self_play"], place, place, notes)


def _repair_updates(behavior: dict[str, Any], path: Path, notes: Notes) -> None:
    """Bring how often SAC updates into its hyperparameters, also what stood beside the reward signals."""
    signals = behavior.get("reward_signals")
    if behavior.get("trainer_type", "sac") != "sac":
        drop_signal_updates(signals, (*path, "reward_signals"), notes)
    beside = isinstance(signals, dict) and signals.keys() & set(SIGNAL_UPDATES)
    hyperparameters = behavior.setdefault("hyperparameters", {}) if beside else behavior.get("hyperparameters")
    if isinstance(hyperparameters, dict):
        place = (*path, "hyperparameters")

        def at(key: str) -> Path:
            return (*path, key) if key == "reward_signals" else (*place, key)

        replace_updates(hyperparameters, signals, at, place, notes)


def _repair_lessons(parameters: Any, notes: Notes) -> None:
    """Rewrite lessons in the form of `mlagents.trainers.upgrade_config`, `- Lesson0: {...}`."""
    for name, form in parameters.items() if isinstance(parameters, dict) else ():
        lessons = form.get("curriculum") if isinstance(form, dict) else None
        if isinstance(lessons, list):
            path = ("environment_parameters", name, "curriculum")
            form["curriculum"] = [_repair_lesson(lesson, (*path, index), notes) for index, lesson in enumerate(lessons)]


def _repair_lesson(lesson: Any, path: Path, notes: Notes) -> Any:
    if not (isinstance(lesson, dict) and len(lesson) == 1):
        return lesson
    ((name, inner),) = lesson.items()
    if not isinstance(inner, dict):
        return lesson
    notes.changed((*path, name), (*path, "name"), None, name, "a lesson's name is a key of the lesson")
    return {"name": name, **inner}
