"""The audit of the pinned packages: a pin with a known advisory fails it."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    """The script, which is in no package."""
    spec = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_package_of_the_time_before_an_advisory_is_named_with_it(audit: ModuleType) -> None:
    advisories = audit.stored(
        [("starlette", "0.48.0"), ("protobuf", "6.31.0"), ("protobuf", "6.31.1"), ("click", "8.0")]
    )
    assert [[text.split(":")[0] for text in of_package] for of_package in advisories] == [
        ["CVE-2025-62727"],
        ["CVE-2025-4565"],
        [],
        [],
    ]


def test_every_pin_of_an_installation_and_of_the_images_is_compared(audit: ModuleType) -> None:
    pins = audit.pins()
    assert {name for name, _ in pins} >= {"fastapi", "grpcio", "torch", "sqlalchemy", "celery"}
    assert set(pins.values()) >= {"constraints.txt"}


def test_every_stored_advisory_is_about_a_package_that_an_installation_has(audit: ModuleType) -> None:
    pinned = {name for name, _ in audit.pins()}
    lines = (ROOT / ".ci" / "advisories.txt").read_text().splitlines()
    named = {audit.canonicalize_name(audit.Requirement(line.split()[0]).name) for line in lines if line[:1] != "#"}
    assert named <= pinned
