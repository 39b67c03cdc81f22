"""The body of a webhook message, as Standard Webhooks defines it: type, timestamp, data."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

LARGEST_BYTES: Final = 64 << 10
"""An event whose `data` makes the message larger than this is sent without it."""
TEST_TYPE: Final = "webhook_test"


def event_message(run: Mapping[str, Any], event: Mapping[str, Any]) -> str:
    """Return the message for an event of a run; `event` has the fields of `ludus.schemas.Event`, `at` in seconds."""
    at = rfc3339(event["at"])
    shown = {**event, "at": at}
    text = _message(event["type"], at, {"run": run, "event": shown})
    if len(text.encode()) <= LARGEST_BYTES:
        return text
    return _message(event["type"], at, {"run": run, "event": {**shown, "data": {"left_out": "too large"}}})


def test_message(webhook_id: str, at: float) -> str:
    """Return the message of a test call."""
    data = {"webhook_id": webhook_id, "message": "Ludus can reach this receiver."}
    return _message(TEST_TYPE, rfc3339(at), data)


def rfc3339(seconds: float) -> str:
    """Render seconds since 1970-01-01 UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _message(event_type: str, at: str, data: Mapping[str, Any]) -> str:
    return json.dumps({"type": event_type, "timestamp": at, "data": data}, ensure_ascii=False, separators=(",", ":"))
