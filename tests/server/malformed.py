"""Messages in the workers' queue that are no wake-ups: all that other programs, and people, could put there."""

import base64
import json
from functools import cache
from typing import Any


def _body(content: object) -> str:
    return base64.b64encode(json.dumps(content).encode()).decode()


def _message(**changes: Any) -> dict[str, Any]:
    """Return a proper message with changes; None takes a part away."""
    message = {
        "body": _body([[], {"run_id": "run_1"}, {}]),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"lang": "py", "task": "ludus.train", "id": "1", "root_id": "1"},
        "properties": {"body_encoding": "base64", "delivery_tag": "1", "delivery_info": {}},
    }
    return {name: value for name, value in (message | changes).items() if value is not None}


@cache
def malformed_messages() -> tuple[bytes, ...]:
    """Return them as they are in the queue."""
    headers = {"lang": "py", "task": "ludus.train", "id": "1"}
    contents: list[object] = [
        *([], {}, "text", 7, None, [{}], {"body": "x"}),
        *({"__type__": kind, "__value__": "x"} for kind in ("datetime", "decimal", "uuid", "bytes", "nothing")),
        *({"__type__": kind, "__value__": 7} for kind in ("datetime", "decimal", "uuid", "bytes")),
        *(
            _message(headers=wrong)
            for wrong in (None, [], "text", {}, {**headers, "task": 7}, {**headers, "task": [1]})
        ),
        *(_message(headers={**headers, "task": name}) for name in ("no.such.task", "celery.chord_unlock", "")),
        *(_message(body=wrong) for wrong in (None, "", "not base64!", 7, [], _body("text"), _body([]), _body({}))),
        *(_message(body=_body([[], given, {}])) for given in ({}, [], None, {"run_id": 7}, {"run_id": {"a": 1}})),
        _message(body=_body([[], {"run_id": ""}, {}])),
        _message(body=_body([[], {"run_id": "x" * 10_000_000}, {}])),
        _message(body=base64.b64encode(b"\x80\x04\x95").decode(), **{"content-type": "application/x-python-serialize"}),
    ]
    raw = [
        b"",
        b"not json",
        b"{",
        b"\xff\xfe\x00",
        b"NaN NaN",
        b"[" * 100_000,
        b"1" * 5_000,
        b'"' + b"x" * 20_000_000 + b'"',
    ]
    return (*raw, *(json.dumps(content).encode() for content in contents))
