"""`ludus webhook`: addresses that receive events, and the messages sent to them."""

from collections.abc import Iterator
from datetime import UTC, datetime

import click

from ludus.cli.client import Failure, answering, connected
from ludus.cli.exits import Exit
from ludus.cli.options import filter_option, json_option, limit_option, option
from ludus.cli.render import ago, echo, fields, print_answer, print_facts, span, table
from ludus.client import Client
from ludus.schemas import Delivery, DeliveryWithPayload, Webhook, WebhookWithSecret

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
@answering(lambda made: print_facts(fields(made, "id, secret")))
def create(
    client: Client, *, url: str, events: tuple[str, ...], run: str | None, tag: str | None, description: str
) -> WebhookWithSecret:
    """Send future events to URL. Prints the webhook's id, and the secret with which messages are signed.

    The secret is not shown again: the receiver needs it to verify that messages come from this server.
    """
    return client.webhooks.create(url, events or ("*",), description=description, run=run, tag=tag)


def _state(webhook: Webhook) -> str:
    if not webhook.enabled:
        return f"disabled ({webhook.disabled_reason})"
    return (
        "enabled" if webhook.failing_since is None else f"failing for {ago(webhook.failing_since).removesuffix(' ago')}"
    )


def _show(webhook: Webhook) -> None:
    columns = "id, url, description, events, run_id, tag, state, last_success_at, created_at"
    print_facts(fields(webhook, columns, state=_state))


@webhook.command("list")
@filter_option("'enabled = false'")
@answering(table("id, url, events, run_id, tag, state", state=_state))
def list_(client: Client, *, filter_: str) -> Iterator[Webhook]:
    """List webhooks, newest first."""
    return client.webhooks.list(filter_)


@webhook.command()
@webhook_argument
@answering(_show)
def show(client: Client, *, webhook_id: str) -> Webhook:
    """Show WEBHOOK, without its secret."""
    return client.webhooks.get(webhook_id)


@webhook.command()
@webhook_argument
@click.option("--url", help="Where messages are sent from now on.")
@click.option("--event", "events", multiple=True, help="Types of events from now on; several times.")
@click.option("--run", help="Only events of this run; '' for all runs.")
@click.option("--tag", help="Only events of runs with this tag; '' for all.")
@click.option("--description", help="A sentence for people.")
@click.option("--enable/--disable", "enabled", default=None, help="Whether messages are sent.")
@answering(_show)
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
) -> Webhook:
    """Change WEBHOOK. When it is enabled again, it gets future events and the waiting messages."""
    return client.webhooks.update(
        webhook_id, url=url, events=events or None, description=description, run=run, tag=tag, enabled=enabled
    )


@webhook.command()
@webhook_argument
@connected
def delete(client: Client, *, webhook_id: str) -> None:
    """Delete WEBHOOK with the log of its deliveries."""
    client.webhooks.delete(webhook_id)


@webhook.command()
@webhook_argument
@option(
    "--overlap-hours",
    type=click.FloatRange(0, 720),
    default=24,
    help="How long messages are signed with the old secret, too.",
)
@answering(lambda rotated: rotated.secret)
def rotate(client: Client, *, webhook_id: str, overlap_hours: float) -> WebhookWithSecret:
    """Give WEBHOOK a new secret, and print it."""
    return client.webhooks.rotate_secret(webhook_id, overlap_hours * 3600)


def _until(message: Delivery) -> str | None:
    """Return the time until the next attempt."""
    if message.waits_for is not None:
        return "when enabled"
    if message.next_try_at is None:
        return None
    seconds = (message.next_try_at - datetime.now(UTC)).total_seconds()
    return f"in {span(seconds)}" if seconds > 0 else "now"


def _show_delivery(message: DeliveryWithPayload) -> None:
    print_facts(fields(message, "id, type, run_id, state, next_try, waits_for, payload", next_try=_until))
    echo()
    table(
        "attempt=number, ended=at, took, status, error or answer=answer",
        took=lambda attempt: f"{attempt.seconds:.2f} s",
        answer=lambda attempt: attempt.error or (attempt.response or "").strip()[:80],
    )(message.log)


@webhook.command()
@webhook_argument
@json_option
@connected
def test(client: Client, *, webhook_id: str, as_json: bool) -> None:
    """Send a test message to WEBHOOK now, and show the receiver's answer. Exits with 1 if the delivery fails."""
    sent = client.webhooks.test(webhook_id)
    print_answer(sent, _show_delivery, as_json=as_json)
    if sent.state != "succeeded":
        raise Failure("the test message did not arrive", Exit.REFUSED)


@webhook.command()
@webhook_argument
@filter_option("'state = failed AND type = run_*'")
@limit_option("deliveries, the newest")
@click.option("--delivery", help="Id of one of them: with its attempts and its payload.")
@json_option
@connected
def deliveries(
    client: Client, *, webhook_id: str, filter_: str, limit: int, delivery: str | None, as_json: bool
) -> None:
    """List the messages to WEBHOOK and their results, newest first."""
    if delivery is not None:
        print_answer(client.webhooks.get_delivery(webhook_id, delivery), _show_delivery, as_json=as_json)
        return

    def show(found: list[Delivery]) -> None:
        columns = "id, type, run_id, made=created_at, state, attempts, next_try, last_answer"
        table(
            columns,
            next_try=_until,
            last_answer=lambda message: message.log[-1].status or message.log[-1].error if message.log else None,
        )(found)
        if waits_for := next((message.waits_for for message in found if message.waits_for), None):
            echo(f"Waiting: {waits_for}", err=True)
            enable = f"`ludus webhook update {webhook_id} --enable`"
            echo(f"{enable} sends them. Events that happen before that are not sent.", err=True)

    print_answer(list(client.webhooks.list_deliveries(webhook_id, filter_, limit)), show, as_json=as_json)


@webhook.command()
@webhook_argument
@click.argument("delivery_id", metavar="DELIVERY")
@answering(_show_delivery)
def redeliver(client: Client, *, webhook_id: str, delivery_id: str) -> DeliveryWithPayload:
    """Send DELIVERY of WEBHOOK again, with the same id and all its retries."""
    return client.webhooks.redeliver(webhook_id, delivery_id)
