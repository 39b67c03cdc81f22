"""Write the files that are generated from the code; `--check` fails if a committed one is out of date.

    python docs/generate.py [--check] [NAME ...]     all of them, or the named ones

Facts that can change are generated from their definition in the code: settings, configuration, the table of states, the
HTTP API, the tree. So are the rules and dashboards of monitoring. `constraints` is only written if it is named, because
it depends on the installed packages.
"""

import argparse
import ast
import difflib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from inspect import getdoc
from pathlib import Path

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from deploy.dashboards import DASHBOARDS, dashboard
from deploy.rules import prometheus_rule, rules
from ludus.config.recommendations import figures, harmed, is_better, measurements, summary
from ludus.docstrings import field_texts
from server.config import reference
from server.kit.secret_files import SUFFIX, is_secret
from server.kit.settings import Settings
from server.kit.states import TERMINAL, TRANSITIONS

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 110

COMPOSE_VARIABLES = {
    "POSTGRES_PASSWORD": "Password of the database, letters and digits only: `openssl rand -hex 24`",
    "LUDUS_API__TOKEN": "Bearer token of the HTTP API: `openssl rand -hex 24`",
    "LUDUS_GATEWAY__TOKEN": "Bearer token of simulators: `openssl rand -hex 24`",
    "LUDUS_GATEWAY__TICKET_KEY": "Signs tickets, at least 32 characters: `openssl rand -hex 32`",
    "LUDUS_WORKER__ADVERTISE_HOST": "Name or address under which simulators reach the worker's host",
}
"""Variables that docker-compose.yml demands, with their descriptions."""


def settings() -> Iterator[tuple[str, str, FieldInfo, str]]:
    """Yield (group, environment variable, field, description) for every setting; the group is empty at the top."""
    for name, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            texts = field_texts(field.annotation)
            for inner, inner_field in field.annotation.model_fields.items():
                variable = f"LUDUS_{name}__{inner}".upper()
                file = f" Or the path of a file with it: `{variable}{SUFFIX}`." if is_secret(inner_field) else ""
                yield name, variable, inner_field, f"{texts[inner]}{file}"
        else:
            yield "", f"LUDUS_{name}".upper(), field, field_texts(Settings)[name]


def default_of(field: FieldInfo) -> str:
    """Render a default as an environment variable; empty if it is unset or derived from `home`."""
    value = field.get_default()
    if value is None or value == Path():
        return ""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, tuple):
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def wrapped(text: str) -> Iterator[str]:
    """Break a description into comment lines."""
    line = "#"
    for word in text.split():
        if len(line) + len(word) >= WIDTH:
            yield line
            line = "#"
        line += f" {word}"
    yield line


def env_example() -> str:
    """`.env.example`: the variables that compose demands, then every setting with its default."""
    lines = [
        "# Settings of Ludus' servers. Written by `make docs`; copy to .env, which Docker Compose reads.",
        "# Processes read the environment, not this file: in a shell, `set -a; . ./.env; set +a`.",
        "",
        "# --- docker-compose.yml needs these ---",
    ]
    for variable, description in COMPOSE_VARIABLES.items():
        lines += [*wrapped(description), f"{variable}="]
    group = None
    for name, variable, field, text in settings():
        if name != group:
            lines += ["", f"# --- {name or 'general'} ---"]
            group = name
        lines += wrapped(text)
        if variable in COMPOSE_VARIABLES:
            lines.append("# (above)")
        else:
            lines.append(f"# {variable}={default_of(field)}")
    return "\n".join(lines) + "\n"


def settings_page() -> str:
    """`docs/settings.md`: one table per group."""
    introduction = (
        "<!-- Written by `make docs`; don't edit. -->\n\n# Settings\n\n"
        "Operators set these environment variables. Without any of them Ludus runs as the embedded stack: SQLite, a "
        "folder as queue and a folder of artifacts, all inside `LUDUS_HOME`. Users configure their runs by "
        "[configuration.md](configuration.md).\n\n"
        "Each secret can be in a file, as Docker and Kubernetes mount them: `LUDUS_API__TOKEN_FILE=/run/secrets/token` "
        "instead of `LUDUS_API__TOKEN`. A line break at the end of the file is left out. Files are read when a process "
        "starts; to set both variables, or to name a file that is missing, unreadable or empty, is an error."
    )
    parts = [introduction]
    group = None
    for name, variable, field, text in settings():
        if name != group:
            title = getdoc(Settings.model_fields[name].annotation) if name else "Folders of the embedded stack."
            parts.append(
                f"\n## {name or 'general'}\n\n{title}\n\n| variable | default | meaning |\n| --- | --- | --- |"
            )
            group = name
        shown = f"`{default_of(field)}`" if default_of(field) else ""
        parts.append(f"| `{variable}` | {shown} | {text.replace('|', '&#124;')} |")
    return "\n".join(parts) + "\n"


def states_page() -> str:
    """`docs/run-states.md`: the table of legal moves as a diagram."""
    arrows = "\n".join(f"    {state} --> {to}" for state, moves in TRANSITIONS.items() for to in sorted(moves))
    ends = "\n".join(f"    {state} --> [*]" for state in sorted(TERMINAL))
    return (
        "<!-- Written by `make docs` from server/kit/states.py; don't edit. -->\n\n# A run's states\n\n"
        f"```mermaid\nstateDiagram-v2\n    [*] --> CREATED\n{arrows}\n{ends}\n```\n"
    )


def purpose(module: Path) -> str:
    """Return the first paragraph of a module's docstring in one line; empty if it has none."""
    documented = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    return " ".join(documented.partition("\n\n")[0].split()).replace("|", "\\|")


def purposes(head: str, paths: Iterable[Path]) -> str:
    """Return a table of packages, given by their `__init__.py`, or of modules, with the purpose of each."""
    rows = [f"| {head} | purpose |", "| --- | --- |"]
    for path in paths:
        shown = (path.parent if head == "package" else path).relative_to(ROOT)
        rows.append(f"| [{shown}](../{shown}) | {purpose(path)} |")
    return "\n".join(rows)


def tree_page() -> str:
    """`docs/tree.md`: the packages below `ludus`, `server` and `worker`; then every module."""
    first = (
        "<!-- Written by `make docs` from the modules' docstrings; don't edit. -->\n\n# The tree\n\n"
        "Imports run one way: `ludus <- server <- worker`. The tests of a module are in the same place below `tests/`. "
        "The list of [every file](#every-file) follows."
    )
    packages, files = [first], ["# Every file"]
    for name in ("ludus", "server", "worker"):
        folder = ROOT / name
        packages.append(f"## {name}\n\n{purpose(folder / '__init__.py')}")
        packages.append(purposes("package", sorted(folder.glob("*/__init__.py"))))
        modules = [path for path in sorted(folder.rglob("*.py")) if "_pb2" not in path.name and purpose(path)]
        files.append(f"## Files of {name}\n\n{purposes('file', modules)}")
    return "\n\n".join([*packages, *files]) + "\n"


def configuration_page() -> str:
    """`docs/configuration.md`: its generated parts; what is written by hand stays."""
    return reference.render((ROOT / "docs" / "configuration.md").read_text(encoding="utf-8"))


def recommendations_page() -> str:
    """`docs/recommendations.md`: a table for each key that was measured, behind what is written by hand."""
    written, mark, _ = (ROOT / "docs" / "recommendations.md").read_text(encoding="utf-8").partition("<!-- rows -->\n")
    parts = [written + mark]
    for row in measurements():
        trainer, steps = row["when"]["trainer_type"], row["when"]["max_steps"]
        verdict = "better" if is_better(row) else "not shown to be better"
        verdict += f"; harmed: {', '.join(harmed(row))}" if harmed(row) else ""
        parts.append(
            f"\n## {row['key']} {json.dumps(row['value'])}, {trainer}\n\n"
            f"Instead of {json.dumps(row['default'])}, for {steps['min']:,} to {steps['max']:,} steps: **{verdict}**.\n"
            f"{summary(row).capitalize()}; p-value {row['p_value']:g}. Made {row['date']}, {row['source']}.\n\n"
            "| task | actions | steps | without, by seed | with, by seed | probability of improvement |\n"
            "| --- | --- | --- | --- | --- | --- |\n"
        )
        for task in row["tasks"]:
            cells = [task["task"], task["actions"], f"{task['steps']:,}"]
            cells += [", ".join(f"{score:.4g}" for score in task[side]) for side in ("without", "with")]
            parts.append(f"| {' | '.join([*cells, figures(task)])} |\n")
    return "".join(parts)


def meanings() -> str:
    """`server/web/static/meanings.js`: the rows of docs/metrics.md, for tooltips of charts."""
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[A-Za-z-]+/.+?) \| .+? \| (.+) \|$", page, re.MULTILINE)
    found = {name: meaning for names, meaning in rows for name in re.findall(r"`([^`]+)`", names)}
    texts = {name: re.sub(r"`|\[([^]]+)\]\([^)]+\)", r"\1", meaning) for name, meaning in found.items()}
    head = "// The meaning of each metric, generated from docs/metrics.md. Words in capitals stand for names."
    return f"{head}\nexport const MEANINGS = {json.dumps(texts, indent=2, ensure_ascii=False)};\n"


def openapi() -> str:
    """`tests/golden/openapi.json`: the description of the HTTP API."""
    from server.app.app import create_app  # noqa: PLC0415  the other pages don't need the web framework

    return json.dumps(create_app(Settings()).openapi(), indent=2, sort_keys=True) + "\n"


def constraints() -> str:
    """`constraints.txt`: the installed packages, without local version tags (`+cpu` names the source of a build).

    Pins of packages that are not installed stay: another release of Python or another extra needs them.
    """
    frozen = subprocess.run(
        [sys.executable, "-m", "pip", "freeze", "--all", "--exclude-editable"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    committed = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {}
    for line in (*committed, *frozen):
        name, equals, version = line.partition("==")
        if equals:
            pinned[canonical(name)] = f"{name}=={version.partition('+')[0]}"
    head = "# The exact version of everything that an installation may contain. `make constraints` writes this file."
    return "\n".join([head, *(pinned[name] for name in sorted(pinned))]) + "\n"


def canonical(name: str) -> str:
    """Return a package's name as package indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


FILES: dict[str, tuple[str, Callable[[], str]]] = {
    "env": (".env.example", env_example),
    "settings": ("docs/settings.md", settings_page),
    "states": ("docs/run-states.md", states_page),
    "tree": ("docs/tree.md", tree_page),
    "configuration": ("docs/configuration.md", configuration_page),
    "recommendations": ("docs/recommendations.md", recommendations_page),
    "meanings": ("server/web/static/meanings.js", meanings),
    "openapi": ("tests/golden/openapi.json", openapi),
    "rules": ("deploy/prometheus/ludus.rules.yaml", rules),
    "prometheus_rule": ("deploy/kubernetes/base/rules.yaml", prometheus_rule),
    **{name: (f"deploy/grafana/{name}.json", partial(dashboard, name)) for name in DASHBOARDS},
    "constraints": ("constraints.txt", constraints),
}
ON_REQUEST = {"constraints"}


def main() -> None:
    """Write the files, or compare them with the committed ones."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail if a file is out of date")
    parser.add_argument("names", nargs="*", choices=[[], *FILES], help="which files; default: all but constraints")
    options = parser.parse_args()
    stale = []
    for name in options.names or [name for name in FILES if name not in ON_REQUEST]:
        path, render = FILES[name]
        fresh = render()
        committed = (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).exists() else ""
        if fresh == committed:
            continue
        if options.check:
            stale.append(path)
            difference = difflib.unified_diff(
                committed.splitlines(), fresh.splitlines(), path, "generated", lineterm=""
            )
            sys.stderr.write("\n".join(list(difference)[:40]) + "\n")
        else:
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(fresh, encoding="utf-8")
            sys.stdout.write(f"wrote {path}\n")
    if stale:
        sys.exit(f"out of date: {', '.join(stale)}. Run `make docs` and commit the result.")


if __name__ == "__main__":
    main()
