"""The receiver of docs/webhooks.md, as it is printed there."""

import os
import re
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from server.kit.db.database import Database
from server.kit.settings import WebhookSettings
from server.webhooks.repository import WebhookRepository
from server.webhooks.sender import Sender
from server.webhooks.service import WebhookCreate, WebhookService
from tests.factories import make_run
from tests.ports import free_port
from tests.waiting import eventually

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "webhooks.md").read_text()


def test_the_printed_receiver_verifies_what_is_sent_and_refuses_what_is_not(database: Database) -> None:
    port = free_port()
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with database.write() as session:
        webhooks = WebhookService(session, private=True)
        good = webhooks.create(WebhookCreate(url=f"http://127.0.0.1:{port}/", events=["run_created"]))
        bad = webhooks.create(WebhookCreate(url=f"http://127.0.0.1:{port}/", events=["run_created"]))
    receiver = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "WEBHOOK_SECRET": good.secret, "PORT": str(port)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:

        def listens() -> bool:
            assert receiver.poll() is None
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                return True
            return False

        eventually(listens, "the receiver listens")
        make_run(database, name="nightly")
        sender = Sender(database, WebhookSettings(private_addresses=True))
        sender.create_deliveries()
        sender.send()
        sender.close(60)
        assert receiver.stdout is not None
        heard = receiver.stdout.readline()
    finally:
        receiver.kill()
        receiver.communicate()

    assert heard == "run_created nightly QUEUED\n"
    with database.read() as session:
        found = {each: WebhookRepository(session).get(each) for each in (good.id, bad.id)}
    assert found[good.id].failing_since is None
    assert found[bad.id].failing_since is not None  # signed with another secret: 401
