"""What `ludus up` does with a request to stop, and whom its webhooks reach."""

import os
import signal
import time

import pytest
from pydantic import SecretStr

from server.embedded.stack import Interrupts, private_receivers
from server.kit.listening import ApiSettings


def test_a_request_to_stop_wakes_the_waiting_loop() -> None:
    with Interrupts() as interrupts:
        before = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)
        interrupts.wait(10)

        assert interrupts.count == 1
        assert time.monotonic() - before < 5


@pytest.mark.parametrize(
    ("api", "allowed"),
    [
        (ApiSettings(), True),
        (ApiSettings(host="0.0.0.0", require_token=True), False),
        (ApiSettings(require_token=True), False),
        (ApiSettings(token=SecretStr("x" * 32)), False),
    ],
)
def test_webhooks_reach_this_machine_only_where_every_client_does(api: ApiSettings, allowed: bool) -> None:
    assert private_receivers(api) is allowed
