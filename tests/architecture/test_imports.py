"""Importing does no work, and imports run one way (design §3)."""

import copy
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import grimp
import pytest
from importlinter.configuration import configure
from importlinter.contracts.layers import LayersContract

ROOT = Path(__file__).resolve().parents[2]
POSIX_ONLY = ["fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"]
EXTRAS = (
    "ludus.adapters.",
    "ludus.play.checks.exchange",
    "ludus.cli.simulate_process",
    "ludus.collector",
    "ludus.config",
    "ludus.logging",
    "ludus.play.recordings.replay",
    "ludus.play.recordings.tape",
    "ludus.validation",
)
"""What imports the packages of an extra: environments, or `ludus[collect]`, whose memory is shared on Linux alone."""

HEAVY = {"torch", "fastapi", "pydantic", "sqlalchemy", "celery", "structlog", "gymnasium", "server", "worker"}
"""What a light installation lacks."""

IMPORT_EVERYTHING = f"""
import importlib.util, json, logging, os, pkgutil, signal, sys, threading, warnings

def modules(name):
    yield name
    package = importlib.import_module(name)
    for info in pkgutil.walk_packages(package.__path__, f"{{name}}."):
        yield info.name

def state():
    return {{
        "threads": [thread.name for thread in threading.enumerate()],
        "environment": {{key: value for key, value in os.environ.items() if key in before}},
        "handlers": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
        "log handlers": [str(handler) for handler in logging.getLogger().handlers],
        "children": open(f"/proc/self/task/{{os.getpid()}}/children").read(),
        "files here": os.listdir(),
    }}

before = set(os.environ)
report = {{"clean": state(), "states": {{}}, "modules": {{}}}}

def take(name, modules):
    for module in modules:
        importlib.import_module(module)
        report["modules"].setdefault(name, []).append(module)
    report["states"][name] = state()

ludus = [name for name in modules("ludus") if name != "ludus.adapters.envpool" or importlib.util.find_spec("envpool")]
take("ludus", [name for name in ludus if not name.startswith({EXTRAS!r})])
report["heavy in ludus"] = sorted({HEAVY!r} & set(sys.modules))
take("server", ["server.app.app", "server.app.serve"])
report["heavy in the API"] = sorted({{"torch", "onnx"}} & set(sys.modules))
take("server", modules("server"))
take("ludus", [name for name in ludus if name.startswith({EXTRAS!r})])
take("worker", modules("worker"))
print(json.dumps(report))
"""


def run_isolated(program: str, *, cwd: Path) -> str:
    """Run a program without any environment variable, in an empty folder."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=cwd,
        env={"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_importing_everything_with_an_empty_environment_does_no_work_and_takes_in_nothing_heavy(tmp_path: Path) -> None:
    """No thread, child, file, signal handler, log handler or change of the environment. What is light comes first."""
    report: dict[str, Any] = json.loads(run_isolated(IMPORT_EVERYTHING, cwd=tmp_path))

    assert report["heavy in ludus"] == []
    assert report["heavy in the API"] == []
    for package in ("ludus", "server", "worker"):
        assert report["states"][package] == report["clean"], package
        files = [path for path in (ROOT / package).rglob("*.py") if path.name != "__init__.py"]
        assert len(set(report["modules"][package])) >= len(files), "a folder lacks its __init__.py"


def test_the_import_rules_hold() -> None:
    lint = Path(sys.executable).with_name("lint-imports")

    done = subprocess.run(
        [lint, "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": ""}
    )

    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("ludus", "server", "worker", cache_dir=None)


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("server.kit.errors", "server.runs.models"),
        ("server.runs.repository", "server.app.access"),
        ("server.runs.events.repository", "server.checkpoints.models"),
        ("server.ladders.elo", "server.metrics.points"),
    ],
    ids=["kit imports a feature", "a feature imports the application", "a circle", "two features of one layer"],
)
def test_an_import_against_the_layers_of_the_server_is_found(
    graph: grimp.ImportGraph, importer: str, imported: str
) -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    options = next(each for each in contracts if "containers" in each) | {"exhaustive": "true"}
    configure()
    contract = LayersContract("layers", {"root_packages": ["ludus", "server", "worker"]}, options)
    changed = copy.deepcopy(graph)
    assert contract.check(changed, verbose=False).kept

    changed.add_import(importer=importer, imported=imported)

    assert not contract.check(changed, verbose=False).kept


def test_importing_the_parent_of_the_embedded_stack_imports_no_framework(tmp_path: Path) -> None:
    program = """
import sys, server.embedded.stack, server.commands
heavy = {"torch", "fastapi", "uvicorn", "sqlalchemy", "alembic", "celery", "grpc", "numpy"} & set(sys.modules)
assert not heavy, heavy
"""
    run_isolated(program, cwd=tmp_path)


def test_only_the_api_imports_the_framework_of_its_routes(tmp_path: Path) -> None:
    """It takes a tenth of the time in which a slot starts, and 7 MB of each, of which a host has many."""
    roles = "worker.host.tasks, server.controller.controller, server.gateway.main"
    run_isolated(f"import sys, {roles}; assert not {{'fastapi', 'starlette'}} & set(sys.modules)", cwd=tmp_path)


def test_ludus_imports_with_posix_only_modules_blocked(tmp_path: Path) -> None:
    """As on Windows. What the standard library had imported by itself at start-up is not ours to block."""
    program = f"""
import importlib, pkgutil, sys
import subprocess, tempfile, asyncio, selectors, socket  # the library's own platform switches look at these first
import click, grpc, httpx2, numpy, yaml, google.protobuf

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name in {POSIX_ONLY!r}:
            raise ImportError(f"{{name}} does not exist on Windows")

for name in {POSIX_ONLY!r}:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Blocked())
import ludus
for info in pkgutil.walk_packages(ludus.__path__, "ludus."):
    if not info.name.startswith({EXTRAS!r}):
        importlib.import_module(info.name)
"""
    run_isolated(program, cwd=tmp_path)


@pytest.mark.long
def test_an_edge_collector_needs_nothing_that_game_machines_lack(tmp_path: Path) -> None:
    """As on Windows, without torch, uvloop and psutil."""
    program = f"""
import asyncio, selectors, socket, subprocess, sys, tempfile
import click, grpc, numpy, pydantic, structlog, google.protobuf

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {(*POSIX_ONLY, *sorted(HEAVY - {"pydantic", "structlog"}), "uvloop", "psutil")!r}:
            raise ImportError(f"{{name}} is not here")

for name in {POSIX_ONLY!r}:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Blocked())
import ludus.cli.collect, ludus.collector.edge
"""
    run_isolated(program, cwd=tmp_path)
