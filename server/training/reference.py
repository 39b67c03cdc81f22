"""Writes docs/configuration.md from the models: `python -m server.training.reference docs/configuration.md`.

Everything in the page that could become untrue (keys, types, defaults, ranges, refused keys, codes, limits) comes from
the code; a test compares the committed page with what this module writes.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from server.training.behavior import (
    BehavioralCloningConfig,
    CloneConfig,
    CloneHyperparameters,
    CuriosityConfig,
    ExtrinsicConfig,
    GAILConfig,
    MemorySettings,
    NetworkSettings,
    POCAConfig,
    POCAHyperparameters,
    PPOConfig,
    PPOHyperparameters,
    RewardSignals,
    RNDConfig,
    SACConfig,
    SACHyperparameters,
)
from server.training.document import MAX_ALIASED, MAX_BYTES, MAX_DEPTH, MAX_VALUES
from server.training.foreign import DEMO_PATH, SAMPLERS, SECTIONS, Foreign, foreign_keys
from server.training.presets import list_presets, read_preset
from server.training.problems import CODES
from server.training.run import RunConfig, SimulatorsConfig, TorchSettings
from server.training.screening import MAX_PROBLEMS
from server.training.values import OWN, Section

PATHS: Final[Mapping[type[Section], str]] = {
    RunConfig: "The document",
    PPOConfig: "`behaviors.NAME` with `trainer_type: ppo`",
    PPOHyperparameters: "`behaviors.NAME.hyperparameters` of `ppo`",
    SACConfig: "`behaviors.NAME` with `trainer_type: sac`",
    SACHyperparameters: "`behaviors.NAME.hyperparameters` of `sac`",
    POCAConfig: "`behaviors.NAME` with `trainer_type: poca`",
    POCAHyperparameters: "`behaviors.NAME.hyperparameters` of `poca`",
    CloneConfig: "`behaviors.NAME` with `trainer_type: clone`",
    CloneHyperparameters: "`behaviors.NAME.hyperparameters` of `clone`",
    NetworkSettings: "behaviors.NAME.network_settings",
    MemorySettings: "behaviors.NAME.network_settings.memory",
    RewardSignals: "behaviors.NAME.reward_signals",
    ExtrinsicConfig: "behaviors.NAME.reward_signals.extrinsic",
    CuriosityConfig: "behaviors.NAME.reward_signals.curiosity",
    GAILConfig: "behaviors.NAME.reward_signals.gail",
    RNDConfig: "behaviors.NAME.reward_signals.rnd",
    BehavioralCloningConfig: "behaviors.NAME.behavioral_cloning",
    TorchSettings: "torch_settings",
    SimulatorsConfig: "simulators",
}
"""Every section, in the page's order, with where it stands."""

_TYPES: Final = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text"}


def render() -> str:
    """Return the page."""
    parts = [
        _INTRODUCTION,
        *(_section(section, path) for section, path in PATHS.items()),
        _DEFAULTS,
        _refused(),
        _mistakes(),
        _DIFFERENCES,
        *_presets(),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def main(arguments: list[str]) -> None:
    """Write the page to the file that is named."""
    (target,) = arguments
    Path(target).write_text(render(), encoding="utf-8")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    titles = list(head)
    return "\n".join([line(titles), line("---" for _ in titles), *(line(row) for row in rows)])


def _section(section: type[Section], path: str) -> str:
    properties = section.model_json_schema()["properties"]
    title = path if " " in path or "`" in path else f"`{path}`"
    rows = [
        (f"`{key}`", _type(schema), _default(section, key), _range(schema), _description(section, key))
        for key, schema in properties.items()
    ]
    table = _table(["key", "type", "default", "range", "meaning"], rows)
    return f"### {title}\n\n{section.__doc__}\n\n{table}"


def _variants(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what a value may be; more than one where null is legal, or a list of what may also stand alone."""
    inner = schema.get("anyOf") or schema.get("oneOf")
    return [variant for each in inner for variant in _variants(each)] if inner else [schema]


def _type(schema: Mapping[str, Any]) -> str:
    return " or ".join(dict.fromkeys(_variant_type(variant) for variant in _variants(schema)))


def _variant_type(variant: Mapping[str, Any]) -> str:
    match variant:
        case {"const": value}:
            return f"`{value}`"
        case {"enum": values}:
            return " or ".join(f"`{value}`" for value in values)
        case {"$ref": _}:
            return "section"
        case {"type": "object", "additionalProperties": inner}:
            return f"mapping of names to {_type(inner)}s"
        case {"type": "array", "items": inner}:
            return f"list of {_type(inner)}s"
        case {"type": "null"}:
            return "null"
        case _:
            return _TYPES[variant["type"]]


def _default(section: type[Section], key: str) -> str:
    field = section.model_fields[key]
    if field.is_required():
        return "required"
    if field.default_factory is not None:
        return f"as `{field.default_factory.__name__.lstrip('_')}`"
    value = field.get_default()
    return "all defaults" if isinstance(value, Section) else f"`{json.dumps(value)}`"


def _range(schema: Mapping[str, Any]) -> str:
    signs = {"minimum": "≥ ", "exclusiveMinimum": "> ", "maximum": "≤ "}
    counts = {"minProperties": "≥ ", "maxProperties": "≤ ", "minItems": "≥ ", "maxItems": "≤ "}
    variants = _variants(schema)
    limits = [sign + _figure(variant[key]) for variant in variants for key, sign in signs.items() if key in variant]
    limits += [
        f"{sign}{variant[key]:,} entries" for variant in variants for key, sign in counts.items() if key in variant
    ]
    return ", ".join(limits)


def _figure(limit: float) -> str:
    return f"{limit:,.0f}" if limit == int(limit) else str(limit)


def _description(section: type[Section], key: str) -> str:
    field = section.model_fields[key]
    own = " *(Ludus' own key)*" if field.json_schema_extra == OWN else ""
    return f"{field.description}{own}"


def _refused() -> str:
    groups: list[tuple[str, Mapping[str, Foreign]]] = [
        *((path, foreign_keys(section)) for section, path in PATHS.items()),
        *SECTIONS.items(),
    ]
    rows = [row for path, keys in groups for row in _refused_rows(path, keys)]
    rows += _refused_rows("behaviors.NAME.*", {"demo_path": DEMO_PATH})
    rows += [
        (f"`environment_parameters.NAME` as {what}", "`unsupported`", "", "write a number")
        for what in ["a curriculum of several lessons", *(f"`sampler_type: {name}`" for name in sorted(SAMPLERS))]
    ]
    table = _table(["key", "code", "accepted values", "instead"], dict.fromkeys(rows))
    return f"{_REFUSED.strip()}\n\n{table}"


def _refused_rows(path: str, keys: Mapping[str, Foreign]) -> Iterator[tuple[str, str, str, str]]:
    """Yield rows; what all trainers refuse stands in them once each, alike."""
    for key, foreign in keys.items():
        accepted = [f"`{json.dumps(value)}`" for value in (None, *foreign.neutral)]
        accepted += ["any mapping"] if foreign.inert else []
        where = f"`{key}`" if path == PATHS[RunConfig] else _inside(path, key)
        yield where, f"`{foreign.code}`", ", ".join(accepted), foreign.instead


def _inside(path: str, key: str) -> str:
    """Write where a key stands; the trainers share their place."""
    place, _, of = path.partition(" ")
    suffix = f" {of}" if of.startswith("of ") else ""
    return f"`{place.strip('`')}.{key}`{suffix}"


def _mistakes() -> str:
    rows = [(f"`{code}`", meaning) for code, meaning in sorted(CODES.items())]
    return f"{_MISTAKES.strip()}\n\n{_table(['code', 'meaning'], rows)}"


def _presets() -> Iterator[str]:
    yield "## Presets\n\nConfigurations that are known to work, in `server/training/presets`."
    for name in list_presets():
        yield f"### {name}\n\n```yaml\n{read_preset(name).strip()}\n```"


_INTRODUCTION: Final = f"""
<!-- Written by `python -m server.training.reference docs/configuration.md`; don't edit. -->

# The configuration of a run

A run is configured by a document in the format of Unity ML-Agents (Python package 1.1.0), as YAML 1.1 or JSON: the
same keys, the same defaults. Keys that Ludus adds are marked. The shortest document is `behaviors: {{CartPole: {{}}}}`.

- An unknown key is a mistake, never ignored; the answer names the nearest known one. What Ludus does not support yet
  is refused by name. All mistakes are reported at once, each with its path
  (`behaviors.CartPole.hyperparameters.batch_size`), a code and what to do. A key that holds a dot stands in quotes:
  `behaviors."my.bot".max_steps`.
- Numbers may be text that denotes a number, since YAML 1.1 reads `3e-4` and `1e5` as text. A whole number may be
  written as `64.0`, but not as `64.5` (`max_steps` cuts a fraction, as in ML-Agents). True and false are never
  numbers, and text is never true or false.
- The run stores the document resolved, with every default filled in.
- Overrides (`behaviors.CartPole.max_steps` = 200000) act on the document before defaults are filled in.
- A document has at most {MAX_BYTES:,} bytes, {MAX_VALUES:,} values and {MAX_DEPTH} levels; YAML aliases may add
  {MAX_ALIASED:,} values. Duplicate keys, tags, NaN and infinite numbers are refused.

## Keys
"""

_DEFAULTS: Final = """
## `default_settings`

Each behavior starts from `default_settings` as it was written; its own keys go on top: mappings merge key by key,
anything else replaces. Where ML-Agents fills in the template's defaults before it merges, Ludus merges first, so that

- a schedule that nobody wrote copies the behavior's `learning_rate_schedule`,
- a behavior with another `trainer_type` does not inherit hyperparameters of the template's trainer, nor keys that its
  own trainer does not have,
- a behavior drops an inherited reward signal by setting it to null.

A behavior that a simulator announces and `behaviors` does not name is trained by `default_settings`, where they are
given; else the simulator is refused.
"""

_REFUSED: Final = """
## Keys of ML-Agents that Ludus refuses

Accepted is only what changes nothing: null, and the values listed (mostly ML-Agents' defaults, which every exported
`configuration.yaml` spells out). A path never means the server's disk. A trainer that runs alone
(`python -m worker.trainer CONFIG`) reads `demo_path` from its own.

`encoding_size` in a reward signal is accepted with a warning: as in ML-Agents it stands for
`network_settings: {hidden_units: ...}` where no `network_settings` is given.
"""

_MISTAKES: Final = f"""
## Mistakes

Each mistake has a path, a message, and one of these codes. At most {MAX_PROBLEMS} are listed. Warnings have the same
form; they keep nothing from running, and stand in the run's events (`config_doubted`).
"""

_DIFFERENCES: Final = """
## What ML-Agents accepts and Ludus does not

- Numbers that make no sense: a `batch_size` above `buffer_size` (never learns), a negative `learning_rate`,
  `summary_freq: 0`, `keep_checkpoints: 0` (with `even_checkpoints` a division by zero), `num_layers: 0` (which builds
  one layer), and all others outside the ranges above.
- `'false'` as text for a truth value (ML-Agents reads it as true), and whole numbers with a fraction (it cuts them).
- Unknown keys in `network_settings`, `memory`, `behavioral_cloning` and `torch_settings` (it ignores them).
- `memory` in a reward signal's `network_settings`, and `shared_critic: false` under `sac` and `poca`, are dropped.
- Behavior names with `?team=`, and names that can't be part of a file's name.
"""

if __name__ == "__main__":
    main(sys.argv[1:])
