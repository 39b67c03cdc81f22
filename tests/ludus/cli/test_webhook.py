"""`ludus webhook` against a real server and a real receiver."""

from collections.abc import Iterator

import pytest

from ludus.cli import exits
from server.webhooks.sender import Sender
from tests.factories import make_run
from tests.ludus.cli.conftest import Invoke, as_json
from tests.server.app.world import World, open_world
from tests.server.webhooks.receiver import Receiver, receiving


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("cli"), webhooks={"private_addresses": True}) as world:
        yield world


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def created(cli: Invoke, url: str, *options: str) -> tuple[str, str]:
    """Make a webhook; return its id and secret."""
    lines = cli("webhook", "create", url, *options).stdout.splitlines()
    facts = dict(line.split(maxsplit=1) for line in lines)
    return facts["id"], facts["secret"]


def test_a_webhook_is_made_shown_changed_listed_and_deleted(cli: Invoke, receiver: Receiver) -> None:
    webhook, secret = created(cli, receiver.url, "--event", "run_*", "--event", "checkpoint_saved", "--tag", "ci")

    shown = cli("webhook", "show", webhook).stdout
    changed = as_json(cli("webhook", "update", webhook, "--disable", "--tag", "", "--json"))
    listed = cli("webhook", "list", "--filter", "enabled = false").stdout.splitlines()

    assert secret.startswith("whsec_")
    assert secret not in shown
    assert "run_*, checkpoint_saved" in shown
    assert (changed["tag"], changed["enabled"]) == (None, False)
    assert [line.split()[0] for line in listed[1:]] == [webhook]
    assert "disabled (user)" in listed[1]
    assert cli("webhook", "delete", webhook).exit_code == 0
    assert "no webhook" in cli("webhook", "show", webhook).stderr


def test_a_test_shows_the_answer_and_its_exit_code_says_whether_it_arrived(cli: Invoke, receiver: Receiver) -> None:
    webhook, secret = created(cli, receiver.url)

    good = cli("webhook", "test", webhook)
    receiver.status = 503
    bad = cli("webhook", "test", webhook)

    assert receiver.received[0].verified(secret)["type"] == "webhook_test"
    assert (good.exit_code, "thank you" in good.stdout) == (0, True)
    assert (bad.exit_code, "the receiver answered 503" in bad.stdout) == (exits.Exit.REFUSED, True)


def test_deliveries_are_listed_and_sent_again(cli: Invoke, world: World, receiver: Receiver) -> None:
    webhook, _ = created(cli, receiver.url, "--tag", "delivered")
    run = make_run(world.services.database, tags=["delivered"])
    sender = Sender(world.services.database, world.services.settings.webhooks)
    sender.create_deliveries()
    sender.send()
    receiver.wait_for(1)
    sender.close(60)

    table = [line.split() for line in cli("webhook", "deliveries", webhook).stdout.splitlines()]
    one = as_json(cli("webhook", "deliveries", webhook, "--delivery", table[1][0], "--json"))
    again = cli("webhook", "redeliver", webhook, table[1][0])

    assert table[1][:3] == [receiver.ids()[0], "run_created", run.id]
    assert one["payload"] == receiver.received[0].body.decode()
    assert (one["state"], one["log"][0]["status"]) == ("succeeded", 200)
    assert "pending" in again.stdout


def test_a_rotated_secret_is_printed(cli: Invoke, receiver: Receiver) -> None:
    webhook, secret = created(cli, receiver.url)

    rotated = cli("webhook", "rotate", webhook, "--overlap-hours", "0").stdout.strip()
    cli("webhook", "test", webhook)

    assert rotated != secret
    assert receiver.received[0].verified(rotated)


def test_what_a_disabled_webhook_holds_back_says_so_and_is_sent_once_it_is_enabled(
    cli: Invoke, world: World, receiver: Receiver
) -> None:
    webhook = as_json(cli("webhook", "create", receiver.url, "--event", "run_created", "--json"))["id"]
    world.create()
    sender = Sender(world.services.database, world.services.settings.webhooks)
    sender.create_deliveries()
    cli("webhook", "update", webhook, "--disable")

    listed = cli("webhook", "deliveries", webhook)
    (held,) = as_json(cli("webhook", "deliveries", webhook, "--json"))
    shown = cli("webhook", "deliveries", webhook, "--delivery", held["id"])

    assert "when enabled" in listed.stdout
    assert "the webhook is disabled (user)" in listed.stderr
    assert f"ludus webhook update {webhook} --enable" in listed.stderr
    assert (held["state"], held["next_try_at"]) == ("pending", None)
    assert "the webhook is disabled (user)" in shown.stdout
    cli("webhook", "update", webhook, "--enable")
    (free,) = as_json(cli("webhook", "deliveries", webhook, "--json"))
    assert free["waits_for"] is None
    assert free["next_try_at"] is not None
