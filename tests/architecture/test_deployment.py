"""What operators copy is true: .env.example, docker-compose.yml, the images."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from importlib.metadata import requires
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from server.kit.settings import Settings
from tests.architecture.test_constraints import LIBRARIES_OF_CUDA
from tests.deployment.composition import MissingVariable, Service, fill, read_services
from tests.deployment.deployment import TABLE, table_of_ports

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
EXAMPLE = (ROOT / ".env.example").read_text()
DEPLOY = ROOT / "deploy/kubernetes"
(IMAGE_VERSION,) = re.findall(
    r"^ARG BASE=python:(3\.11\.\d+)-", (ROOT / "docker/cpu.Dockerfile").read_text(), re.MULTILINE
)
IMAGE_PYTHON = {"python_version": "3.11", "python_full_version": IMAGE_VERSION}
"""What decides which packages an image needs: not the Python of these tests. Debian 12's needs one more."""


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
    for command in re.findall(r"\bpip install (.*?)(?: \\)?$", text, re.MULTILINE):
        assert command.startswith(("--require-hashes ", "--no-deps ", "'cyclonedx-bom==")) or command == (
            "--constraint constraints.txt torch"
        )


class Stage(NamedTuple):
    """A stage of a Dockerfile."""

    name: str
    base: str
    lines: list[str]
    """Its instructions, each on one line."""


def stages_of(dockerfile: str) -> list[Stage]:
    text = (ROOT / "docker" / dockerfile).read_text().replace("\\\n", " ")
    parts = re.split(r"^FROM (\S+)(?: AS (\S+))?$", text, flags=re.MULTILINE)[1:]
    return [
        Stage(name or "", base, re.findall(r"^[A-Z]+ .*", lines, re.MULTILINE))
        for base, name, lines in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    ]


def final_stages() -> list[tuple[str, Stage]]:
    """Return the stages that become images, on which no other stage builds, with their Dockerfiles."""
    found = []
    for dockerfile in ("cpu.Dockerfile", "gpu.Dockerfile"):
        stages = stages_of(dockerfile)
        used = {each.base for each in stages} | {
            name for each in stages for name in re.findall(r"--from=(\S+)", " ".join(each.lines))
        }
        found += [(dockerfile, each) for each in stages if each.name not in used]
    return found


def test_every_image_has_the_list_of_the_packages_that_are_installed_in_it() -> None:
    """Made in a stage of its own, of the Python of the same packages, and of nothing that makes the list."""
    assert [(file, stage.name) for file, stage in final_stages()] == [
        ("cpu.Dockerfile", "server"),
        ("cpu.Dockerfile", "worker"),
        ("gpu.Dockerfile", ""),
    ]
    for dockerfile, image in final_stages():
        stages = {each.name: each for each in stages_of(dockerfile)}
        (source,) = re.findall(
            r"^COPY --from=(\S+) /sbom.cdx.json /usr/share/doc/ludus/$", "\n".join(image.lines), re.MULTILINE
        )
        (made,) = stages[source].lines
        installed = next(line for line in stages[image.base].lines if "--requirement docker/" in line)
        python = "/opt/venv/bin/python" if dockerfile == "gpu.Dockerfile" else "/usr/local/bin/python"

        assert stages[source].base == image.base, image
        assert made.endswith(f"cyclonedx-py environment --output-reproducible --output-file /sbom.cdx.json {python}")
        assert "--editable ." in installed
        assert not [line for line in image.lines if "pip install" in line], "after the list was made"


def test_no_image_starts_as_root() -> None:
    for dockerfile, image in final_stages():
        users = [line for line in image.lines if line.startswith("USER ")]
        assert users[-1:] == ["USER ludus"], (dockerfile, image.name)


def test_images_of_others_have_their_version_and_their_hash() -> None:
    places = (ROOT / "docker-compose.yml", *(ROOT / "docker").glob("*.Dockerfile"), *DEPLOY.rglob("*.yaml"))
    lines = {
        place: re.findall(r"^ *(?:image: |ARG BASE=|FROM )(.*)$", place.read_text(), re.MULTILINE) for place in places
    }
    stages = {name for place in places for name in re.findall(r" AS (\S+)$", place.read_text(), re.MULTILINE)}

    pinned = set()
    for place, images in lines.items():
        for image in images:
            name = image.partition(" AS ")[0]
            if not name.startswith("ludus-") and name not in {"${BASE}", *stages}:
                assert re.fullmatch(r"[a-z/]+:[\w.-]+@sha256:[0-9a-f]{64}", name), f"{place.name}: {name}"
                pinned.add(name.partition(":")[0])

    assert pinned == {"python", "nvidia/cuda", "postgres", "redis", "edoburu/pgbouncer"}


def packages_of(requirement: str) -> set[str]:
    """Return the names of all packages that a requirement brings in an image, of the versions that are installed.

    Libraries of CUDA are left out: torch's build decides about them, and the index about the build.
    """
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    left = [Requirement(requirement)]
    while left:
        wanted = left.pop()
        name = canonicalize_name(wanted.name)
        for extra in {"", *wanted.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                found.add(name)
                needs = map(Requirement, requires(name) or ())
                there = {"extra": extra, **IMAGE_PYTHON}
                needs = [each for each in needs if each.marker is None or each.marker.evaluate(there)]
                left += [each for each in needs if not LIBRARIES_OF_CUDA.match(each.name)]
    return found


@pytest.mark.parametrize("extra", ["server", "worker"])
def test_locks_have_the_hashes_of_the_exact_versions_of_all_packages_of_an_image(extra: str) -> None:
    exact = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    exact = {canonicalize_name(name): version for name, version in exact.items()}
    lock = (ROOT / f"docker/{extra}.lock").read_text()
    locked = dict(re.findall(r"^([\w.-]+)==(\S+) \\\n +--hash=sha256:[0-9a-f]{64}", lock, re.MULTILINE))

    needed = packages_of(f"ludus[{extra},telemetry]") | packages_of("hatchling")

    assert locked.keys() == needed - {"ludus", "torch"}
    assert locked == {name: exact[name] for name in locked}


@pytest.mark.parametrize("dockerfile", ["cpu.Dockerfile", "gpu.Dockerfile"])
def test_images_make_the_folder_of_each_volume_for_their_user(dockerfile: str) -> None:
    """A new volume takes its owner from the folder in the image; Docker makes a missing folder for root."""
    (made,) = re.findall(
        r"install -d -o ludus -g ludus (.*?)$", (ROOT / "docker" / dockerfile).read_text(), re.MULTILINE
    )

    mounted = {
        re.sub(r":ro$", "", volume).rpartition(":")[2]
        for service in COMPOSE["services"].values()
        if str(service["image"]).startswith("ludus-")
        for volume in service["volumes"]
    }

    assert mounted <= set(made.split())


def test_postgres_is_healthy_only_when_it_listens_for_other_containers() -> None:
    assert "-h" in COMPOSE["services"]["postgres"]["healthcheck"]["test"]


def test_published_ports_lie_below_those_that_linux_gives_to_outgoing_connections() -> None:
    """A port of the ephemeral range (32768 to 60999) may be taken by any client of the host when the stack starts."""
    published = [port for service in COMPOSE["services"].values() for port in service.get("ports", ())]

    numbers = [int(number) for port in published for number in re.findall(r"\b\d{4,5}\b", port)]

    assert numbers
    assert max(numbers) < 32768


REQUIRED = re.findall(r"^(\w+)=$", EXAMPLE, re.MULTILINE)


def composed(folder: Path, **values: str) -> dict[str, Service]:
    """Return the services as an operator gets them who has filled in the top of .env."""
    dotenv = folder / ".env"
    dotenv.write_text(fill(EXAMPLE, **{**dict.fromkeys(REQUIRED, "x"), **values}))
    return read_services(dotenv)


def test_the_page_names_the_ports_that_compose_publishes(tmp_path: Path) -> None:
    published = {
        (service.name, port.first, port.last) for service in composed(tmp_path).values() for port in service.ports
    }

    rows = table_of_ports()

    named = {(name, first, last) for _, tos, first, last in rows for name in tos}
    assert published == named - {("postgres", 5432, 5432), ("redis", 6379, 6379), ("s3", 9000, 9000)}
    assert {name for senders, receivers, _, _ in rows for name in (*senders, *receivers)} == TABLE.keys()


def test_workers_take_the_ports_that_compose_publishes(tmp_path: Path) -> None:
    services = composed(tmp_path)

    for name in ("worker", "worker-gpu"):
        (port,) = services[name].ports
        assert services[name].environment["LUDUS_WORKER__PORT_RANGE"] == f"[{port.first}, {port.last}]"


def test_a_worker_on_another_host_uses_the_database_and_the_queue_that_its_env_names(tmp_path: Path) -> None:
    here = composed(tmp_path, POSTGRES_PASSWORD="secret")["worker"].environment
    elsewhere = {
        "LUDUS_DATABASE__URL": "postgresql+psycopg://db.lan/ludus",
        "LUDUS_QUEUE__BROKER_URL": "redis://q.lan/0",
    }
    there = composed(tmp_path, **elsewhere)["worker"].environment

    assert here["LUDUS_DATABASE__URL"] == "postgresql+psycopg://ludus:secret@postgres:5432/ludus"
    assert here["LUDUS_QUEUE__BROKER_URL"] == "redis://redis:6379/0"
    assert there.items() >= elsewhere.items()


@pytest.mark.parametrize("missing", REQUIRED)
def test_compose_names_what_is_missing_in_env(tmp_path: Path, missing: str) -> None:
    with pytest.raises(MissingVariable, match=f"{missing}: set it in .env"):
        composed(tmp_path, **{missing: ""})


def compose_answers() -> bool:
    return (
        shutil.which("docker") is not None
        and subprocess.run(["docker", "compose", "version"], check=False, capture_output=True).returncode == 0
    )


@pytest.mark.skipif(not compose_answers(), reason="needs Docker Compose")
def test_the_tests_read_the_file_as_compose_does(tmp_path: Path) -> None:
    read = composed(tmp_path, LUDUS_WORKER__LEASE_SECONDS="4")
    shutil.copy(ROOT / "docker-compose.yml", tmp_path)
    config = ["docker", "compose", "--profile", "gpu", "config", "--format", "json"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LUDUS_", "POSTGRES_"))}

    said = subprocess.run(config, cwd=tmp_path, env=clean, check=True, capture_output=True).stdout

    services = json.loads(said)["services"]
    assert services.keys() == read.keys()
    for name, theirs in services.items():
        ours = read[name]
        assert ours.environment.items() >= theirs.get("environment", {}).items(), name
        assert ours.command[len(ours.command) - len(theirs["command"] or ()) :] == (theirs["command"] or []), name
        assert {port for each in ours.ports for port in range(each.first, each.last + 1)} == {
            int(port["published"]) for port in theirs.get("ports", [])
        }, name
        assert ours.volumes == {volume["target"]: volume["source"] for volume in theirs.get("volumes", [])}, name
        assert ours.needs == {each: value["condition"] for each, value in theirs.get("depends_on", {}).items()}, name
        assert ours.health == theirs.get("healthcheck", {}).get("test", ["CMD"])[1:], name


@pytest.mark.parametrize("dockerfile", ["cpu.Dockerfile", "gpu.Dockerfile"])
def test_images_have_all_files_that_the_installation_includes(dockerfile: str) -> None:
    """Even an editable installation fails where a file of `force-include` is missing."""
    targets = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    before = (ROOT / "docker" / dockerfile).read_text().partition("--editable")[0]

    copied = {name for line in re.findall(r"^COPY (.*) \S+$", before, re.MULTILINE) for name in line.split()}

    included = {name.partition("/")[0] for name in targets["wheel"]["force-include"]}
    assert included <= copied
    assert included <= set(re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))


def test_metrics_of_every_role_can_be_read_in_the_network_of_compose_and_not_from_outside() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    roles = {name: service for name, service in services.items() if "LUDUS_HOME" in service.get("environment", {})}

    assert {"api", "gateway", "controller", "worker", "worker-gpu"} <= roles.keys()
    for name, service in roles.items():
        assert service["environment"]["LUDUS_TELEMETRY__HOST"] == "${LUDUS_TELEMETRY__HOST:-0.0.0.0}", name
        assert not [port for port in service.get("ports", ()) if ":910" in str(port)], name
