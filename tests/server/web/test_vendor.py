"""The libraries of the pages are the files of their packages, as the list beside them says."""

import hashlib
import re

import pytest

from server.web.pages import STATIC

VENDOR = STATIC / "vendor"
ROW = re.compile(
    r"^\| `([\w.-]+)` \| `([\w@/-]+)` \| ([\d.]+) \| `[\w./-]+` \| [\w.-]+ \| `([0-9a-f]{64})` \|$", re.MULTILINE
)
LISTED = ROW.findall((VENDOR / "README.md").read_text())
ADDED = {"uplot.js": b"export default uPlot;\n"}
"""The last line of a file that is not the package's."""


@pytest.mark.parametrize(("name", "package", "version", "digest"), LISTED, ids=[row[0] for row in LISTED])
def test_a_library_is_the_file_of_its_package(name: str, package: str, version: str, digest: str) -> None:
    content = (VENDOR / name).read_bytes()
    added = ADDED.get(name, b"")

    assert content.endswith(added)
    assert hashlib.sha256(content.removesuffix(added)).hexdigest() == digest


def test_every_library_is_listed_with_its_licence() -> None:
    files = {path.name for path in VENDOR.iterdir()} - {"README.md", "LICENSES.txt"}
    licences = re.findall(r"^==== (\S+) ====$", (VENDOR / "LICENSES.txt").read_text(), re.MULTILINE)

    assert files == {name for name, *_ in LISTED}
    assert set(licences) == {package for _, package, *_ in LISTED}
