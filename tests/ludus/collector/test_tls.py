"""Collectors over TLS and mTLS: simulators whose transport is not trusted never get as far as a session."""

import grpc
import pytest

from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.specs import spec_to_message
from tests.ludus.collector.stack import METHOD, SPEC, Simulator, learner
from tests.ludus.protocol.test_tls import CERTIFICATE, MUTUAL, OTHER, PRIVATE, SERVED

AUTHORITY = CERTIFICATE.read_bytes()


def greeted(address: str, credentials: grpc.ChannelCredentials) -> pb.ConnectResponse:
    hello = pb.Hello(protocol_version=1, session_id="over-tls", client="tests/1", behaviors=[spec_to_message(SPEC)])
    with grpc.secure_channel(address.replace("127.0.0.1", "localhost"), credentials) as channel:
        messages = iter([pb.ConnectRequest(hello=hello).SerializeToString()])
        return pb.ConnectResponse.FromString(next(channel.stream_stream(METHOD)(messages, timeout=10)))


@pytest.mark.parametrize("mutual", [False, True])
def test_a_collector_shows_its_certificate_and_wants_one_where_it_is_told_to(mutual: bool) -> None:
    files = {name: str(file) for name, file in (MUTUAL if mutual else SERVED).items()}
    with learner(**files) as trainer:
        address = trainer.endpoints[0].address

        known = grpc.ssl_channel_credentials(AUTHORITY, PRIVATE.read_bytes(), AUTHORITY)
        assert greeted(address, known).WhichOneof("message") == "welcome"
        with pytest.raises(grpc.RpcError):
            greeted(address, grpc.ssl_channel_credentials(OTHER.read_bytes()))
        if mutual:
            with pytest.raises(grpc.RpcError):
                greeted(address, grpc.ssl_channel_credentials(AUTHORITY))
        plain = Simulator(address)
        with pytest.raises(grpc.RpcError):
            plain.hello(SPEC)
