"""Malformed calls are refused with a code and a sentence: by one function, whichever server reads them."""

from typing import Any

import grpc
import pytest

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.contract import CallRefused, read_join, read_report
from ludus.protocol.options import REASON_METADATA, STATE_METADATA

RUN: dict[str, Any] = {"run": "catch", "session_id": "sim-0"}


@pytest.mark.parametrize(
    ("fields", "code", "sentence"),
    [
        ({"run": ""}, "bad_join", "run is missing"),
        ({"run": "x" * 201}, "bad_join", "run must be printable"),
        ({"session_id": ""}, "bad_join", "session_id must have 1 to 64"),
        ({"session_id": "a/b"}, "bad_join", "session_id must have 1 to 64"),
        ({"session_id": "a" * 65}, "bad_join", "session_id must have 1 to 64"),
        ({"label": "x" * 201}, "bad_join", "label must be printable"),
        ({"label": "two\nlines"}, "bad_join", "label must be printable"),
        ({"client": "x" * 101}, "bad_join", "client must be printable"),
        ({"label": "x" * 5000}, "bad_join", "the JoinRequest has .* bytes, at most 4096"),
        ({"max_wait_seconds": -1.0}, "bad_join", "max_wait_seconds must be from 0"),
        ({"protocol_version": 0}, "protocol_version", "protocol_version is 0, this server speaks 1"),
        ({"protocol_version": 2}, "protocol_version", "protocol_version is 2, this server speaks 1"),
    ],
)
def test_a_malformed_join_is_refused(fields: dict[str, Any], code: str, sentence: str) -> None:
    request = pb.JoinRequest(**{**RUN, "protocol_version": 1, **fields})

    with pytest.raises(CallRefused, match=sentence) as refused:
        read_join(request.SerializeToString())

    assert refused.value.code == code


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"run": ""}, "run is missing"),
        ({"session_id": "a b"}, "session_id must have 1 to 64"),
        ({"code": "Never Dialled"}, "code must have 1 to 64"),
        ({"sentence": ""}, "sentence must have 1 to 4000"),
        ({"sentence": "x" * 4001}, "sentence must have 1 to 4000"),
        ({"sentence": "x" * 9000}, "the ReportRequest has .* bytes, at most 8192"),
    ],
)
def test_a_malformed_report_is_refused(fields: dict[str, str], sentence: str) -> None:
    request = pb.ReportRequest(**{**RUN, "code": "crashed", "sentence": "it crashed", **fields})

    with pytest.raises(CallRefused, match=sentence) as refused:
        read_report(request.SerializeToString())

    assert refused.value.code == "bad_join"


def test_garbage_is_refused() -> None:
    with pytest.raises(CallRefused, match="3 bytes are no JoinRequest"):
        read_join(b"\xff\xff\xff")


def test_a_refusal_brings_its_status_and_metadata() -> None:
    refused = CallRefused("run_ended", "the run has ended", "SUCCEEDED")

    assert refused.status is grpc.StatusCode.FAILED_PRECONDITION
    assert refused.metadata == ((REASON_METADATA, "run_ended"), (STATE_METADATA, "SUCCEEDED"))
