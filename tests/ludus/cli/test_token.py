"""`ludus token`, `ludus audit`, and the first token of a server: `ludus admin create-token`."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ludus.cli import exits, ludus
from server.access.secrets import parse
from tests.ludus.cli.conftest import Invoke, as_json
from tests.server.app.world import ServerProcess


def made(cli: Invoke, *options: str) -> str:
    result = cli("token", "create", *options)
    assert result.exit_code == 0, result.output
    assert parse(result.stdout.strip()) is not None, "the token alone is on standard output"
    return result.stdout.strip()


def test_a_token_is_made_used_listed_and_revoked(cli: Invoke) -> None:
    token = made(cli, "nightly", "--scope", "read", "--expires", "90d")

    own = as_json(cli("token", "self", "--json", "--token", token))
    assert (own["name"], own["scopes"]) == ("nightly", ["read"])
    refused = cli("config", "create", "x", "-", "--token", token, input="behaviors: {A: {}}")
    assert (refused.exit_code, "scope 'run'" in refused.stderr) == (exits.Exit.REFUSED, True)
    listed = cli("token", "list").stdout
    assert "nightly" in listed
    assert token not in listed

    token_id = own["token_id"]
    assert cli("token", "revoke", token_id).exit_code == 0
    assert token_id not in cli("token", "list").stdout
    assert "revoked" in next(line for line in cli("token", "list", "--all").stdout.splitlines() if token_id in line)
    assert "was revoked" in cli("token", "self", "--token", token).stderr


def test_a_token_for_one_run_or_ladder_reads_this_one_alone(cli: Invoke) -> None:
    config = "behaviors: {CartPole: {trainer_type: ppo}}"
    run = cli("run", "create", "-", "--name", "shown", input=config).stdout.strip()
    ladder = as_json(cli("ladder", "create", "shown-league", "--json"))["id"]

    of_run = made(cli, "for-ann", "--scope", "read", "--run", "shown", "--expires", "30d")
    of_ladder = made(cli, "for-bob", "--scope", "read", "--ladder", "shown-league")

    assert as_json(cli("run", "show", run, "--json", "--token", of_run))["id"] == run
    assert "shown" in cli("run", "show", run, "--token", of_run).stdout
    refused = cli("run", "list", "--token", of_run)
    assert (refused.exit_code, run in refused.stderr) == (exits.Exit.REFUSED, True)
    assert as_json(cli("token", "self", "--json", "--token", of_ladder))["ladder_id"] == ladder
    lines = {line.split()[1]: line for line in cli("token", "list").stdout.splitlines()}
    assert run in lines["for-ann"]
    assert ladder in lines["for-bob"]
    wrong = cli("token", "create", "x", "--scope", "run", "--ladder", "shown-league")
    assert (wrong.exit_code, "scope `read` alone" in wrong.stderr) == (exits.Exit.REFUSED, True)


def test_a_project_is_chosen_by_an_option_or_the_environment(cli: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def acts_in(*options: str) -> Any:
        return as_json(cli("token", "self", "--json", *options))["acts_in"]

    assert acts_in() == "default"
    assert acts_in("--project", "bots") == "bots"
    monkeypatch.setenv("LUDUS_PROJECT", "from-the-environment")
    assert acts_in() == "from-the-environment"


def test_the_audit_log_shows_who_changed_what(cli: Invoke) -> None:
    token = made(cli, "the-actor", "--scope", "run")
    cli("config", "create", "audited", "-", "--token", token, input="behaviors: {A: {}}")

    shown = cli("audit", "--filter", "actor = the-actor").stdout

    assert "/v1/configs/audited/versions" in shown
    assert "127.0.0.1" in shown
    assert [each["status"] for each in as_json(cli("audit", "--json", "--filter", "actor = the-actor"))] == [201]


def test_the_first_token_is_made_on_the_servers_host(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path)
    server.close()

    result = CliRunner().invoke(ludus, ["admin", "create-token", "root", "--home", str(tmp_path)])

    assert result.exit_code == 0, result.output
    assert parse(result.stdout.strip()) is not None
    wrong = CliRunner().invoke(ludus, ["admin", "create-token", "x", "--scope", "king", "--home", str(tmp_path)])
    assert wrong.exit_code != 0
    assert "scopes" in wrong.output
    empty = CliRunner().invoke(ludus, ["admin", "create-token", "x", "--database", f"sqlite:///{tmp_path / 'new.db'}"])
    assert "ludus migrate" in empty.output
