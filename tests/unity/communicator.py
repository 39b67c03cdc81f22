"""The player's gRPC client: one call at a time, always made by the player, as C#'s RpcCommunicator makes them."""

import time
from collections.abc import Sequence
from typing import Literal

import grpc

from ludus.protocol import options
from ludus.protocol.mlagents import unity_pb2

Transcript = list[tuple[Literal["sent", "received"], unity_pb2.UnityMessageProto]]


class NobodyListens(Exception):
    """No connection within the patience of the player."""


class Communicator:
    """A channel to a trainer. Receives at most 4 MiB a message, gRPC's default, as Unity does."""

    def __init__(
        self,
        target: str,
        *,
        metadata: Sequence[tuple[str, str]] = (),
        own_connection: bool = True,
        proxy: bool = False,
        timeout: float = 600.0,
        record: bool = False,
    ) -> None:
        self.transcript: Transcript = []
        self.close_bytes = b""
        """The `ludus.v1.Close` that the last reply carried, if it did."""
        self._record = record
        self._metadata = tuple(metadata)
        self._timeout = timeout
        self._channel = grpc.insecure_channel(
            target,
            [
                ("grpc.use_local_subchannel_pool", int(own_connection)),
                ("grpc.enable_http_proxy", int(proxy)),
                ("grpc.max_send_message_length", -1),
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.max_reconnect_backoff_ms", 500),
            ],
        )
        self._call = self._channel.unary_unary(options.EXCHANGE, request_serializer=bytes, response_deserializer=bytes)

    def exchange(self, message: unity_pb2.UnityMessageProto) -> unity_pb2.UnityMessageProto:
        """Send one message and wait for the reply. Raises `grpc.RpcError`."""
        self._keep("sent", message)
        reply = unity_pb2.UnityMessageProto.FromString(self.exchange_bytes(message.SerializeToString()))
        self._keep("received", reply)
        return reply

    def introduce(self, message: unity_pb2.UnityMessageProto, patience: float) -> unity_pb2.UnityMessageProto:
        """Send the first message as soon as somebody listens. Raises `NobodyListens` after so many seconds."""
        deadline = time.monotonic() + patience
        while True:
            try:
                return self.exchange(message)
            except grpc.RpcError as error:
                if "failed to connect" not in str(error.details()):
                    raise
                if time.monotonic() > deadline:
                    raise NobodyListens from error
                self.transcript.clear()
                time.sleep(0.02)  # allow: sleep, because players dial again after a pause

    def exchange_bytes(self, data: bytes) -> bytes:
        """Send any bytes."""
        reply, call = self._call.with_call(data, metadata=self._metadata, timeout=self._timeout)
        for key, value in call.trailing_metadata() or ():
            if key == options.CLOSE_METADATA:
                assert isinstance(value, bytes)
                self.close_bytes = value
        return bytes(reply)

    def close(self) -> None:
        """Cut the connection; a call that waits for its reply fails."""
        self._channel.close()

    def _keep(self, direction: Literal["sent", "received"], message: unity_pb2.UnityMessageProto) -> None:
        if self._record:
            copy = unity_pb2.UnityMessageProto()
            copy.CopyFrom(message)
            self.transcript.append((direction, copy))
