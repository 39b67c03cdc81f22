"""Settings: from the environment, complete, frozen, and without secrets in their text."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from pydantic import BaseModel, ValidationError

from ludus.docstrings import field_texts
from server.commands import load_settings
from server.kit.artifacts.address import S3Address
from server.kit.settings import DatabaseSettings, Settings


def groups(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from groups(field.annotation)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os  # noqa: PLC0415

    for name in [name for name in os.environ if name.startswith("LUDUS_")]:
        monkeypatch.delenv(name)


def test_without_any_variable_everything_lies_in_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LUDUS_HOME", str(tmp_path / "home"))

    settings = Settings()

    assert settings.home == tmp_path / "home"
    assert settings.database.url.get_secret_value() == f"sqlite:///{tmp_path}/home/ludus.db"
    assert settings.queue.folder == tmp_path / "home" / "queue"
    assert settings.storage.root == tmp_path / "home" / "artifacts"
    assert settings.worker.scratch == tmp_path / "home" / "scratch"


def test_variables_reach_their_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUDUS_DATABASE__URL", "postgresql+psycopg://user:secret@host/ludus")
    monkeypatch.setenv("LUDUS_WORKER__PORT_RANGE", "[41000, 41100]")
    monkeypatch.setenv("LUDUS_WORKER__SLOTS", "4")

    settings = Settings()

    assert settings.database.url.get_secret_value().startswith("postgresql")
    assert settings.worker.port_range == (41000, 41100)
    assert settings.worker.slots == 4


def test_a_relative_home_means_the_present_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    assert Settings(home=Path("here")).storage.root == tmp_path / "here" / "artifacts"


def test_secrets_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUDUS_DATABASE__URL", "postgresql+psycopg://user:hunter2@host/ludus")
    monkeypatch.setenv("LUDUS_API__TOKEN", "hunter2")

    assert "hunter2" not in repr(Settings())


def test_a_misspelt_variable_of_a_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUDUS_WORKER__SLOT", "4")

    with pytest.raises(ValidationError, match="slot"):
        Settings()


def test_a_misspelt_group_is_refused_with_the_nearest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUDUS_WORKR__SLOTS", "4")

    with pytest.raises(ValidationError, match=r"LUDUS_WORKR__SLOTS .* did you mean LUDUS_WORKER__"):
        Settings()


def test_a_variable_whose_group_is_joined_by_one_underscore_is_refused_with_the_one_that_is_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LUDUS_API_TOKEN", "secret")  # nobody would ask for this token

    with pytest.raises(ValidationError, match=r"LUDUS_API_TOKEN is unknown; did you mean LUDUS_API__TOKEN\?"):
        Settings()


def test_variables_of_clients_are_none_of_the_servers_business(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LUDUS_SERVER", "LUDUS_TOKEN", "LUDUS_SIMULATOR_TOKEN", "LUDUS_CLIENT_KEY", "LUDUS_WORKER_ID"):
        monkeypatch.setenv(name, "mine")

    assert Settings().api.token is None


def test_all_mistakes_are_told_by_their_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUDUS_API__TOKN", "secret")
    monkeypatch.setenv("LUDUS_GATEWAY__TLS_KEY", "key.pem")
    monkeypatch.setenv("LUDUS_CONTROLLER__COLOUR", "green")

    with pytest.raises(click.UsageError) as refused:
        load_settings()

    assert refused.value.message.splitlines() == [
        "These settings are wrong:",
        "  LUDUS_API__TOKN: there is no such setting; did you mean LUDUS_API__TOKEN?",
        "  LUDUS_GATEWAY: TLS needs both, tls_certificate and tls_key; set the other one, too",
        "  LUDUS_CONTROLLER__COLOUR: there is no such setting",
    ]


def test_a_value_that_is_not_json_is_told_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUDUS_SCHEDULING__TOKEN_QUOTAS", "ada=3")

    with pytest.raises(click.UsageError) as refused:
        load_settings()

    assert refused.value.message.splitlines() == [
        "These settings are wrong:",
        "  LUDUS_SCHEDULING__TOKEN_QUOTAS: not JSON: ada=3",
    ]


def test_settings_never_change() -> None:
    with pytest.raises(ValidationError):
        Settings().worker.slots = 2  # type: ignore[misc]


def test_a_lease_that_one_lost_beat_would_end_is_refused_with_the_fix() -> None:
    with pytest.raises(ValidationError, match="raise lease_seconds"):
        Settings(worker={"lease_seconds": 5, "heartbeat_seconds": 2})  # type: ignore[arg-type]


def test_an_empty_port_range_is_refused() -> None:
    with pytest.raises(ValidationError, match="port_range"):
        Settings(worker={"port_range": (2, 1)})  # type: ignore[arg-type]


def test_a_group_may_be_given_as_an_object() -> None:
    settings = Settings(home=Path("/srv"), database=DatabaseSettings(synchronous="NORMAL"))

    assert settings.database.url.get_secret_value() == "sqlite:////srv/ludus.db"
    assert settings.database.synchronous == "NORMAL"


def test_every_setting_is_described() -> None:
    for group in groups(Settings):
        for name, field in group.model_fields.items():
            nested = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
            assert nested or field_texts(group).get(name), f"{group.__name__}.{name}"


@pytest.mark.parametrize(
    ("storage", "sentence"),
    [
        ({"url": "/var/artifacts"}, "begins with s3://"),
        ({"url": "s3://B_"}, "is no name of a bucket"),
        ({"url": "s3://bucket/a b"}, "the prefix 'a b' has other characters"),
        ({"url": "s3://bucket/../other"}, "the prefix"),
        ({"url": "s3://bucket?endpont=http://host"}, "endpont in the address is unknown"),
        ({"url": "s3://bucket?endpoint=host:9000"}, "begins with neither http:// nor https://"),
        ({"url": "s3://key:secret@bucket"}, "keys don't belong into the address"),
        ({"url": "s3://bucket", "access_key": "key"}, "secret_key is missing"),
    ],
)
def test_an_address_of_artifacts_that_cannot_be_meant_is_refused(storage: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(sentence)):
        Settings(storage=storage)


def test_an_empty_address_of_artifacts_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URL", "ACCESS_KEY", "SECRET_KEY"):
        monkeypatch.setenv(f"LUDUS_STORAGE__{name}", "")

    storage = Settings().storage

    assert (storage.url, storage.access_key, storage.secret_key) == (None, None, None)


def test_an_address_of_artifacts_names_bucket_prefix_endpoint_and_region() -> None:
    assert S3Address.parse("s3://bucket/a/b?endpoint=http://host:9000&region=eu-central-1") == S3Address(
        "bucket", "a/b/", "http://host:9000", "eu-central-1"
    )
    assert S3Address.parse("s3://bucket") == S3Address("bucket", "", None, None)


@pytest.mark.parametrize(
    ("given", "host"), [("fd00::7", "fd00::7"), ("[fd00::7]", "fd00::7"), ("10.0.0.7", "10.0.0.7"), ("box", "box")]
)
def test_the_address_of_a_worker_may_be_one_of_ipv6_with_or_without_brackets(given: str, host: str) -> None:
    worker = Settings(worker={"advertise_host": given, "bind_host": given}).worker  # type: ignore[arg-type]

    assert (worker.advertise_host, worker.bind_host) == (host, host)


def test_a_port_in_the_address_of_a_worker_is_refused() -> None:
    with pytest.raises(ValidationError, match="leave a port out"):
        Settings(worker={"advertise_host": "box:7100"})  # type: ignore[arg-type]
