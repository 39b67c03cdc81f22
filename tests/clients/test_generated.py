"""Clients that the usual generators make of the description compile, and live through a story."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.server.app.world import World, open_world

HERE = Path(__file__).parent
DESCRIPTION = HERE.parent / "golden" / "openapi.json"
MODULES = HERE / "node_modules"
PYTHON_GENERATOR = os.environ.get("LUDUS_TEST_OPENAPI_PYTHON_CLIENT", "")
"""The interpreter of an environment with openapi-python-client."""


def said(command: Sequence[str | Path], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("generated")) as world:
        yield world


@pytest.mark.node
@pytest.mark.skipif(not MODULES.is_dir(), reason="run `npm ci` in tests/clients first")
def test_a_client_of_openapi_typescript_compiles_strictly_and_runs(world: World, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(MODULES)
    for name in ("package.json", "story.ts"):
        shutil.copy(HERE / name, tmp_path)

    said([MODULES / ".bin/openapi-typescript", DESCRIPTION, "-o", "api.d.ts"], tmp_path)
    options = "--strict --skipLibCheck --target es2022 --module nodenext --moduleResolution nodenext"
    said([MODULES / ".bin/tsc", *options.split(), "story.ts"], tmp_path)

    assert json.loads(said(["node", "story.js", world.server], tmp_path)) == [["dataset:v2"], "CANCELLED", "run_ended"]


@pytest.mark.node
@pytest.mark.skipif(not PYTHON_GENERATOR, reason="LUDUS_TEST_OPENAPI_PYTHON_CLIENT names no interpreter")
def test_a_client_of_openapi_python_client_imports_and_runs(world: World, tmp_path: Path) -> None:
    shutil.copy(HERE / "story.py", tmp_path)
    # Ruff only formats what is generated.
    (tmp_path / "options.yaml").write_text("post_hooks: []\n")
    generator = Path(PYTHON_GENERATOR).parent / "openapi-python-client"

    arguments = ["--path", DESCRIPTION, "--output-path", "generated", "--meta", "none", "--config", "options.yaml"]
    said([generator, "generate", *arguments], tmp_path)

    answer = said([PYTHON_GENERATOR, "-W", "ignore", "story.py", world.server], tmp_path)
    assert json.loads(answer) == ["generated", "CANCELLED"]
