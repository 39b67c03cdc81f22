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

from ludus.config.problems import CODES
from ludus.config.reference import TITLES, entries
from ludus.config.run import RunConfig
from ludus.config.values import Section
from server.config.document import MAX_ALIASED, MAX_BYTES, MAX_DEPTH, MAX_VALUES
from server.config.key_validation import KEYS, MAX_PROBLEMS, PATHS, keys_of
from server.config.presets import list_presets, read_preset
from server.config.rules import UNSUPPORTED


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
    rows = []
    for entry in entries(section):
        mark = " *(Ludus' own key)*" if entry.is_own else ""
        default = entry.default if entry.is_described else f"`{entry.default}`"
        rows.append((f"`{entry.key}`", entry.type, default, entry.range, f"{entry.text}{mark}"))
    heading = title if " " in title or "`" in title else f"`{title}`"
    table = _table(["key", "type", "default", "range", "meaning"], rows)
    return f"### {heading}\n\n{cleandoc(section.__doc__ or '')}\n\n{table}"


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
