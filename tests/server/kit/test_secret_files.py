"""Secrets in files: each secret setting, and a sentence for each file that cannot be used."""

from pathlib import Path

import click
import pytest

from server.commands import load_settings
from server.kit.secret_files import secret_variables
from server.kit.settings import Settings

SECRETS = sorted(secret_variables(Settings, "LUDUS_"))


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os  # noqa: PLC0415

    for name in [name for name in os.environ if name.startswith("LUDUS_")]:
        monkeypatch.delenv(name)


def refusal() -> list[str]:
    with pytest.raises(click.UsageError) as refused:
        load_settings()
    first, *lines = refused.value.message.splitlines()
    assert first == "These settings are wrong:"
    return [line.strip() for line in lines]


def test_every_secret_can_be_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in SECRETS:
        file = tmp_path / variable
        file.write_text(f"postgresql+psycopg://ludus:{variable}@host/ludus\n")
        monkeypatch.setenv(f"{variable}_FILE", str(file))

    settings = Settings()

    assert {"LUDUS_DATABASE__URL", "LUDUS_QUEUE__BROKER_URL", "LUDUS_API__TOKEN"} < set(SECRETS)
    for variable in SECRETS:
        group, name = variable.removeprefix("LUDUS_").lower().split("__")
        secret = getattr(getattr(settings, group), name).get_secret_value()
        assert secret == f"postgresql+psycopg://ludus:{variable}@host/ludus"


def test_only_the_line_break_at_the_end_is_not_part_of_the_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_bytes(b" two\nlines \r\n")
    monkeypatch.setenv("LUDUS_API__TOKEN_FILE", str(file))

    token = Settings().api.token

    assert token is not None
    assert token.get_secret_value() == " two\nlines "


def test_all_files_that_cannot_be_used_are_told_by_their_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    monkeypatch.setenv("LUDUS_API__TOKEN", "given")
    monkeypatch.setenv("LUDUS_API__TOKEN_FILE", str(tmp_path / "empty"))
    monkeypatch.setenv("LUDUS_GATEWAY__TOKEN_FILE", str(tmp_path / "empty"))
    monkeypatch.setenv("LUDUS_GATEWAY__TICKET_KEY_FILE", str(tmp_path / "binary"))
    monkeypatch.setenv("LUDUS_DATABASE__URL_FILE", str(tmp_path / "missing"))
    monkeypatch.setenv("LUDUS_QUEUE__BROKER_URL_FILE", str(tmp_path))

    assert refusal() == [
        f"LUDUS_DATABASE__URL_FILE: the file {tmp_path}/missing cannot be read (No such file or directory)",
        f"LUDUS_QUEUE__BROKER_URL_FILE: the file {tmp_path} cannot be read (Is a directory)",
        "LUDUS_API__TOKEN_FILE: LUDUS_API__TOKEN is set, too; remove one of them",
        f"LUDUS_GATEWAY__TOKEN_FILE: the file {tmp_path}/empty is empty; write the secret into it",
        f"LUDUS_GATEWAY__TICKET_KEY_FILE: the file {tmp_path}/binary is not UTF-8 text",
    ]


def test_an_empty_variable_counts_as_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    monkeypatch.setenv("LUDUS_API__TOKEN", "")
    monkeypatch.setenv("LUDUS_API__TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("LUDUS_GATEWAY__TOKEN_FILE", "")

    settings = Settings()

    assert settings.api.token is not None
    assert settings.gateway.token is None


def test_a_file_for_what_is_no_secret_and_a_misspelt_variable_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUDUS_WORKER__SLOTS_FILE", "/dev/null")
    assert refusal() == [
        "LUDUS_WORKER__SLOTS_FILE: there is no such setting; did you mean LUDUS_WORKER__SLOTS?",
    ]

    monkeypatch.setenv("LUDUS_API_TOKEN_FILE", "/dev/null")
    assert refusal() == ["LUDUS_API_TOKEN_FILE is unknown; did you mean LUDUS_API__TOKEN_FILE?"]
