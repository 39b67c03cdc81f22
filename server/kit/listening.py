"""Settings of the parts of the server that listen (HTTP API, gateway, metrics), and of its traces."""

import re
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from ludus.protocol.tls import TlsFiles, check_certificates
from ludus.validation import Form

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
"""Names of this machine for itself."""
Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0)]
ORIGIN: Final = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/?#@\s]+")
"""Of a page, as browsers write it (RFC 6454)."""


class Group(BaseModel):
    """Parent of the groups of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Listening(Group):
    """Parent of the groups of those who listen: with or without TLS, and who is let in without a token."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    token: SecretStr | None = None
    require_token: bool = False
    """Demand a token also on loopback. This allows other addresses without a configured token, because tokens of `ludus
    token create` exist.
    """
    tls_certificate: Path | None = None
    """PEM file of the certificate, with its chain. With `tls_key` it turns TLS on."""
    tls_key: Path | None = None
    """PEM file of the certificate's private key."""
    tls_client_ca: Path | None = None
    """PEM file of the authority that signs clients' certificates. If set, clients without a certificate are refused
    (mTLS).
    """

    @property
    def demands_token(self) -> bool:
        """Whether every client needs a token."""
        return self.require_token or self.token is not None

    @property
    def tls(self) -> TlsFiles | None:
        """The files of TLS, None where it is not spoken."""
        if self.tls_certificate is None or self.tls_key is None:
            return None
        return TlsFiles(self.tls_certificate, self.tls_key, self.tls_client_ca)

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("TLS needs both, tls_certificate and tls_key; set the other one, too")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError(
                "tls_client_ca needs tls_certificate and tls_key: without TLS clients present no certificate"
            )
        if self.tls is not None:
            self.tls.check()
        return self


class ApiSettings(Listening):
    """The HTTP API."""

    port: Port = 8080
    """Port to listen on; 0 lets the system choose."""
    token: SecretStr | None = None
    """Bearer token that may do everything in all projects. Without one, and without `require_token`, the API listens on
    loopback only and demands no token.
    """
    requests_per_minute: int = Field(default=6000, ge=0)
    """Requests of one token, or of one address, in a minute; 0: no limit."""
    failures_per_minute: int = Field(default=20, ge=0)
    """Failed authentications of one address in a minute, after which further ones get 429; 0: no limit."""
    head_seconds: Seconds = 20
    """How long a request line and its headers may take; then the connection is closed."""
    body_seconds: Seconds = 30
    """How long a body may take, and as long again for each MiB of it."""
    proxies: str = ""
    """Addresses or networks of reverse proxies, separated by commas, whose `X-Forwarded-For` is accepted: limits and
    audit log then use the address in it. For browsers also `X-Forwarded-Proto` and `X-Forwarded-Host`. Default: none.
    """

    prefix: Annotated[str, Form("a path as /tools/ludus, without a slash at its end", r"^(/[A-Za-z0-9._~-]+)*$")] = ""
    """Path below which a reverse proxy serves the API and the pages, as in `/tools/ludus`. Needed if the proxy does not
    take it away from the paths that it passes on.
    """

    @field_validator("proxies")
    @classmethod
    def _are_networks(cls, value: str) -> str:
        for entry in filter(None, map(str.strip, value.split(","))):
            try:
                ip_network(entry)
            except ValueError as error:
                raise ValueError(f"{error}; name addresses or networks, as in 10.0.0.7,192.168.0.0/16") from None
        return value


class GatewaySettings(Listening):
    """The gRPC front door of simulators."""

    port: Port = 7070
    """Port to listen on; 0 lets the system choose."""
    websocket_port: Port | Literal["off"] = "off"
    """Port for simulators that have no HTTP/2, browsers above all; 0 lets the system choose. Where a worker has this
    setting, its collectors take WebSockets, too. Without it, `ludus up` takes `port` + 1, or a free port.
    """
    websocket_origins: str = ""
    """Origins of pages that may connect by WebSockets, separated by commas: `https://game.example`. `*`: pages of
    everybody; `null`: files. Pages that this machine serves (`http://localhost:...`) always may, and so may programs
    that are no browser.
    """
    advertise: str | None = None
    """`host:port` of the gateway for simulators outside, if it differs."""
    token: SecretStr | None = None
    """Bearer token with which simulators may play in any run. Without one, and without `require_token`, the gateway
    listens on loopback only and demands no token.
    """
    tls_ca: Path | None = None
    """PEM file of the authority that signs collectors' certificates, for relayed simulators. Default: the authorities
    that the system trusts. Collectors serve the TLS of this group.
    """
    tls_name: str | None = None
    """Name that collectors' certificates are for, where it is not their address: pods of workers have addresses that no
    certificate can hold. Simulators that do not reach a collector by its address, or not its certificate, are relayed.
    """
    ticket_key: SecretStr | None = None
    """Secret, at least 32 bytes, with which gateways sign tickets and collectors verify them; the same for all of them.
    Without it collectors accept connections without tickets and listen on loopback only.
    """
    ticket_seconds: int = Field(default=120, ge=1)
    """How long a ticket opens a session."""
    hold_seconds: Seconds = 30
    """How long a simulator's question is held while its run is not ready, at most, before it has to ask again. Shorter
    than the time-out of any proxy in between.
    """
    held_joins: int = Field(default=20_000, ge=0)
    """How many such questions one gateway holds at once, at most. Beyond that a simulator is told at once to ask again
    after half to all of `hold_seconds`.
    """

    @field_validator("websocket_origins")
    @classmethod
    def _are_origins(cls, value: str) -> str:
        for origin in filter(None, map(str.strip, value.split(","))):
            if not ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin} is no origin; write https://game.example, without a path, or *, or null")
        return value

    @property
    def origins(self) -> tuple[str, ...]:
        """The origins of `websocket_origins`."""
        return tuple(filter(None, map(str.strip, self.websocket_origins.split(","))))

    @model_validator(mode="after")
    def _tls_of_collectors_is_of_use(self) -> Self:
        for name in ("tls_ca", "tls_name"):
            if getattr(self, name) is not None and self.tls is None:
                raise ValueError(
                    f"{name} needs tls_certificate and tls_key: collectors speak TLS where the gateway does"
                )
        if self.tls_ca is not None:
            check_certificates(self.tls_ca)
        return self


class TelemetrySettings(Group):
    """Operational metrics for Prometheus of the roles without an HTTP API (the api has `/metrics` on its own port), and
    traces for OpenTelemetry.
    """

    host: str = "127.0.0.1"
    """Address to listen on. No token is needed: keep it in a private network."""
    gateway_port: Port = 0
    """Port of a gateway's metrics; 0: none are served."""
    controller_port: Port = 0
    """Port of a controller's metrics; 0: none are served."""
    worker_port: Port = 0
    """Port of a worker host's metrics; 0: none are served."""
    otlp_endpoint: Annotated[
        str, Form("an address as http://collector:4318, without query", r"^(https?://[^/?#\s]+[^?#\s]*)?$")
    ] = ""
    """Address of an OpenTelemetry collector that takes OTLP over HTTP: `http://collector:4318`; traces go to
    `/v1/traces` below it. Empty: no traces. Headers, certificates and compression are set by OpenTelemetry's own
    variables (`OTEL_EXPORTER_OTLP_HEADERS`, ...), the address is not.
    """
    traced_share: float = Field(default=1.0, ge=0, le=1)
    """Share of the runs, and of the slow requests, that are traced. The same for all roles."""
    slow_request_seconds: Seconds = 0.5
    """A request to the api that is not answered in this time gets a span."""
