"""Signatures against the standard's own library."""

import base64
from datetime import UTC, datetime

import pytest
from standardwebhooks import Webhook

from server.webhooks.messages import PREFIX, new_secret, signed_headers


def test_the_standards_example_has_the_signature_that_it_names() -> None:
    # https://github.com/standard-webhooks/standard-webhooks: the example of the specification
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'

    headers = signed_headers([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)

    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_standards_library_verifies_every_message() -> None:
    secret, body = new_secret(), '{"type":"run_created","data":"größer"}'.encode()
    at = int(datetime.now(UTC).timestamp())

    headers = signed_headers([secret], "msg_1", at, body)

    assert Webhook(secret).verify(body, dict(headers)) == {"type": "run_created", "data": "größer"}
    with pytest.raises(Exception, match="No matching signature"):
        Webhook(secret).verify(body + b" ", dict(headers))
    with pytest.raises(Exception, match="No matching signature"):
        Webhook(new_secret()).verify(body, dict(headers))


def test_during_a_rotation_either_secret_verifies() -> None:
    new, old, body = new_secret(), new_secret(), b"{}"
    at = int(datetime.now(UTC).timestamp())

    headers = dict(signed_headers([new, old], "msg_1", at, body))

    assert Webhook(new).verify(body, headers) == Webhook(old).verify(body, headers) == {}


def test_secrets_have_the_standards_form_and_differ() -> None:
    secrets = {new_secret() for _ in range(20)}

    assert len(secrets) == 20
    assert all(24 <= len(base64.b64decode(each.removeprefix(PREFIX), validate=True)) <= 64 for each in secrets)
