"""Environment parameters: samplers and curricula, from files or sections of their own."""

from collections.abc import Mapping
from typing import Any, Final

from ludus.config.environment_parameters import SAMPLERS
from ludus.config.problems import Path, show
from server.config.upgrade.keys import UNKNOWN
from server.config.upgrade.notes import Notes, mapping_at, refuse

CURRICULUM_KEYS: Final = {"measure", "thresholds", "parameters"}
_NUMBERS: Final = ("seed", "min_value", "max_value", "mean", "st_dev", "intervals", "value")


def add_parameters(new: dict[str, Any], found: Mapping[str, Any], path: Path, notes: Notes) -> None:
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


def read_samplers(old: Mapping[str, Any], path: Path, notes: Notes) -> dict[str, Any]:
    """Convert a file, or a section, of samplers."""
    found = {}
    for name, form in old.items():
        if name == "resampling-interval":
            notes.drop((*path, name), form, "parameters are drawn again whenever the game resets")
            continue
        given = dict(mapping_at(form, (*path, name)))
        kind = given.pop("sampler-type", given.pop("sampler_type", None))
        numbers = dict(mapping_at(given.pop("sampler_parameters", {}), (*path, name, "sampler_parameters")))
        numbers |= {key: given.pop(key) for key in _NUMBERS if key in given}
        if kind is None:
            raise refuse((*path, name), "missing", f"has no sampler-type; it is one of {', '.join(SAMPLERS)}")
        for key, value in given.items():
            notes.drop((*path, name, key), value, UNKNOWN)
        new = {
            "sampler_type": "multirangeuniform" if kind == "multirange_uniform" else kind,
            "sampler_parameters": numbers,
        }
        notes.changed(
            (*path, name), ("environment_parameters", name), form, new, "samplers and curricula have one place now"
        )
        found[name] = new
    return found


def by_behavior(curriculum: dict[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return curricula by behavior; one that names none is for the only behavior there is."""
    if not curriculum.keys() >= CURRICULUM_KEYS:
        return curriculum
    behaviors = list(mapping_at(new.get("behaviors", {}), ("behaviors",)))
    if len(behaviors) != 1:
        message = "does not say for which behavior it is; write `NAME: {measure: ..., ...}`, or name the file after it"
        raise refuse(("curriculum",), "missing", message)
    return {behaviors[0]: curriculum}


def read_curricula(old: Mapping[str, Any], path: Path, notes: Notes) -> dict[str, Any]:
    """Convert curricula by behavior."""
    found: dict[str, Any] = {}
    for behavior, form in old.items():
        here = (*path, behavior)
        given = dict(mapping_at(form, here))
        if missing := sorted(CURRICULUM_KEYS - given.keys()):
            raise refuse(here, "missing", f"a curriculum needs {', '.join(missing)}")
        thresholds, parameters = given.pop("thresholds"), mapping_at(given.pop("parameters"), (*here, "parameters"))
        if not isinstance(thresholds, list):
            raise refuse((*here, "thresholds"), "wrong_type", f"must be a list, but is {show(thresholds)}")
        criteria = {
            "measure": given.pop("measure"),
            "behavior": behavior,
            "signal_smoothing": given.pop("signal_smoothing", False),
            "min_lesson_length": given.pop("min_lesson_length", 1),
        }
        for key, value in given.items():
            notes.drop((*here, key), value, UNKNOWN)
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
        raise refuse(path, "wrong_type", message)
    lessons: list[dict[str, Any]] = [
        {"name": f"Lesson{index}", "completion_criteria": {**criteria, "threshold": threshold}, "value": value}
        for index, (threshold, value) in enumerate(zip(thresholds, values, strict=False))
    ]
    return [*lessons, {"name": f"Lesson{len(thresholds)}", "value": values[-1]}]
