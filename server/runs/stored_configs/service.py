"""Commands on stored configurations: store a version, compare two, and prepare the configuration of a run."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ludus.config.run import RunConfig
from ludus.json_values import JsonObject
from ludus.schemas import ConfigChange, Preset
from server.config.document import Document, locate, located, parse_document, text_of
from server.config.presets import describe_preset, list_presets
from server.config.resolution import apply_overrides, diff, resolve, review
from server.config.rules import refuse_unsupported
from server.config.upgrade import Upgrade, upgrade
from server.kit.errors import InvalidConfig, NotFound, Problem
from server.runs.stored_configs.models import ConfigVersion
from server.runs.stored_configs.repository import ConfigRepository


class PresetNotFound(NotFound, code="preset_not_found"):
    """No preset has this name."""

    name: str
    names: Sequence[str]

    def _sentence(self) -> str:
        return f"There is no preset {self.name!r}. There are {', '.join(self.names)}."


@dataclass(frozen=True, slots=True)
class Prepared:
    """A configuration that a run can be created from."""

    config: RunConfig
    name: str | None = None
    """Name of the stored configuration that it came from, with `version`."""
    version: int | None = None
    warnings: tuple[Problem, ...] = ()


class ConfigService:
    """Commands on stored configurations, within the caller's transaction."""

    def __init__(self, configs: ConfigRepository) -> None:
        self._configs = configs

    def store(self, name: str, document: Document, description: str = "") -> tuple[ConfigVersion, bool]:
        """Store a configuration as the next version of a name; return it, and whether it is new.

        Where the newest version resolves to the same, that one is returned and nothing is written.
        Raises InvalidConfig.
        """
        with located(document):
            parsed = parse_document(document)
            resolved = resolve(parsed).model_dump(mode="json")
        source = text_of(document, partial(json.dumps, indent=2, ensure_ascii=False))
        return self._configs.insert(
            name, source=source, document=parsed, resolved=resolved, digest=digest(resolved), description=description
        )

    def diff(self, name: str, old: int | None, new: int | None) -> list[ConfigChange]:
        """Compare the resolved forms of two versions of a name; None is the newest. Raises ConfigNotFound."""
        return self.changes(name, old, self._configs.get_or_raise(name, new).resolved)

    def changes(self, name: str, old: int | None, config: JsonObject) -> list[ConfigChange]:
        """Compare the resolved form of a version with a resolved configuration. Raises ConfigNotFound."""
        return diff(self._configs.get_or_raise(name, old).resolved, config)

    def prepare(
        self,
        document: Document | None = None,
        *,
        name: str | None = None,
        version: int | None = None,
        overrides: Mapping[str, object] | None = None,
        complete: Callable[[Mapping[str, object]], Mapping[str, object]] = dict,
    ) -> Prepared:
        """Resolve a document, or a stored configuration (its newest version unless one is given), under overrides.

        Exactly one of `document` and `name` is needed. Overrides act on what was written, before defaults are filled
        in; `complete` then adds what follows from what is stored. Raises InvalidConfig, also for what no run can do
        yet, and ConfigNotFound.
        """
        if (document is None) == (name is None):
            message = "send either a configuration or the name of a stored one"
            raise InvalidConfig([Problem("", "missing" if name is None else "contradiction", message)])
        if document is not None:
            return _prepared(document, overrides, complete)
        assert name is not None
        stored = self._configs.get_or_raise(name, version)
        # The source: PostgreSQL does not keep the order of keys, by which environment parameters get their seeds.
        return replace(_prepared(stored.source, overrides, complete), name=stored.name, version=stored.version)


def _prepared(
    document: Document,
    overrides: Mapping[str, object] | None,
    complete: Callable[[Mapping[str, object]], Mapping[str, object]],
) -> Prepared:
    config, warnings = review(complete(apply_overrides(parse_document(document), overrides or {})))
    refuse_unsupported(config)
    return Prepared(config, warnings=tuple(warnings))


def upgrade_config(
    document: Document, curriculum: Document | None, sampler: Document | None
) -> tuple[Upgrade, Sequence[Problem]]:
    """Bring a document of an older release into the format of today. Raises InvalidConfig if it can't be read.

    The problems are the reasons for which a run of it would be refused, with their positions in the new text.
    """
    upgraded = upgrade(document, curriculum=curriculum, sampler=sampler)
    try:
        refuse_unsupported(resolve(upgraded.document))
    except InvalidConfig as error:
        return upgraded, locate(upgraded.text, error.problems)
    return upgraded, ()


def known_presets() -> list[Preset]:
    """Return all presets, by name."""
    return [describe_preset(name) for name in list_presets()]


def find_preset(name: str) -> Preset:
    """Return a preset. Raises PresetNotFound."""
    try:
        return describe_preset(name)
    except KeyError as error:
        raise PresetNotFound(name, list_presets()) from error


def digest(resolved: Mapping[str, object]) -> str:
    """Return the SHA-256 of a resolved configuration as canonical JSON, in hexadecimal."""
    canonical = json.dumps(resolved, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
