"""Writes the generated parts of docs/configuration.md: `python -m server.config.reference docs/configuration.md`.

A generated part stands between `<!-- NAME -->` and `<!-- end -->`; all else is written by hand. All facts in the page
that can change (keys, types, defaults, ranges, refused keys, codes, limits) come from the code; a test compares the
committed page with the output of this module.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from inspect import cleandoc
from pathlib import Path
from typing import Any, Final

from ludus.config.behavior import TRAINERS, PPOConfig
from ludus.config.environment_parameters import SAMPLERS, Curriculum
from ludus.config.problems import CODES
from ludus.config.run import RunConfig
from ludus.config.values import OWN, Section, sections_in
from server.config.document import MAX_ALIASED, MAX_BYTES, MAX_DEPTH, MAX_VALUES
from server.config.key_validation import MAX_PROBLEMS
from server.config.mlagents_keys import MLAgentsKey, mlagents_keys_of, path_keys
from server.config.presets import list_presets, read_preset
from server.config.unsupported import UNSUPPORTED
from server.kit.docstrings import field_texts


def _paths() -> Iterator[tuple[type[Section], str]]:
    """Yield the sections of a document with their paths, in the page's order; some have several paths."""
    yield RunConfig, "The document"
    for key, field in RunConfig.model_fields.items():
        match key:
            case "default_settings":
                pass  # as the behaviors
            case "behaviors":
                for name, trainer in TRAINERS.items():
                    yield trainer, f"`behaviors.NAME` with `trainer_type: {name}`"
                    (numbers,) = sections_in(trainer.model_fields["hyperparameters"].annotation)
                    yield numbers, f"`behaviors.NAME.hyperparameters` of `{name}`"
                yield from _below(PPOConfig, "behaviors.NAME")
            case "environment_parameters":
                for name, sampler in SAMPLERS.items():
                    yield sampler, f"`environment_parameters.NAME` with `sampler_type: {name}`"
                    (numbers,) = sections_in(sampler.model_fields["sampler_parameters"].annotation)
                    yield numbers, f"`environment_parameters.NAME.sampler_parameters` of `{name}`"
                yield Curriculum, "environment_parameters.NAME"
                yield from _below(Curriculum, "environment_parameters.NAME")
            case _:
                for inner in sections_in(field.annotation):
                    yield inner, key
                    yield from _below(inner, key)


def _below(section: type[Section], path: str) -> Iterator[tuple[type[Section], str]]:
    """Yield the sections inside a section."""
    for key, field in section.model_fields.items():
        for inner in dict.fromkeys(sections_in(field.annotation)):
            yield inner, f"{path}.{key}"
            yield from _below(inner, f"{path}.{key}")


PATHS: Final[dict[type[Section], str]] = {}
"""Every section, in the page's order, with its first path."""
for _found, _path in _paths():
    PATHS.setdefault(_found, _path)

_TYPES: Final = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text"}


def render(page: str) -> str:
    """Return the page with its generated parts as the models have them now."""
    parts = {
        "limits": f"{MAX_BYTES:,} bytes, {MAX_VALUES:,} values and {MAX_DEPTH} levels; YAML aliases may add "
        f"{MAX_ALIASED:,} values",
        "keys": "\n\n".join(_section(section, path) for section, path in PATHS.items()),
        "refused": _refused(),
        "unsupported": _table(["key", "instead"], ((f"`{key}`", instead) for key, instead in UNSUPPORTED.items())),
        "problems": str(MAX_PROBLEMS),
        "codes": _table(["code", "meaning"], ((f"`{code}`", meaning) for code, meaning in sorted(CODES.items()))),
        "presets": "\n\n".join(f"### {name}\n\n```yaml\n{read_preset(name).strip()}\n```" for name in list_presets()),
    }
    return re.sub(
        r"(<!-- (\w+) -->(\n*)).*?(\n*<!-- end -->)",
        lambda found: found[1] + parts[found[2]] + found[4],
        page,
        flags=re.DOTALL,
    )


def main(arguments: list[str]) -> None:
    """Bring the page in the file that is named up to date."""
    (target,) = map(Path, arguments)
    target.write_text(render(target.read_text(encoding="utf-8")), encoding="utf-8")


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
    return f"### {title}\n\n{cleandoc(section.__doc__ or '')}\n\n{table}"


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
    return _table(["key", "code", "accepted values", "instead"], dict.fromkeys(rows))


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


if __name__ == "__main__":
    main(sys.argv[1:])
