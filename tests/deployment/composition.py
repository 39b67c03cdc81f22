"""docker-compose.yml as a container engine reads it: with the variables of a .env, and what the images add."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from dotenv import dotenv_values

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.yml"
EXAMPLE = ROOT / ".env.example"
INNERMOST = re.compile(r"\$\{(\w+)(?::([-?])([^${}]*))?\}")
"""`${NAME}`, `${NAME:-default}` or `${NAME:?sentence}` without another variable in it."""


class MissingVariable(Exception):
    """The file demands a variable that .env does not set."""


@dataclass(frozen=True)
class Port:
    """A published port, or the first and last one of a range."""

    address: str
    """On the host: empty for all of its addresses."""
    first: int
    last: int


@dataclass(frozen=True)
class Service:
    """One service, with everything that its container gets from the engine."""

    name: str
    command: list[str]
    """With the entry point of its image."""
    environment: dict[str, str]
    ports: list[Port]
    volumes: dict[str, str]
    """Where in the container, and the named volume or the folder."""
    needs: dict[str, str]
    """The services that come before it, and the condition that they have to meet."""
    health: list[str]
    """The command of its health check; empty: none."""


def fill(example: str, **values: str) -> str:
    """Return a .env made from the example: each value in its line, which may be commented out there."""
    text = example
    for name, value in values.items():
        text, found = re.subn(rf"^(# )?{name}=.*$", f"{name}={value}", text, count=1, flags=re.MULTILINE)
        assert found, f".env.example has no line for {name}"
    return text


def read_services(dotenv: Path) -> dict[str, Service]:
    """Return the services of docker-compose.yml by name. Raises MissingVariable."""
    variables = {name: value or "" for name, value in dotenv_values(dotenv, interpolate=False).items()}
    document = _interpolated(yaml.safe_load(COMPOSE.read_text()), variables)
    return {name: _read(name, service, variables) for name, service in document["services"].items()}


def _interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    match value:
        case dict():
            return {key: _interpolated(each, variables) for key, each in value.items()}
        case list():
            return [_interpolated(each, variables) for each in value]
        case str():

            def replace(found: re.Match[str]) -> str:
                name, operator, rest = found.groups()
                if operator is None or variables.get(name):
                    return variables.get(name, "")
                if operator == "?":
                    raise MissingVariable(f"{name}: {rest}")
                return str(rest)

            while (outer := INNERMOST.sub(replace, value)) != value:
                value = outer
            return value
        case _:
            return value


def _read(name: str, service: Mapping[str, Any], variables: Mapping[str, str]) -> Service:
    image = _image(service["build"]) if "build" in service else {}
    environment = dict(image.get("environment", {}))
    for file in service.get("env_file", []):
        assert file["path"] == ".env", "the only file that there is"
        environment |= variables
    environment |= service.get("environment", {})
    return Service(
        name=name,
        command=[*image.get("entrypoint", []), *service.get("command", [])],
        environment=environment,
        ports=[_port(each) for each in service.get("ports", [])],
        volumes=dict(_volume(each) for each in service.get("volumes", [])),
        needs={each: needed["condition"] for each, needed in service.get("depends_on", {}).items()},
        health=_health(service.get("healthcheck", {})),
    )


def _image(build: Mapping[str, str]) -> dict[str, Any]:
    """Return the entry point and the environment that a Dockerfile gives to its containers."""
    text = (ROOT / build["dockerfile"]).read_text().replace("\\\n", " ")
    entrypoint = re.search(r"^ENTRYPOINT (\[.*\])$", text, re.MULTILINE)
    assert entrypoint, build
    pairs = [pair for line in re.findall(r"^ENV (.*)$", text, re.MULTILINE) for pair in line.split()]
    return {
        "entrypoint": json.loads(entrypoint[1]),
        "environment": dict(pair.split("=", 1) for pair in pairs),
    }


def _port(text: str) -> Port:
    """Read `[ADDRESS:]PUBLISHED:CONTAINER`, of which both are the same here."""
    address, published, container = re.fullmatch(r"(?:(.*):)?([\d-]+):([\d-]+)", text).groups()  # type: ignore[union-attr]
    assert published == container, text
    first, _, last = published.partition("-")
    return Port(address or "", int(first), int(last or first))


def _volume(text: str) -> tuple[str, str]:
    source, target = text.removesuffix(":ro").rsplit(":", 1)
    return target, source


def _health(check: Mapping[str, Any]) -> list[str]:
    if not check or check.get("disable"):
        return []
    kind, *command = check["test"]
    assert kind == "CMD", check
    return command
