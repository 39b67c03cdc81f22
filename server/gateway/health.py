"""The standard health service, `grpc.health.v1.Health`, for load balancers and orchestrators.

Its two messages have one field each, so they are written out here instead of bringing in another package.
"""

import asyncio
from typing import Any, Final

import grpc
import grpc.aio

SERVING: Final = b"\x08\x01"
"""HealthCheckResponse{status: SERVING}."""
NOT_SERVING: Final = b"\x08\x02"
SERVICE_UNKNOWN: Final = b"\x08\x03"


class Health:
    """Answers for the whole server ("") and for one service."""

    def __init__(self, service: str) -> None:
        name = service.encode()
        self._known = {b"", b"\x0a\x00", b"\x0a" + bytes([len(name)]) + name}
        """Encoded HealthCheckRequests that name us: field 1, a string."""
        self._stopping = asyncio.Event()

    def handler(self) -> Any:
        """Return the handler of Check and Watch."""
        methods: Any = {
            "Check": grpc.unary_unary_rpc_method_handler(self._check),
            "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
        }
        return grpc.method_handlers_generic_handler("grpc.health.v1.Health", methods)

    def stop(self) -> None:
        """Answer NOT_SERVING from now on."""
        self._stopping.set()

    async def _check(self, request: bytes, context: Any) -> bytes:
        if request not in self._known:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service is served here")
        return NOT_SERVING if self._stopping.is_set() else SERVING

    async def _watch(self, request: bytes, context: Any) -> None:
        if request not in self._known:
            await context.write(SERVICE_UNKNOWN)
        elif not self._stopping.is_set():
            await context.write(SERVING)
        await self._stopping.wait()
        if request in self._known:
            await context.write(NOT_SERVING)
