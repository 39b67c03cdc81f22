"""`ludus webhook`: addresses that receive events, and the messages sent to them."""

from datetime import UTC, datetime

import click

from ludus.cli.client import Failure, connected
from ludus.cli.exits import Exit
from ludus.cli.options import json_option
from ludus.cli.render import ago, echo, number, print_facts, print_json, print_result, print_table, span
from ludus.client import Client
from ludus.schemas import Delivery, DeliveryWithPayload, Webhook

webhook_argument = click.argument("webhook_id", metavar="WEBHOOK")


@click.group()
def webhook() -> None:
    """Send events of runs to your own services. WEBHOOK is the id that `create` prints."""


@webhook.command()
@click.argument("url")
@click.option(
    "--event", "events", multiple=True, help="A type of events, or a pattern as 'run_*'; several times. [all]"
)
@click.option("--run", help="Only events of this run (id or name).")
@click.option("--tag", help="Only events of runs with this tag.")
@click.option("--description", default="", help="A sentence for people.")
@json_option
@connected
def create(
    client: Client,
    *,
    url: str,
    events: tuple[str, ...],
    run: str | None,
    tag: str | None,
    description: str,
    as_json: bool,
) -> None:
    """Send future events to URL. Prints the webhook's id, and the secret with which messages are signed.

    The secret is not shown again: the receiver needs it to verify that messages come from this server.
    """
    made = client.webhooks.create(url, events or ("*",), description=description, run=run, tag=tag)
    if as_json:
        print_json(made)
        return
    print_facts([("id", made.id), ("secret", made.secret)])


@webhook.command("list")
@click.option("--filter", "filter_", default="", help="As in 'enabled = false'.")
@json_option
@connected
def list_(client: Client, *, filter_: str, as_json: bool) -> None:
    """List webhooks, newest first."""
    found = list(client.webhooks.list(filter_))
    if as_json:
        print_json(found)
        return
    rows = [(each.id, each.url, each.events, each.run_id, each.tag, _state(each)) for each in found]
    print_table(["id", "url", "events", "run", "tag", "state"], rows)


@webhook.command()
@webhook_argument
@json_option
@connected
def show(client: Client, *, webhook_id: str, as_json: bool) -> None:
    """Show WEBHOOK, without its secret."""
    _show(client.webhooks.get(webhook_id), as_json=as_json)


@webhook.command()
@webhook_argument
@click.option("--url", help="Where messages are sent from now on.")
@click.option("--event", "events", multiple=True, help="Types of events from now on; several times.")
@click.option("--run", help="Only events of this run; '' for all runs.")
@click.option("--tag", help="Only events of runs with this tag; '' for all.")
@click.option("--description", help="A sentence for people.")
@click.option("--enable/--disable", "enabled", default=None, help="Whether messages are sent.")
@json_option
@connected
def update(
    client: Client,
    *,
    webhook_id: str,
    url: str | None,
    events: tuple[str, ...],
    run: str | None,
    tag: str | None,
    description: str | None,
    enabled: bool | None,
    as_json: bool,
) -> None:
    """Change WEBHOOK. When it is enabled again, it gets future events and the waiting messages."""
    changed = client.webhooks.update(
        webhook_id, url=url, events=events or None, description=description, run=run, tag=tag, enabled=enabled
    )
    _show(changed, as_json=as_json)


@webhook.command()
@webhook_argument
@connected
def delete(client: Client, *, webhook_id: str) -> None:
    """Delete WEBHOOK with the log of its deliveries."""
    client.webhooks.delete(webhook_id)


@webhook.command()
@webhook_argument
@click.option(
    "--overlap-hours",
    type=click.FloatRange(0, 720),
    default=24,
    show_default=True,
    help="How long messages are signed with the old secret, too.",
)
@json_option
@connected
def rotate(client: Client, *, webhook_id: str, overlap_hours: float, as_json: bool) -> None:
    """Give WEBHOOK a new secret, and print it."""
    rotated = client.webhooks.rotate_secret(webhook_id, overlap_hours * 3600)
    print_result(rotated, rotated.secret, as_json=as_json)


@webhook.command()
@webhook_argument
@json_option
@connected
def test(client: Client, *, webhook_id: str, as_json: bool) -> None:
    """Send a test message to WEBHOOK now, and show the receiver's answer. Exits with 1 if the delivery fails."""
    sent = client.webhooks.test(webhook_id)
    if as_json:
        print_json(sent)
    else:
        _show_delivery(sent)
    if sent.state != "succeeded":
        raise Failure("the test message did not arrive", Exit.REFUSED)


@webhook.command()
@webhook_argument
@click.option("--filter", "filter_", default="", help="As in 'state = failed AND type = run_*'.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Maximum number of deliveries, the newest.",
)
@click.option("--delivery", help="Id of one of them: with its attempts and what was sent.")
@json_option
@connected
def deliveries(
    client: Client, *, webhook_id: str, filter_: str, limit: int, delivery: str | None, as_json: bool
) -> None:
    """List the messages to WEBHOOK and their results, newest first."""
    if delivery is not None:
        one = client.webhooks.get_delivery(webhook_id, delivery)
        if as_json:
            print_json(one)
        else:
            _show_delivery(one)
        return
    found = list(client.webhooks.list_deliveries(webhook_id, filter_, limit))
    if as_json:
        print_json(found)
        return
    print_table(["id", "type", "run", "made", "state", "attempts", "next try", "last answer"], map(_row, found))
    if held := next((each.waits_for for each in found if each.waits_for), None):
        echo(f"Waiting: {held}", err=True)
        echo(
            f"`ludus webhook update {webhook_id} --enable` has them sent. What happens meanwhile is not told.", err=True
        )


@webhook.command()
@webhook_argument
@click.argument("delivery_id", metavar="DELIVERY")
@json_option
@connected
def redeliver(client: Client, *, webhook_id: str, delivery_id: str, as_json: bool) -> None:
    """Send DELIVERY of WEBHOOK again, with the same id and all its retries."""
    again = client.webhooks.redeliver(webhook_id, delivery_id)
    if as_json:
        print_json(again)
    else:
        _show_delivery(again)


def _state(each: Webhook) -> str:
    if not each.enabled:
        return f"disabled ({each.disabled_reason})"
    return "enabled" if each.failing_since is None else f"failing for {ago(each.failing_since).removesuffix(' ago')}"


def _show(found: Webhook, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    print_facts(
        [
            ("id", found.id),
            ("url", found.url),
            ("description", found.description),
            ("events", found.events),
            ("run", found.run_id),
            ("tag", found.tag),
            ("state", _state(found)),
            ("last success", ago(found.last_success_at) if found.last_success_at else None),
            ("created", ago(found.created_at)),
        ]
    )


def _row(each: Delivery) -> tuple[object, ...]:
    last = each.log[-1] if each.log else None
    answer = None if last is None else last.status or last.error
    return (
        each.id, each.type, each.run_id, ago(each.created_at), each.state, number(each.attempts), _until(each), answer
    )  # fmt: skip


def _until(each: Delivery) -> str | None:
    if each.waits_for is not None:
        return "when enabled"
    if each.next_try_at is None:
        return None
    seconds = (each.next_try_at - datetime.now(UTC)).total_seconds()
    return f"in {span(seconds)}" if seconds > 0 else "now"


def _show_delivery(each: DeliveryWithPayload) -> None:
    print_facts(
        [
            ("id", each.id),
            ("type", each.type),
            ("run", each.run_id),
            ("state", each.state),
            ("next try", _until(each)),
            ("waits for", each.waits_for),
            ("payload", each.payload),
        ]
    )
    echo()
    rows = [
        (
            each.number,
            ago(each.at),
            f"{each.seconds:.2f} s",
            each.status,
            each.error or (each.response or "").strip()[:80],
        )
        for each in each.log
    ]
    print_table(["attempt", "ended", "took", "status", "error or answer"], rows)
