"""Runs the HTTP API in this process: uvicorn around the application."""

import gc
import socket
import ssl

import uvicorn

from server.app.app import create_app
from server.app.header_timeout import with_header_timeout
from server.app.services import Services
from server.kit.listening import LOOPBACK, ApiSettings
from server.kit.ports import CannotStart, listen
from server.kit.settings import Settings

STOP_SECONDS = 5
"""Time that a stopping API gives its requests."""
UNSENT_SECONDS = 30
"""A connection whose peer takes nothing of what was sent to it for so long is cut by the kernel."""


class Exposed(CannotStart):
    """The API would listen beyond this machine without a token."""

    exit_code = 2

    def __init__(self, settings: ApiSettings) -> None:
        super().__init__(
            f"The API would listen on {settings.host} without a token: set LUDUS_API__TOKEN, "
            "or LUDUS_API__REQUIRE_TOKEN=true and make one with `ludus admin create-token`, "
            "or listen on 127.0.0.1 (LUDUS_API__HOST)."
        )


class ApiServer(uvicorn.Server):
    """A server that ends event streams and long polls before it stops: they would never end by themselves."""

    def __init__(self, config: uvicorn.Config, services: Services) -> None:
        super().__init__(config)
        self._services = services

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop gracefully."""
        self._services.streams.close()
        await super().shutdown(sockets)


def uvicorn_config(settings: Settings, services: Services) -> uvicorn.Config:
    """Return how the application is served: with a header time-out, and over TLS where the settings have files."""
    tls = settings.api.tls
    return uvicorn.Config(
        create_app(settings, services),
        http=with_header_timeout(settings.api.head_seconds),
        ws="none",
        log_config=None,
        access_log=False,
        proxy_headers=bool(settings.api.proxies),
        forwarded_allow_ips=settings.api.proxies,  # else uvicorn believes every process of this machine
        timeout_graceful_shutdown=STOP_SECONDS,
        ssl_certfile=None if tls is None else tls.certificate,
        ssl_keyfile=None if tls is None else tls.key,
        ssl_ca_certs=None if tls is None or tls.client_ca is None else str(tls.client_ca),
        ssl_cert_reqs=ssl.CERT_NONE if tls is None or tls.client_ca is None else ssl.CERT_REQUIRED,
    )


def serve_api(settings: Settings, descriptor: int | None = None) -> None:
    """Serve until SIGTERM or SIGINT, on the open socket `descriptor` if given, else on the settings' port.

    Raises CannotStart.
    """
    if not settings.api.demands_token and settings.api.host not in LOOPBACK:
        raise Exposed(settings.api)
    listening = listen(settings.api.host, settings.api.port) if descriptor is None else socket.socket(fileno=descriptor)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNSENT_SECONDS * 1000)
    services = Services.build(settings)
    config = uvicorn_config(settings, services)
    # Objects of the imports live as long as the process: a full collection of them costs 50 to 100 ms each time.
    gc.collect()
    gc.freeze()
    with listening:
        ApiServer(config, services).run(sockets=[listening])
