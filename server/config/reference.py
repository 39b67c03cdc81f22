"""Writes docs/configuration.md from the models: `python -m server.config.reference docs/configuration.md`.

All facts in the page that can change (keys, types, defaults, ranges, refused keys, codes, limits) come from the code; a
test compares the committed page with the output of this module.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from server.config.assessment import EvaluateSettings, MatchSettings
from server.config.behavior import TRAINERS, TrainerConfig
from server.config.builds import EngineSettings, EnvironmentSettings
from server.config.divergence import DivergenceSettings
from server.config.document import MAX_ALIASED, MAX_BYTES, MAX_DEPTH, MAX_VALUES
from server.config.environment_parameters import (
    CompletionCriteria,
    ConstantParameters,
    ConstantSampler,
    Curriculum,
    GaussianParameters,
    GaussianSampler,
    Lesson,
    MultiRangeUniformParameters,
    MultiRangeUniformSampler,
    UniformParameters,
    UniformSampler,
)
from server.config.imitation import BehavioralCloningConfig
from server.config.key_validation import MAX_PROBLEMS
from server.config.mlagents_keys import MLAgentsKey, mlagents_keys_of, path_keys
from server.config.network import MemorySettings, NetworkSettings
from server.config.presets import list_presets, read_preset
from server.config.problems import CODES
from server.config.rewards import RewardSignals, signal_classes
from server.config.run import CheckpointSettings, KeepBest, Resources, RunConfig, SimulatorsConfig, TorchSettings
from server.config.selfplay import SelfPlaySettings
from server.config.unsupported import UNSUPPORTED
from server.config.values import OWN, Section
from server.kit.docstrings import field_texts


def _of_trainer(name: str, trainer: type[TrainerConfig]) -> Iterator[tuple[type[Section], str]]:
    """Yield the sections of a trainer with their paths."""
    yield trainer, f"`behaviors.NAME` with `trainer_type: {name}`"
    yield type(trainer.model_fields["hyperparameters"].default), f"`behaviors.NAME.hyperparameters` of `{name}`"


PATHS: Final[Mapping[type[Section], str]] = {
    RunConfig: "The document",
    **dict(pair for name, trainer in TRAINERS.items() for pair in _of_trainer(name, trainer)),
    NetworkSettings: "behaviors.NAME.network_settings",
    MemorySettings: "behaviors.NAME.network_settings.memory",
    RewardSignals: "behaviors.NAME.reward_signals",
    **{signal: f"behaviors.NAME.reward_signals.{name}" for name, signal in signal_classes().items()},
    BehavioralCloningConfig: "behaviors.NAME.behavioral_cloning",
    DivergenceSettings: "behaviors.NAME.divergence",
    SelfPlaySettings: "behaviors.NAME.self_play",
    EnvironmentSettings: "env_settings",
    EngineSettings: "engine_settings",
    ConstantSampler: "`environment_parameters.NAME` with `sampler_type: constant`",
    ConstantParameters: "`environment_parameters.NAME.sampler_parameters` of `constant`",
    UniformSampler: "`environment_parameters.NAME` with `sampler_type: uniform`",
    UniformParameters: "`environment_parameters.NAME.sampler_parameters` of `uniform`",
    GaussianSampler: "`environment_parameters.NAME` with `sampler_type: gaussian`",
    GaussianParameters: "`environment_parameters.NAME.sampler_parameters` of `gaussian`",
    MultiRangeUniformSampler: "`environment_parameters.NAME` with `sampler_type: multirangeuniform`",
    MultiRangeUniformParameters: "`environment_parameters.NAME.sampler_parameters` of `multirangeuniform`",
    Curriculum: "environment_parameters.NAME",
    Lesson: "environment_parameters.NAME.curriculum",
    CompletionCriteria: "environment_parameters.NAME.curriculum.completion_criteria",
    CheckpointSettings: "checkpoint_settings",
    KeepBest: "checkpoint_settings.keep_best",
    TorchSettings: "torch_settings",
    SimulatorsConfig: "simulators",
    Resources: "resources",
    MatchSettings: "match",
    EvaluateSettings: "evaluate",
}
"""Every section, in the page's order, with its path."""

_TYPES: Final = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text"}


def render() -> str:
    """Return the page."""
    parts = [
        _INTRODUCTION,
        *(_section(section, path) for section, path in PATHS.items()),
        _PPO_OR_SAC,
        _DEFAULTS,
        _refused(),
        _unsupported(),
        _problem_codes(),
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
    """Return the schemas of a value; several if null is legal, or if a list may also be a single value."""
    inner = schema.get("anyOf") or schema.get("oneOf")
    return [variant for each in inner for variant in _variants(each)] if inner else [schema]


def _type(schema: Mapping[str, Any]) -> str:
    return " or ".join(dict.fromkeys(_variant_type(variant) for variant in _variants(schema)))


def _types(schema: Mapping[str, Any]) -> str:
    """Write the type of several values, in the plural: `texts`, `lists of numbers`."""
    kinds = dict.fromkeys(_variant_type(variant) for variant in _variants(schema))
    return " or ".join(f"lists{kind[4:]}" if kind.startswith("list of") else f"{kind}s" for kind in kinds)


def _variant_type(variant: Mapping[str, Any]) -> str:
    match variant:
        case {"const": value}:
            return f"`{value}`"
        case {"enum": values}:
            return " or ".join(f"`{value}`" for value in values)
        case {"$ref": _}:
            return "section"
        case {"type": "object", "additionalProperties": inner}:
            return f"mapping of names to {_types(inner)}"
        case {"type": "array", "items": inner}:
            return f"list of {_types(inner)}"
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
    signs = {"minimum": "≥ ", "exclusiveMinimum": "> ", "maximum": "≤ ", "exclusiveMaximum": "< "}
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
    return f"{field_texts(section)[key]}{own}"


def _refused() -> str:
    rows = [row for section, path in PATHS.items() for row in _refused_rows(path, mlagents_keys_of(section))]
    rows += [row for section, path in PATHS.items() for row in _refused_rows(path, path_keys(section))]
    table = _table(["key", "code", "accepted values", "instead"], dict.fromkeys(rows))
    return f"{_REFUSED.strip()}\n\n{table}"


def _unsupported() -> str:
    rows = [(f"`{key}`", instead) for key, instead in UNSUPPORTED.items()]
    return f"{_UNSUPPORTED.strip()}\n\n{_table(['key', 'instead'], rows)}"


def _refused_rows(path: str, keys: Mapping[str, MLAgentsKey]) -> Iterator[tuple[str, str, str, str]]:
    """Yield rows; a key that all trainers refuse has one row for each trainer."""
    for key, mlagents_key in keys.items():
        accepted = [f"`{json.dumps(value)}`" for value in (None, *mlagents_key.neutral)]
        accepted += ["any mapping"] if mlagents_key.inert else []
        where = f"`{key}`" if path == PATHS[RunConfig] else _inside(path, key)
        yield where, f"`{mlagents_key.code}`", ", ".join(accepted), mlagents_key.instead


def _inside(path: str, key: str) -> str:
    """Write the path of a key; the trainers share theirs."""
    place, _, of = path.partition(" ")
    suffix = f" {of}" if of.startswith("of ") else ""
    return f"`{place.strip('`')}.{key}`{suffix}"


def _problem_codes() -> str:
    rows = [(f"`{code}`", meaning) for code, meaning in sorted(CODES.items())]
    return f"{_MISTAKES.strip()}\n\n{_table(['code', 'meaning'], rows)}"


def _presets() -> Iterator[str]:
    yield "## Presets\n\nConfigurations that are known to work, in `server/config/presets`."
    for name in list_presets():
        yield f"### {name}\n\n```yaml\n{read_preset(name).strip()}\n```"


_INTRODUCTION: Final = f"""
<!-- Written by `python -m server.config.reference docs/configuration.md`; don't edit. -->

# The configuration of a run

The configuration of a run is a document in the format of Unity ML-Agents (Python package 1.1.0), as YAML 1.1 or JSON:
the same keys, the same defaults. Keys that Ludus adds are marked. The shortest document:

```sh
echo 'behaviors: {{CartPole: {{}}}}' | ludus run create - --name first
```

- An unknown key is refused, never ignored; the answer names the nearest known one. Keys that Ludus does not support
  yet resolve, and are refused by name when a run is made of them. All problems are reported at once, each with its path
  (`behaviors.CartPole.hyperparameters.batch_size`), a code and what to do. Put a key with a dot in quotes:
  `behaviors."my.bot".max_steps`.
- Numbers may be text that denotes a number, because YAML 1.1 reads `3e-4` and `1e5` as text. A whole number may be
  written as `64.0`, but not as `64.5` (`max_steps` cuts a fraction, as in ML-Agents). True and false are never
  numbers, and text is never true or false.
- The run stores the document resolved, with every default filled in.
- Overrides (`behaviors.CartPole.max_steps` = 200000) act on the document before defaults are filled in.
- A document has at most {MAX_BYTES:,} bytes, {MAX_VALUES:,} values and {MAX_DEPTH} levels; YAML aliases may add
  {MAX_ALIASED:,} values. Duplicate keys, tags, NaN and infinite numbers are refused.

- "Typical" ranges solve most tasks: those of ML-Agents' documentation, if it has the key. They are a starting point,
  not limits; the legal values stand under "range". ["PPO or SAC?"](#ppo-or-sac) compares the trainers;
  [metrics.md](metrics.md) says how a run's numbers should look.

## Keys
"""

_PPO_OR_SAC: Final = """
## PPO or SAC?

| | PPO | SAC |
| --- | --- | --- |
| learns from | the newest `buffer_size` steps, then drops them | `buffer_size` steps, drawn repeatedly |
| steps needed | more | often 5 to 10 times fewer |
| computing per step | little: some minibatches per `buffer_size` | much: one minibatch per `steps_per_update` steps |
| suited to | many fast simulators | slow ones: physics, pictures, one device |
| settings | most values work | `buffer_init_steps`, `init_entcoef` and `steps_per_update` matter |
| stability | usually stable | less stable; rewards of very different size harm it |
| exploration | `beta`, which you choose | holds its entropy at a target of its own |
| self-play | yes | not advised: the buffer keeps games against opponents that have changed since |
| groups of agents | `poca` is PPO with a critic for groups | each agent for itself |

Begin with PPO. Take SAC if a step costs about 0.1 s or more, or if only few steps are possible. With SAC

- set `steps_per_update` to about the number of agents that play at once, lower if simulators are the slow part;
- let `buffer_init_steps` hold several episodes, and keep `learning_rate_schedule: constant`;
- scale rewards to about 1 per step or episode: the entropy coefficients are relative to them;
- set `save_replay_buffer: true` for runs that will be paused or interrupted. Without it a resumed run begins with an
  empty buffer, and says so (`replay_buffer_not_loaded`).

`time_horizon` under SAC: PPO and POCA compute advantages within pieces of `time_horizon` steps and let the value
function stand for the rest, so it is a hyperparameter there. SAC learns from single transitions, each with the
observation that followed it; an LSTM learns from sequences that follow an episode across pieces. The position of a cut
does not change the result. It delays nothing either: steps are in the buffer when their round is
complete, for every length of a piece. (In ML-Agents they wait for `time_horizon` steps or the end of the episode.)
"""

_DEFAULTS: Final = """
## `default_settings`

Each behavior starts from `default_settings` with every default of the template filled in, as in ML-Agents; its own keys
override them: mappings merge key by key, all other values replace. So

- a schedule that is not written out is that of the template, not a copy of the behavior's `learning_rate_schedule`; the
  same holds for `team_change` and `reward_signal_steps_per_update`,
- a template that lists no reward signals has `extrinsic`, and so has each of its behaviors,
- an `encoding_size` has no effect in a signal that the template has, too.

Ludus accepts two documents that ML-Agents refuses:

- a behavior with another `trainer_type` inherits the keys of the template itself, without hyperparameters and keys
  that its own trainer does not have,
- a behavior drops an inherited reward signal by setting it to null.

A behavior that a simulator announces and `behaviors` does not name is trained by `default_settings`, if they are
given; else the simulator is refused.
"""

_REFUSED: Final = """
## Keys that are refused

These keys accept only values without effect: null, and the values listed (mostly ML-Agents' defaults, which every
exported `configuration.yaml` contains). A path never means the server's disk. A trainer that runs alone
(`python -m worker.trainer CONFIG`) reads `demo_path` and `init_path` from its own. `ludus config upgrade FILE` converts
older formats.

`encoding_size` in a reward signal is accepted with a warning: as in ML-Agents it means
`network_settings: {hidden_units: ...}` if no `network_settings` is given. `framework` is accepted with a warning.
"""

_UNSUPPORTED: Final = """
## Keys that no run can have yet

They resolve, and can be stored, but are refused by name when a run is made of them. Each is accepted with a value
without effect (null, false, its default).
"""

_MISTAKES: Final = f"""
## Problems

Each problem has a path, a message, and one of these codes. At most {MAX_PROBLEMS} are listed. Warnings have the same
form; they do not prevent a run, and stand among its events (`config_doubted`).
"""

_DIFFERENCES: Final = """
## What ML-Agents accepts and Ludus does not

- Numbers without a meaning: a `batch_size` above `buffer_size` (never learns), a negative `learning_rate`,
  `summary_freq: 0`, `keep_checkpoints: 0` (with `even_checkpoints` a division by zero), and all others outside the
  ranges above.
- `'false'` as text for a truth value (ML-Agents reads it as true), and whole numbers with a fraction (it cuts them).
- Unknown keys in `network_settings`, `memory`, `self_play`, `behavioral_cloning`, `completion_criteria`,
  `torch_settings` and beside `sampler_type` (it ignores them).
- An interval of three values (it drops the third), and a curriculum without lessons (it fails when training begins).
- A criterion on a behavior that is not trained (its lesson would never end).
- `memory` in a reward signal's `network_settings`, and `shared_critic: false` under `sac` and `poca`, are dropped.
- Behavior names with `?team=`, and names that can't be part of a file's name.
"""

if __name__ == "__main__":
    main(sys.argv[1:])
