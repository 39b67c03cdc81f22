"""The commits that CONTRIBUTING points at exist, and the house is as open as it says."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTRIBUTING = (ROOT / ".github" / "CONTRIBUTING.md").read_text()
COMMITS = sorted(set(re.findall(r"git show ([0-9a-f]{7,40})", CONTRIBUTING)))
SOURCE = re.compile(r"^(server|worker|ludus|proto|migrations)/.*\.py$")


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


pytestmark = pytest.mark.skipif(
    git("rev-parse", "--is-shallow-repository") != "false", reason="needs a clone with its whole history"
)


@pytest.mark.parametrize("commit", COMMITS)
def test_a_recipe_points_at_a_commit_of_the_history(commit: str) -> None:
    assert git("merge-base", commit, "HEAD") == git("rev-parse", f"{commit}^{{commit}}") != ""


@pytest.mark.parametrize(("recipe", "files"), [("An algorithm", 9), ("A reward signal", 4)])
def test_a_recipe_is_followed_in_few_source_files(recipe: str, files: int) -> None:
    section = CONTRIBUTING.split(f"### {recipe}\n")[1].split("\n### ")[0]
    (commit,) = re.findall(r"Followed by: `git show ([0-9a-f]+)`", section)

    touched = git("show", "--name-only", "--format=", commit).splitlines()

    assert 0 < len([path for path in touched if SOURCE.match(path) and "_pb2" not in path]) <= files
