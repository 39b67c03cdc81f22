"""What operators copy is true: .env.example, docker-compose.yml, the images."""

import re
from pathlib import Path

import pytest
import yaml

from server.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
EXAMPLE = (ROOT / ".env.example").read_text()


def example_variables() -> dict[str, str]:
    """Return the settings of .env.example with the values that it shows, commented out or not."""
    return dict(re.findall(r"^(?:# )?(LUDUS_\w+)=(.*)$", EXAMPLE, re.MULTILINE))


def names_of_settings() -> set[str]:
    names = set()
    for name, field in Settings.model_fields.items():
        inner = getattr(field.annotation, "model_fields", None)
        names.update({f"LUDUS_{name}__{key}".upper() for key in inner} if inner else {f"LUDUS_{name}".upper()})
    return names


def test_the_example_names_every_setting_and_no_other() -> None:
    assert set(example_variables()) == names_of_settings()


def test_the_example_shows_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = Settings()

    for name, value in example_variables().items():
        if value:
            monkeypatch.setenv(name, value)

    assert Settings() == defaults


def test_compose_requires_what_the_example_asks_for_at_its_top() -> None:
    required = set(re.findall(r"\$\{(\w+):\?", (ROOT / "docker-compose.yml").read_text()))

    asked = set(re.findall(r"^(\w+)=$", EXAMPLE, re.MULTILINE))

    assert required == asked


def test_compose_sets_only_settings_that_exist() -> None:
    for name, service in COMPOSE["services"].items():
        unknown = {key for key in service.get("environment", {}) if key.startswith("LUDUS_")} - names_of_settings()
        assert not unknown, f"{name}: {unknown}"


def test_a_worker_may_take_longer_to_stop_than_its_last_checkpoint() -> None:
    for name in ("worker", "worker-gpu"):
        grace = int(COMPOSE["services"][name]["stop_grace_period"].removesuffix("s"))
        assert grace > Settings().worker.stop_seconds + 10


def test_redis_refuses_rather_than_drops_messages() -> None:
    assert "noeviction" in COMPOSE["services"]["redis"]["command"]


def test_every_service_has_a_health_check() -> None:
    for name, service in COMPOSE["services"].items():
        assert "healthcheck" in service or name == "worker-gpu", name


@pytest.mark.parametrize("dockerfile", ["cpu.Dockerfile", "gpu.Dockerfile"])
def test_images_run_as_a_user_of_their_own_with_exact_versions_and_a_health_check(dockerfile: str) -> None:
    text = (ROOT / "docker" / dockerfile).read_text()

    assert "\nUSER ludus\n" in text
    assert "\nHEALTHCHECK " in text
    assert all("--constraint constraints.txt" in line for line in text.splitlines() if "pip install" in line)
