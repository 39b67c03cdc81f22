"""Joining at a collector itself, for a trainer that runs alone: no gateway, no tickets.

The answer is a relay to the same address, so that a client needs to know nothing about this way of running.
"""

import grpc
import grpc.aio

from ludus.protocol import simulation_pb2 as pb

METHOD = "/ludus.v1.SimulationService/Join"
PROTOCOL_VERSION = 1


class DirectJoinHandler(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Assigns every simulator to the only run, whatever name it asked for."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._handler = grpc.unary_unary_rpc_method_handler(
            self._join,
            request_deserializer=pb.JoinRequest.FromString,
            response_serializer=pb.JoinResponse.SerializeToString,
        )

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[pb.JoinRequest, pb.JoinResponse] | None":
        """Return the handler of Join."""
        return self._handler if handler_call_details.method == METHOD else None

    async def _join(
        self, request: pb.JoinRequest, context: "grpc.aio.ServicerContext[pb.JoinRequest, pb.JoinResponse]"
    ) -> pb.JoinResponse:
        if request.protocol_version != PROTOCOL_VERSION:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"This trainer speaks version {PROTOCOL_VERSION} of the protocol, not {request.protocol_version}.",
            )
        return pb.JoinResponse(assignment=pb.Assignment(relay=True, run_id=self._run_id))
