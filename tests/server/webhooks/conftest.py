"""A receiver, and a sender that works when it is told to."""

from collections.abc import Iterator

import pytest

from tests.server.webhooks.receiver import Receiver, receiving


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver
