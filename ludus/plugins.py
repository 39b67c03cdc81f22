"""Plug-ins: what packages add to Ludus (the groups of `Kind`), found by their entry points.

A package names what it adds in its `pyproject.toml`, one entry point each, in the groups of `Kind`:

    [project.entry-points."ludus.rewards"]
    curious = "my_package.config:CuriousConfig"

The name is what users write. What Ludus itself adds in this way (`ludus.config.plugins`, `ludus.adapters`) is found
like everything else. An entry point that cannot be loaded, or that leads to the wrong kind of object, is reported by
`broken` and left out; nothing else stops.
"""

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, TypeVar

T = TypeVar("T")
OWN: Final = "ludus"
"""The distribution of Ludus itself."""


class Kind(StrEnum):
    """The groups of entry points, and what theirs lead to."""

    TRAINERS = "ludus.trainers"
    """The configuration of a trainer: a `ludus.config.trainer.TrainerConfig`; the name is its `trainer_type`."""
    REWARDS = "ludus.rewards"
    """The configuration of a reward signal: a `ludus.config.rewards.RewardSignalConfig`."""
    ENCODERS = "ludus.encoders"
    """The configuration of an encoder of pictures: a `ludus.config.encoder.EncoderConfig`; the name is its
    `vis_encode_type`."""
    EXPLORERS = "ludus.explorers"
    """A `ludus.collector.heads.Head`, which a trainer's configuration names in `head`."""
    ADAPTERS = "ludus.adapters"
    """A `ludus.adapters.Adapter`: games that `ludus simulate NAME:GAME` plays."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """An entry point of a package, not loaded yet."""

    kind: Kind
    name: str
    package: str
    """The distribution that it comes from."""
    version: str
    entry_point: EntryPoint

    @property
    def label(self) -> str:
        """The label that a worker with this plug-in has: kind and name, as in "trainers.a2c"."""
        return f"{self.kind.partition('.')[2]}.{self.name}"


@dataclass(frozen=True, slots=True)
class BrokenPlugin:
    """A plug-in that is installed and cannot be used here."""

    plugin: Plugin
    reason: str

    def __str__(self) -> str:
        plugin = self.plugin
        return f"the plug-in {plugin.name!r} ({plugin.kind}) of {plugin.package} {plugin.version}: {self.reason}"


_BROKEN: dict[tuple[Kind, str], BrokenPlugin] = {}
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,29}")
_NAME_WORDS: Final = "1 to 30 letters, digits, dots, underscores and hyphens, no sign in front"


@cache
def installed(kind: Kind) -> Mapping[str, Plugin]:
    """Return the plug-ins of a kind by name, in the order of names. Of two with one name that of Ludus itself wins."""
    plugins: dict[str, Plugin] = {}
    for entry_point in sorted(entry_points(group=kind), key=_rank):
        package = entry_point.dist
        name, version = ("", "") if package is None else (package.name, package.version)
        plugin = Plugin(kind, entry_point.name, name, version, entry_point)
        if _NAME.fullmatch(entry_point.name):
            plugins.setdefault(entry_point.name, plugin)
        else:
            _BROKEN[kind, entry_point.name] = BrokenPlugin(plugin, f"its name must be {_NAME_WORDS}")
    return dict(sorted(plugins.items()))


def added() -> list[Plugin]:
    """Return the plug-ins of other packages than Ludus itself, as far as this process does not know them as broken."""
    plugins = [plugin for kind in Kind for plugin in installed(kind).values()]
    return [plugin for plugin in plugins if plugin.package != OWN and (plugin.kind, plugin.name) not in _BROKEN]


def _rank(entry_point: EntryPoint) -> tuple[bool, str]:
    package = "" if entry_point.dist is None else entry_point.dist.name
    return package != OWN, package


class PluginError(LookupError):
    """A plug-in cannot be used here."""


def load(plugin: Plugin, parent: type[T]) -> Any:
    """Return what a plug-in leads to: a class below `parent`, or an instance of it. Raises PluginError."""
    try:
        value = plugin.entry_point.load()
    except Exception as error:
        raise refused(plugin, f"{type(error).__name__}: {error}") from error
    if isinstance(value, parent) or (isinstance(value, type) and issubclass(value, parent)):
        return value
    raise refused(plugin, f"{plugin.entry_point.value} is no {parent.__qualname__}")


def refused(plugin: Plugin, reason: str) -> PluginError:
    """Remember why a plug-in cannot be used here, and return the error that says so."""
    problem = _BROKEN[plugin.kind, plugin.name] = BrokenPlugin(plugin, reason)
    return PluginError(str(problem))


def load_all(kind: Kind, parent: type[T], *, taken: Collection[str] = ()) -> dict[str, Any]:
    """Return what the plug-ins of a kind lead to, by name, as `load` does, without broken ones and `taken` names."""
    loaded = {}
    for name, plugin in installed(kind).items():
        if name not in taken:
            with suppress(PluginError):
                loaded[name] = load(plugin, parent)
    return loaded


def broken(name: str | None = None) -> list[BrokenPlugin]:
    """Return the plug-ins that this process has tried to load in vain: all, or those of a name."""
    return [problem for problem in _BROKEN.values() if name in {None, problem.plugin.name}]


def load_object(path: str) -> Any:
    """Return the object that a plug-in names as `module:name`. Raises PluginError."""
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except Exception as error:  # a stranger's code
        raise PluginError(f"the plug-in names {path}, which cannot be used: {type(error).__name__}: {error}") from error
