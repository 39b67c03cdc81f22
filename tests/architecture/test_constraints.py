"""Installations are the same everywhere: constraints.txt pins what is installed, down to the last dependency."""

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

LIBRARIES_OF_CUDA = re.compile("nvidia-(?!ml-py)|cuda-|triton$")
"""Torch's build for GPUs requires these, each in one version."""
CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = CONSTRAINTS.read_text().splitlines()
    return {canonical(name): version for name, equals, version in (line.partition("==") for line in lines) if equals}


def required(name: str, extras: frozenset[str], seen: set[tuple[str, str]]) -> Iterator[str]:
    """Yield the names of everything that installing `name[extras]` installs on this machine."""
    for text in distribution(name).requires or []:
        requirement = Requirement(text)
        wanted = [
            extra
            for extra in (extras or {""})
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        ]
        if not wanted:
            continue
        key = (canonical(requirement.name), ",".join(sorted(requirement.extras)))
        if key not in seen:
            seen.add(key)
            yield key[0]
            yield from required(requirement.name, frozenset(requirement.extras), seen)


def test_everything_that_a_developer_installs_is_pinned_to_what_is_installed() -> None:
    wrong = {}
    for name in set(required("ludus", frozenset({"dev"}), set())) - {"ludus"}:
        if LIBRARIES_OF_CUDA.match(name):
            continue
        try:
            installed = distribution(name).version.partition("+")[0]
        except PackageNotFoundError:
            installed = "nothing"
        if pins().get(name) != installed:
            wrong[name] = f"pinned {pins().get(name)}, installed {installed}"

    assert wrong == {}, "run `make constraints`, or `make setup` if the installation is old"


def test_constraints_name_no_address_and_no_build() -> None:
    assert not re.search(r"https?://|--|\+", CONSTRAINTS.read_text())
