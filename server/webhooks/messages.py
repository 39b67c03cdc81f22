"""Messages of webhooks as Standard Webhooks describes them (https://www.standardwebhooks.com).

The body has type, timestamp and data. A message carries `webhook-id`, `webhook-timestamp` (whole seconds since
1970-01-01 UTC, of the attempt) and `webhook-signature`: for each valid secret `v1,` and the base64 of HMAC-SHA256 over
`id.timestamp.body`, separated by spaces.
"""

import base64
import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from standardwebhooks import Webhook

from server.kit.db.texts import JsonObject

LARGEST_BYTES: Final = 64 << 10
"""An event whose `data` makes the message larger than this is sent without it."""
TEST_TYPE: Final = "webhook_test"
PREFIX: Final = "whsec_"
"""Of secrets in their text form."""
SECRET_BYTES: Final = 32
"""The standard asks for 24 to 64."""


def event_message(run: Mapping[str, object], event: JsonObject) -> str:
    """Return the message for an event of a run; `event` has the fields of `ludus.schemas.Event`, `at` in seconds."""
    timestamp = rfc3339(event["at"])
    event = {**event, "at": timestamp}
    text = _message(event["type"], timestamp, {"run": run, "event": event})
    if len(text.encode()) <= LARGEST_BYTES:
        return text
    return _message(event["type"], timestamp, {"run": run, "event": {**event, "data": {"left_out": "too large"}}})


def test_message(webhook_id: str, at: float) -> str:
    """Return the message of a test call."""
    data = {"webhook_id": webhook_id, "message": "Ludus can reach this receiver."}
    return _message(TEST_TYPE, rfc3339(at), data)


def rfc3339(seconds: float) -> str:
    """Render seconds since 1970-01-01 UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _message(event_type: str, at: str, data: Mapping[str, object]) -> str:
    return json.dumps({"type": event_type, "timestamp": at, "data": data}, ensure_ascii=False, separators=(",", ":"))


def new_secret() -> str:
    """Return a new secret in its text form."""
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()


def signed_headers(keys: Sequence[str], message_id: str, timestamp: int, body: bytes) -> Mapping[str, str]:
    """Return the headers that identify and sign a message, signed with each of the secrets."""
    at, text = datetime.fromtimestamp(timestamp, UTC), body.decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(Webhook(key).sign(message_id, at, text) for key in keys),
    }
