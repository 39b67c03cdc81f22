"""Signatures of messages, as Standard Webhooks describes them (https://www.standardwebhooks.com).

A message carries `webhook-id`, `webhook-timestamp` (whole seconds since 1970-01-01 UTC, of the attempt) and
`webhook-signature`: for each valid secret `v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`, separated by
spaces.
"""

import base64
import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from standardwebhooks import Webhook

PREFIX = "whsec_"
SECRET_BYTES = 32
"""The standard asks for 24 to 64."""


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
