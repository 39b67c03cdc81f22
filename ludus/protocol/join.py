"""Join without a gateway, as collectors that games dial themselves and the fake server read and refuse it."""

from collections.abc import Mapping
from typing import Final

import grpc
from google.protobuf.message import DecodeError

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.codec import PROTOCOL_VERSION
from ludus.protocol.contract import MAX_JOIN_BYTES, join_problem
from ludus.protocol.options import REASON_METADATA

_STATUSES: Final = {
    "run_not_found": grpc.StatusCode.NOT_FOUND,
    "unauthenticated": grpc.StatusCode.UNAUTHENTICATED,
    "protocol_version": grpc.StatusCode.FAILED_PRECONDITION,
    "run_ended": grpc.StatusCode.FAILED_PRECONDITION,
}


class JoinRefused(Exception):
    """A client may not join; the call ends with `status`, this sentence and `metadata`."""

    def __init__(self, reason: str, sentence: str, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.status = _STATUSES.get(reason, grpc.StatusCode.INVALID_ARGUMENT)
        self.metadata = ((REASON_METADATA, reason), *(metadata or {}).items())


def read_join(data: bytes) -> pb.JoinRequest:
    """Return a well-formed request of this version. Raises JoinRefused."""
    if len(data) > MAX_JOIN_BYTES:
        raise JoinRefused("bad_join", f"the JoinRequest has {len(data)} bytes, at most {MAX_JOIN_BYTES}")
    try:
        request = pb.JoinRequest.FromString(data)
    except DecodeError:
        raise JoinRefused("bad_join", f"{len(data)} bytes are no JoinRequest") from None
    if request.protocol_version != PROTOCOL_VERSION:
        spoken = f"protocol_version is {request.protocol_version}, this server speaks {PROTOCOL_VERSION}"
        raise JoinRefused("protocol_version", spoken)
    problem = join_problem(request)
    if problem is not None:
        raise JoinRefused("bad_join", " ".join(problem))
    return request
