"""Compare every pinned package with the known advisories: those of https://osv.dev, or of advisories.txt without it.

Exit code 1 if a pin has one. Prints which list was asked, since a stored one knows nothing new.
"""

import sys
from pathlib import Path

import httpx2
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).resolve().parent
OSV = "https://api.osv.dev/v1/querybatch"

Pin = tuple[str, str]
"""Name of a package, and its version."""


def pins() -> dict[Pin, str]:
    """Return the pins of constraints.txt and docker/*.lock, each with the file that has it."""
    files = [HERE.parent / "constraints.txt", *sorted((HERE.parent / "docker").glob("*.lock"))]
    lines = [(line.split()[0], file.name) for file in files for line in file.read_text().splitlines() if "==" in line]
    return {(canonicalize_name(pin.partition("==")[0]), pin.partition("==")[2]): name for pin, name in lines}


def known(packages: list[Pin]) -> list[list[str]]:
    """Return the advisories of each package, as OSV knows them. Raises httpx2.HTTPError where it does not answer."""
    queries = [{"package": {"name": name, "ecosystem": "PyPI"}, "version": version} for name, version in packages]
    answer = httpx2.post(OSV, json={"queries": queries}, timeout=30.0).raise_for_status().json()
    return [[advisory["id"] for advisory in result.get("vulns", ())] for result in answer["results"]]


def stored(packages: list[Pin]) -> list[list[str]]:
    """Return the advisories of each package, as advisories.txt knows them."""
    lines = [line.split(maxsplit=1) for line in (HERE / "advisories.txt").read_text().splitlines() if line[:1] != "#"]
    advisories = [(Requirement(versions), text) for versions, text in lines]
    return [
        [
            text
            for affected, text in advisories
            if canonicalize_name(affected.name) == name and version in affected.specifier
        ]
        for name, version in packages
    ]


def main() -> int:
    """Print what is known about each pin."""
    files = pins()
    packages = list(files)
    try:
        found, asked = known(packages), "osv.dev"
    except (httpx2.HTTPError, ValueError, KeyError) as error:
        found, asked = stored(packages), f"the stored list alone, since osv.dev does not answer ({error})"
    for (name, version), advisories in zip(packages, found, strict=True):
        for advisory in advisories:
            print(f"{files[name, version]}: {name} {version}: {advisory}")
    print(f"{len(packages)} packages compared with {asked}")
    return int(any(found))


if __name__ == "__main__":
    sys.exit(main())
