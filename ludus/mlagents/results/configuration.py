"""`configuration.yaml`: a run's configuration with every default, its keys in ML-Agents' order.

ML-Agents' loader takes the file back. So a key that only Ludus has is written where the user's own file has it, and
left out where it would only say its default.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import yaml

Section: TypeAlias = Mapping[str, Any]
"""A section of a configuration, as YAML has it."""

_BEHAVIOR: Final = (
    "trainer_type",
    "hyperparameters",
    "checkpoint_interval",
    "network_settings",
    "reward_signals",
    "init_path",
    "keep_checkpoints",
    "even_checkpoints",
    "max_steps",
    "time_horizon",
    "summary_freq",
    "threaded",
    "self_play",
    "behavioral_cloning",
)
_ON_POLICY: Final = ("batch_size", "buffer_size", "learning_rate", "beta", "epsilon", "lambd", "num_epoch")
_SCHEDULES: Final = ("learning_rate_schedule", "beta_schedule", "epsilon_schedule")
_HYPERPARAMETERS: Final[Mapping[str, Sequence[str]]] = {
    "ppo": (*_ON_POLICY, "shared_critic", *_SCHEDULES),
    "poca": (*_ON_POLICY, *_SCHEDULES),
    "sac": (
        "learning_rate",
        "learning_rate_schedule",
        "batch_size",
        "buffer_size",
        "buffer_init_steps",
        "tau",
        "steps_per_update",
        "save_replay_buffer",
        "init_entcoef",
        "reward_signal_steps_per_update",
    ),
}
_NETWORK: Final = (
    "normalize",
    "hidden_units",
    "num_layers",
    "vis_encode_type",
    "memory",
    "goal_conditioning_type",
    "deterministic",
)
_MEMORY: Final = ("sequence_length", "memory_size")
_SIGNAL: Final = ("gamma", "strength", "network_settings")
_SIGNALS: Final[Mapping[str, Sequence[str]]] = {
    "extrinsic": _SIGNAL,
    "gail": (*_SIGNAL, "learning_rate", "encoding_size", "use_actions", "use_vail", "demo_path"),
    "curiosity": (*_SIGNAL, "learning_rate", "encoding_size"),
    "rnd": (*_SIGNAL, "learning_rate", "encoding_size"),
}
_SELF_PLAY: Final = (
    "save_steps",
    "team_change",
    "swap_steps",
    "window",
    "play_against_latest_model_ratio",
    "initial_elo",
)
_CLONING: Final = ("demo_path", "steps", "strength", "samples_per_update", "num_epoch", "batch_size")
_PATHS: Final = frozenset({"demo_path", "init_path"})
"""Keys that are not sent to a server: files are uploaded, and have ids there."""
_PLAIN_NETWORK: Final = {
    "normalize": False,
    "hidden_units": 128,
    "num_layers": 2,
    "vis_encode_type": "simple",
    "memory": None,
    "goal_conditioning_type": "hyper",
    "deterministic": False,
}
"""ML-Agents' values for the extrinsic signal, which has no network."""
_OWN_CRITERIA: Final = {"count_all_episodes": False, "fall_back_below": None}
"""Ludus' own keys of `completion_criteria`, with their defaults."""
_SECTIONS: Final = ("env_settings", "engine_settings", "checkpoint_settings")
_TOP: Final = (
    "default_settings",
    "behaviors",
    "env_settings",
    "engine_settings",
    "environment_parameters",
    "checkpoint_settings",
    "torch_settings",
    "debug",
)


def render(
    resolved: Section, given: Section | None = None, local: Mapping[str, Section] | None = None, seed: int = 0
) -> str:
    """Return the text of `configuration.yaml`.

    `resolved` is the run's configuration as the server has it, `given` the user's own document: paths and Ludus' own
    keys are taken from there. `local` are the sections that this machine acts on (`env_settings`, `engine_settings`,
    `checkpoint_settings`), `seed` the run's, from which constant parameters are numbered as ML-Agents does.
    """
    request = given or {}
    document: dict[str, object] = {}
    for key in _TOP:
        value = resolved.get(key, request.get(key))
        match key:
            case "default_settings":
                document[key] = None if value is None else behavior_settings(value, request.get(key))
            case "behaviors":
                document[key] = {
                    name: behavior_settings(settings, given_to(request, name))
                    for name, settings in (value or {}).items()
                }
            case "environment_parameters":
                document[key] = _parameters(value, seed)
            case "torch_settings":
                document[key] = _ordered(value or {}, ("device",), request.get(key))
            case "debug":
                document[key] = bool(value)
            case _:
                document[key] = dict((local or {}).get(key, value or {}))
    user_keys = {
        key: resolved.get(key, request[key]) for key in request if key not in document and key not in _SECTIONS
    }
    return str(yaml.safe_dump(document | user_keys, sort_keys=False, allow_unicode=True))


def behavior_settings(resolved: Section, given: object = None) -> Section:
    """Return one behavior's settings with ML-Agents' keys in their order, the user's own others behind them."""
    wished = _mapping(given)
    settings = _ordered(resolved, _BEHAVIOR, wished)
    hyperparameters = _HYPERPARAMETERS.get(str(resolved.get("trainer_type", "ppo")), ())
    settings["hyperparameters"] = _ordered(
        resolved.get("hyperparameters") or {}, hyperparameters, wished.get("hyperparameters")
    )
    settings["network_settings"] = _network(resolved.get("network_settings") or {}, wished.get("network_settings"))
    signals = _mapping(wished.get("reward_signals"))
    settings["reward_signals"] = {
        name: _signal(name, signal, signals.get(name))
        for name, signal in (resolved.get("reward_signals") or {}).items()
        if signal is not None
    }
    for key, order in (("self_play", _SELF_PLAY), ("behavioral_cloning", _CLONING)):
        if settings[key] is not None:
            settings[key] = _ordered(settings[key], order, wished.get(key))
    return settings


def given_to(given: Section, behavior: str) -> Section:
    """Return the user's settings of a behavior: its own keys over those of its template."""
    return _merge(_mapping(given.get("default_settings")), _mapping(_mapping(given.get("behaviors")).get(behavior)))


def _ordered(resolved: Section, order: Sequence[str], given: object) -> dict[str, Any]:
    """Return the keys of `order`, null where there is no value, then those that only the user's document names."""
    wished = _mapping(given)
    keys = [*order, *(key for key in wished if key not in order)]
    return {key: wished.get(key) if key in _PATHS else resolved.get(key, wished.get(key)) for key in keys}


def _network(resolved: Section, given: object) -> Section:
    network = _ordered(resolved, _NETWORK, given)
    if isinstance(network["memory"], Mapping):
        network["memory"] = _ordered(network["memory"], _MEMORY, _mapping(given).get("memory"))
    return network


def _signal(name: str, resolved: Section | list[Section], given: object) -> Section | list[Section]:
    if isinstance(resolved, list):  # several GAIL signals: Ludus' own
        requests = given if isinstance(given, list) else [given] * len(resolved)
        return [_one_signal(name, signal, request) for signal, request in zip(resolved, requests, strict=True)]
    return _one_signal(name, resolved, given)


def _one_signal(name: str, resolved: Section, given: object) -> Section:
    signal = _ordered(resolved, _SIGNALS.get(name, _SIGNAL), given)
    plain = {**_PLAIN_NETWORK, **_mapping(_mapping(given).get("network_settings"))}
    signal["network_settings"] = _network(resolved.get("network_settings", plain) or {}, None)
    return signal


def _parameters(resolved: Section | None, seed: int) -> Section | None:
    """Write parameters as ML-Agents does: each as a curriculum, a constant as its only lesson."""
    if not resolved:
        return None
    written: dict[str, dict[str, Any]] = {}
    number = seed
    for name, value in resolved.items():
        lessons = _mapping(value).get("curriculum") or [{"value": value, "name": name}]
        written[name] = {"curriculum": [_lesson(lesson, number + index) for index, lesson in enumerate(lessons)]}
        if _mapping(value).get("starting_lesson") is not None:  # Ludus' own key
            written[name]["starting_lesson"] = value["starting_lesson"]
        number += len(lessons)
    return written


def _lesson(lesson: Section, seed: int) -> Section:
    """Write a lesson; a number is a constant sampler, which counts in the numbering of seeds as any other."""
    sampler, criteria = lesson["value"], lesson.get("completion_criteria")
    if not isinstance(sampler, Mapping):
        sampler = {"sampler_type": "constant", "sampler_parameters": {"seed": seed, "value": sampler}}
    if criteria is not None:  # of Ludus' own keys those that ask for something
        criteria = {
            key: value for key, value in criteria.items() if key not in _OWN_CRITERIA or value != _OWN_CRITERIA[key]
        }
    return {"value": dict(sampler), "name": lesson["name"], "completion_criteria": criteria}


def _merge(below: Section, above: Section) -> Section:
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = _merge(under, value) if isinstance(value, Mapping) and isinstance(under, Mapping) else value
    return merged


def _mapping(value: object) -> Section:
    return value if isinstance(value, Mapping) else {}
