"""Keys that ML-Agents' format has, or had, and a document for a server may not have, each with its replacement.

A key listed here is never ignored silently. It is accepted only where it can't matter: null, its default in ML-Agents
(exported files print every default), or a value that means what Ludus does anyway. Keys that are legal but
can't be run yet are in `server.config.unsupported`.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from ludus.config.behavior import TrainerConfig
from ludus.config.builds import EnvironmentSettings
from ludus.config.hyperparameters import POCAHyperparameters, SACHyperparameters
from ludus.config.imitation import FromDemonstrations
from ludus.config.rewards import ExtrinsicConfig
from ludus.config.run import CheckpointSettings, RunConfig
from ludus.config.values import Section

_REASONS: Final = {
    "unsupported": "is legal in ML-Agents, but Ludus does not support it yet",
    "path_refused": "is a path, and paths never mean the server's disk",
    "old_format": "is of an older format",
    "unknown_key": "is not a key of this trainer",
}


@dataclass(frozen=True, slots=True)
class MLAgentsKey:
    """A key of ML-Agents' format, current or former, that Ludus doesn't act on."""

    code: Literal["unsupported", "path_refused", "old_format", "unknown_key"]
    instead: str
    """The replacement, as the end of a sentence."""
    neutral: tuple[object, ...] = ()
    """Values beside null that are accepted, since they change nothing."""
    inert: bool = False
    """Any mapping is accepted: ML-Agents doesn't use it either."""

    def accepts(self, value: object) -> bool:
        """Return whether a value changes nothing. Truth values are not numbers."""
        if value is None or (self.inert and isinstance(value, dict)):
            return True
        return any(isinstance(value, bool) == isinstance(item, bool) and value == item for item in self.neutral)

    def message(self, key: str, value: object = None) -> str:
        """Return the problem and its remedy; a given file stands for FILE."""
        file = shlex.quote(value) if isinstance(value, str) and 0 < len(value) <= 300 else "FILE"
        return f"`{key}` {_REASONS[self.code]}: {self.instead.replace('FILE', file)}"


def _path(instead: str, *neutral: object) -> MLAgentsKey:
    return MLAgentsKey("path_refused", instead, neutral)


UPGRADE: Final = "convert the file first: `ludus config upgrade FILE`"
"""The remedy for a file of an older format."""

KEYS: Final[Mapping[type[Section], Mapping[str, MLAgentsKey]]] = {
    RunConfig: {
        "parameter_randomization": MLAgentsKey("old_format", UPGRADE),
        "curriculum": MLAgentsKey("old_format", UPGRADE),
    },
    TrainerConfig: {
        "output_path": MLAgentsKey("unknown_key", "remove it; ML-Agents 1.1.0 refuses it, too"),
    },
    SACHyperparameters: {
        "shared_critic": MLAgentsKey(
            "unknown_key",
            "remove it; the Q networks of SAC also see the actions, and have bodies of their own",
            (False,),
        ),
    },
    POCAHyperparameters: {
        "shared_critic": MLAgentsKey(
            "unknown_key", "remove it; the critic of POCA sees the whole group, and has a body of its own", (False,)
        ),
    },
    ExtrinsicConfig: {
        "network_settings": MLAgentsKey("unsupported", "remove it; extrinsic rewards need no network", inert=True),
    },
}
"""Keys that sections of Ludus, and those derived from them, don't have."""

PATHS: Final[Mapping[type[Section], Mapping[str, MLAgentsKey]]] = {
    EnvironmentSettings: {
        "env_path": _path("start the game yourself and let it dial in (`ludus unity --env`, `ludus simulate`)")
    },
    CheckpointSettings: {
        "initialize_from": _path(
            "remove it, and name the id of a checkpoint of that run in `initialize_from` of each behavior"
        ),
        "results_dir": _path("remove it, and download checkpoints from the server", "results"),
    },
    TrainerConfig: {
        "init_path": _path(
            "upload the file with `ludus checkpoint upload FILE`, and name its id, or that of a run's checkpoint, in "
            "`initialize_from` here"
        ),
    },
    FromDemonstrations: {
        "demo_path": _path(
            "upload the file with `ludus demonstration upload FILE`, and name its id in `demonstrations` here"
        )
    },
}
"""Keys that sections have, but that are paths: only a trainer that runs alone may be given them."""


def mlagents_keys_of(section: type[Section]) -> dict[str, MLAgentsKey]:
    """Return the foreign keys of a section, its own and those of its parents."""
    return _of(KEYS, section)


def path_keys(section: type[Section]) -> dict[str, MLAgentsKey]:
    """Return the keys of a section that are paths, its own and those of its parents."""
    return _of(PATHS, section)


def _of(table: Mapping[type[Section], Mapping[str, MLAgentsKey]], section: type[Section]) -> dict[str, MLAgentsKey]:
    return {key: mlagents_key for parent in section.__mro__ for key, mlagents_key in table.get(parent, {}).items()}
