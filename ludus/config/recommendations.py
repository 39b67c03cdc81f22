"""Keys that were measured against their defaults on tasks of a kind: what is behind `ludus recommend`.

Every score and every figure is in `measurements.json`, which `benchmarks/keys.py` writes and docs/recommendations.md
shows. A row is about one key of a behavior's section with one value:

    key, value, default     what was changed, and what it is without the row
    when                    conditions that a section shows: path -> the value, its range, or the reward signals
    tasks                   task, actions, steps, the scores `without` and `with` the value, one of each seed, and the
                            `probability` of improvement with the ends of its 95 % interval
    probability, p_value    the same over all tasks, and that of Mann and Whitney's test (`ludus.statistics`)
    source, date            the program or page with the scores, and when they were made

Conditions that no configuration shows (kind of actions, how rare rewards are) are not checked: the tasks name them.
"""

import json
from collections.abc import Iterable
from functools import cache, reduce
from pathlib import Path
from typing import Final

from ludus.json_values import JsonObject

FILE: Final = Path(__file__).with_name("measurements.json")
PROVEN_TASKS: Final = 8
"""With fewer tasks a key is called not proven."""
SIGNIFICANT: Final = 0.05
"""Largest p-value of a key that counts as measured better."""
PROBABLE: Final = 0.75
"""A key is recommended when a run is created if its probability of improvement is above this."""


@cache
def measurements() -> tuple[JsonObject, ...]:
    """Return all rows, in the file's order."""
    return tuple(json.loads(FILE.read_text(encoding="utf-8")))


def value_at(section: JsonObject, path: str) -> object:
    """Return the value at a dotted path of a resolved section; None where there is none."""
    node: object = section
    return reduce(lambda inner, key: inner.get(key) if isinstance(inner, dict) else None, path.split("."), node)


def unmet(row: JsonObject, section: JsonObject) -> list[str]:
    """Return the conditions of a row that a resolved section does not meet, in words; none: it is of that kind."""
    words = []
    for path, condition in row["when"].items():
        value = value_at(section, path)
        if isinstance(condition, dict):
            if not isinstance(value, int) or not condition["min"] <= value <= condition["max"]:
                words.append(f"{path} from {condition['min']:,} to {condition['max']:,}")
        elif isinstance(condition, list):
            if not isinstance(value, dict) or [name for name in value if value[name] is not None] != condition:
                words.append(f"{path} of {' and '.join(condition)} alone")
        elif value != condition:
            words.append(f"{path} {json.dumps(condition)}")
    return words


def measured(section: JsonObject) -> list[JsonObject]:
    """Return the rows for the kind of task that a resolved section is for, whose key has its default there."""
    rows = [row for row in measurements() if not unmet(row, section)]
    return [row for row in rows if value_at(section, row["key"]) == row["default"]]


def is_better(row: JsonObject) -> bool:
    """Whether a key measured better over its tasks, beyond what the seeds explain."""
    return bool(row["probability"]["low"] > 0.5 and row["p_value"] <= SIGNIFICANT)


def harmed(row: JsonObject) -> list[str]:
    """Return the tasks on which a key measured worse: the interval of its probability of improvement is below 0.5."""
    return [task["task"] for task in row["tasks"] if task["probability"]["high"] < 0.5]


def figures(row: JsonObject) -> str:
    """Return the probability of improvement of a row, or of a task, with its interval."""
    return "{value:.2f} [{low:.2f}, {high:.2f}]".format(**row["probability"])


def summary(row: JsonObject) -> str:
    """Return the figures of a row in words."""
    count, seeds = len(row["tasks"]), min(len(task["with"]) for task in row["tasks"])
    proof = "" if count >= PROVEN_TASKS else ": off by default, not proven"
    return f"probability of improvement {figures(row)} on {count} task{'s' if count > 1 else ''} x {seeds} seeds{proof}"


def advice(rows: Iterable[JsonObject]) -> tuple[str, str] | None:
    """Return a key and a sentence about what pays among `measured` rows, for a warning; None where nothing does."""
    paying = [row for row in rows if is_better(row) and row["probability"]["value"] > PROBABLE and not harmed(row)]
    if not paying:
        return None
    names = "; ".join(f"{row['key']}: {json.dumps(row['value'])} ({summary(row)})" for row in paying)
    return paying[0]["key"], f"another value measured better on tasks of this kind: {names}; see `ludus recommend`"
