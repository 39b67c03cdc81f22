"""The keys of a configuration in words, with those of installed plug-ins: for a page and the command line.

Types, defaults and ranges come from the models, texts from the docstrings below their fields.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ludus.config.behavior import TRAINERS
from ludus.config.environment_parameters import SAMPLERS, Curriculum
from ludus.config.run import RunConfig
from ludus.config.values import OWN, Section, sections_in
from ludus.docstrings import field_texts
from ludus.json_values import JsonObject


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a section."""

    key: str
    type: str
    default: str
    """As JSON; in words if `is_described`."""
    is_described: bool
    range: str
    """Empty where all values of the type are legal."""
    text: str
    is_own: bool
    """Whether ML-Agents lacks the key."""


def _walk(section: type[Section], path: str = "") -> Iterator[tuple[type[Section], str]]:
    """Yield the sections inside a section with their paths, in the page's order; some have several paths."""
    for key, field in section.model_fields.items():
        for inner in dict.fromkeys(sections_in(field.annotation)):
            yield inner, f"{path}{key}"
            yield from _walk(inner, f"{path}{key}.")


def _sections() -> Iterator[tuple[type[Section], str]]:
    """Yield the sections of a document with their titles. Behaviors and environment parameters have several forms."""
    yield RunConfig, "The document"
    for inner, path in _walk(RunConfig):
        if not path.startswith(("default_settings", "behaviors", "environment_parameters")):
            yield inner, path
        elif path == "behaviors":
            for name, trainer in TRAINERS.items():
                (numbers,) = sections_in(trainer.model_fields["hyperparameters"].annotation)
                yield trainer, f"`behaviors.NAME` with `trainer_type: {name}`"
                yield numbers, f"`behaviors.NAME.hyperparameters` of `{name}`"
            for trainer in TRAINERS.values():
                yield from _walk(trainer, "behaviors.NAME.")
        elif path == "environment_parameters" and inner is Curriculum:
            for name, sampler in SAMPLERS.items():
                yield sampler, f"`environment_parameters.NAME` with `sampler_type: {name}`"
                (numbers,) = sections_in(sampler.model_fields["sampler_parameters"].annotation)
                yield numbers, f"`environment_parameters.NAME.sampler_parameters` of `{name}`"
            yield Curriculum, "environment_parameters.NAME"
            yield from _walk(Curriculum, "environment_parameters.NAME.")


TITLES: Final[dict[type[Section], str]] = {}
"""Every section, in the page's order, with its first path."""
for _section_class, _title in _sections():
    TITLES.setdefault(_section_class, _title)

_TYPES: Final = {
    "null": "null",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "string": "text",
}
_LIMITS: Final = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minProperties": "≥ {} entries",
    "maxProperties": "≤ {} entries",
    "minItems": "≥ {} entries",
    "maxItems": "≤ {} entries",
}
"""How limits in a JSON schema are written."""


def entries(section: type[Section]) -> Iterator[Entry]:
    """Yield the keys of a section in its order."""
    texts = field_texts(section)
    for key, schema in section.model_json_schema()["properties"].items():
        field, words = section.model_fields[key], ""
        if field.is_required():
            words = "required"
        elif field.default_factory is not None:
            words = f"as `{field.default_factory.__name__.lstrip('_')}`"
        elif isinstance(field.default, Section):
            words = "all defaults"
        default = words or json.dumps(field.default, default=str)
        own = field.json_schema_extra == OWN
        yield Entry(key, _type(schema), default, bool(words), _range(schema), texts.get(key, ""), own)


def _variants(schema: JsonObject) -> list[JsonObject]:
    """Return the schemas of a value; several if null is legal, or if a list may also be a single value."""
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    return [variant for inner in alternatives for variant in _variants(inner)] if alternatives else [schema]


def _type(schema: JsonObject) -> str:
    return " or ".join(dict.fromkeys(_variant_type(variant) for variant in _variants(schema)))


def _types(schema: JsonObject) -> str:
    """Write the type of several values, in the plural: `texts`, `lists of numbers`."""
    kinds = dict.fromkeys(_variant_type(variant) for variant in _variants(schema))
    return " or ".join(f"lists{kind[4:]}" if kind.startswith("list of") else f"{kind}s" for kind in kinds)


def _variant_type(variant: JsonObject) -> str:
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
        case _:
            return _TYPES.get(variant.get("type", ""), "value")


def _range(schema: JsonObject) -> str:
    limits = []
    for variant in _variants(schema):
        for key, text in _LIMITS.items():
            if key in variant:
                limit = variant[key]
                figure = f"{limit:,.0f}" if limit == int(limit) else str(limit)
                limits.append(text.format(figure))
    return ", ".join(limits)


def find(query: str) -> Iterator[tuple[str, type[Section], list[Entry]]]:
    """Yield the sections that a query means, with their titles and the keys that it means: all, or some.

    A query is a section, a key, or the end of a path that leads to it, as people write it (`tile`,
    `behaviors.Walker.network_settings`), or the name of a trainer or a sampler. The empty query means everything.
    """
    written = re.sub(r"^default_settings\b", "behaviors.NAME", query.strip().strip("."))
    wanted = re.sub(r"^(behaviors|environment_parameters)\.[^.]+", r"\1.NAME", written)
    for section, title in TITLES.items():
        plain = title.replace("`", "")
        path, _, form = plain.partition(" ")
        path = "" if section is RunConfig else path
        is_meant = wanted in {"", form.rpartition(" ")[2]} or f".{path}".endswith(f".{wanted}")
        keys = [entry for entry in entries(section) if is_meant or f".{path}.{entry.key}".endswith(f".{wanted}")]
        if keys:
            yield plain, section, keys
