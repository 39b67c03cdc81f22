"""Writes the generated parts of docs/configuration.md: `python -m server.config.reference docs/configuration.md`.

A generated part stands between `<!-- NAME -->` and `<!-- end -->`; all else is written by hand. All facts in the page
that can change (keys, types, defaults, ranges, refused keys, codes, limits) come from the code; a test compares the
committed page with the output of this module.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from inspect import cleandoc
from pathlib import Path
from typing import Final

from ludus.config.behavior import TRAINERS, PPOConfig
from ludus.config.environment_parameters import SAMPLERS, Curriculum
from ludus.config.problems import CODES
from ludus.config.run import RunConfig
from ludus.config.values import OWN, Section, sections_in
from ludus.json_values import JsonObject
from server.config.document import MAX_ALIASED, MAX_BYTES, MAX_DEPTH, MAX_VALUES
from server.config.key_validation import KEYS, MAX_PROBLEMS, PATHS, hyperparameters_of, keys_of
from server.config.presets import list_presets, read_preset
from server.config.rules import UNSUPPORTED
from server.kit.docstrings import field_texts


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
                yield trainer, f"`behaviors.NAME` with `trainer_type: {name}`"
                yield hyperparameters_of(trainer), f"`behaviors.NAME.hyperparameters` of `{name}`"
            yield from _walk(PPOConfig, "behaviors.NAME.")
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


def render(page: str) -> str:
    """Return the page with its generated parts as the models have them now."""
    parts = {
        "limits": f"{MAX_BYTES:,} bytes, {MAX_VALUES:,} values and {MAX_DEPTH} levels; YAML aliases may add "
        f"{MAX_ALIASED:,} values",
        "keys": "\n\n".join(_section(section, title) for section, title in TITLES.items()),
        "refused": _table(["key", "code", "accepted values", "instead"], dict.fromkeys(_refused_rows())),
        "unsupported": _table(["key", "instead"], ((f"`{key}`", instead) for key, instead in UNSUPPORTED.items())),
        "problems": str(MAX_PROBLEMS),
        "codes": _table(["code", "meaning"], ((f"`{code}`", meaning) for code, meaning in sorted(CODES.items()))),
        "presets": "\n\n".join(f"### {name}\n\n```yaml\n{read_preset(name).strip()}\n```" for name in list_presets()),
    }
    return re.sub(
        r"(<!-- (\w+) -->(\n*)).*?(\n*<!-- end -->)",
        lambda match: match[1] + parts[match[2]] + match[4],
        page,
        flags=re.DOTALL,
    )


def main(arguments: list[str]) -> None:
    """Bring the page in the file that is named up to date."""
    (target,) = map(Path, arguments)
    target.write_text(render(target.read_text(encoding="utf-8")), encoding="utf-8")


def _table(head: list[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _section(section: type[Section], title: str) -> str:
    texts = field_texts(section)
    rows = []
    for key, schema in section.model_json_schema()["properties"].items():
        field = section.model_fields[key]
        if field.is_required():
            default = "required"
        elif field.default_factory is not None:
            default = f"as `{field.default_factory.__name__.lstrip('_')}`"
        else:
            default = "all defaults" if isinstance(field.default, Section) else f"`{json.dumps(field.default)}`"
        mark = " *(Ludus' own key)*" if field.json_schema_extra == OWN else ""
        rows.append((f"`{key}`", _type(schema), default, _range(schema), f"{texts[key]}{mark}"))
    heading = title if " " in title or "`" in title else f"`{title}`"
    table = _table(["key", "type", "default", "range", "meaning"], rows)
    return f"### {heading}\n\n{cleandoc(section.__doc__ or '')}\n\n{table}"


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
            return _TYPES[variant["type"]]


def _range(schema: JsonObject) -> str:
    limits = []
    for variant in _variants(schema):
        for key, text in _LIMITS.items():
            if key in variant:
                limit = variant[key]
                figure = f"{limit:,.0f}" if limit == int(limit) else str(limit)
                limits.append(text.format(figure))
    return ", ".join(limits)


def _refused_rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield rows; a key that all trainers refuse has the same row for each trainer."""
    for table in (KEYS, PATHS):
        for section, title in TITLES.items():
            for key, entry in keys_of(table, section).items():
                path, _, form = title.partition(" ")
                suffix = f" {form}" if form.startswith("of ") else ""
                where = f"`{key}`" if section is RunConfig else f"`{path.strip('`')}.{key}`{suffix}"
                accepted = [f"`{json.dumps(value)}`" for value in (None, *entry.neutral)]
                accepted += ["any mapping"] if entry.inert else []
                yield where, f"`{entry.code}`", ", ".join(accepted), entry.instead


if __name__ == "__main__":
    main(sys.argv[1:])
