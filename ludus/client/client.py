"""The client: a connection to one server, and its resources."""

import os
from types import TracebackType
from typing import Final, Self

import httpx2

from ludus.client.aliases import Aliases
from ludus.client.checkpoints import Checkpoints, UploadedCheckpoints
from ludus.client.configs import Configs
from ludus.client.demonstrations import Demonstrations
from ludus.client.environment_parameters import EnvironmentParameters
from ludus.client.errors import Busy, ServerUnreachable
from ludus.client.events import Events
from ludus.client.ladders import Ladders
from ludus.client.logs import Logs
from ludus.client.metrics import Metrics
from ludus.client.presets import Presets
from ludus.client.queue import Queues
from ludus.client.runs import Runs
from ludus.client.simulators import Simulators
from ludus.client.tokens import AuditLog, Tokens
from ludus.client.transport import Transport, header_value, public_authorities
from ludus.client.webhooks import Webhooks
from ludus.client.workers import Workers
from ludus.protocol.credentials import CLIENT_TOKEN, credential
from ludus.protocol.proxies import proxy_of, without_password
from ludus.protocol.tls import ClientTls

DEFAULT_SERVER: Final = "http://127.0.0.1:8080"
PROJECT_HEADER: Final = "Ludus-Project"
_USE_PROXY: Final = "name another in https_proxy and http_proxy, or the server's host in no_proxy"
_USE_ADDRESS: Final = "write it as https://ludus.example.org or http://127.0.0.1:8080 into --server or LUDUS_SERVER"


class Client:
    """Connection to one server. Thread-safe; close it, or use it as a context manager."""

    def __init__(
        self,
        server: str | None = None,
        token: str | None = None,
        *,
        project: str | None = None,
        tls: ClientTls | None = None,
        timeout: float = 30.0,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        """Connect to `server` (default: `LUDUS_SERVER`, else port 8080 of this machine) with `token` (`LUDUS_TOKEN`).

        `project` (`LUDUS_PROJECT`) is the one to act in, where the token is bound to none; `*` reads all of them. `tls`
        (`LUDUS_CA_FILE`, `LUDUS_CLIENT_CERTIFICATE`, `LUDUS_CLIENT_KEY`) has the files for an https server of one's own
        authority. `timeout` is in seconds, per network operation. `transport` replaces the network.

        Raises ServerUnreachable for an address that is no URL, and for files of TLS that cannot be used, and
        NotSendable for a token or a project that no header can carry.
        """
        self.server = (server or os.environ.get("LUDUS_SERVER") or DEFAULT_SERVER).rstrip("/")
        if not self.server.lower().startswith(("http://", "https://")):
            # httpx2 would refuse each request, and calls that retry would repeat them for a minute.
            raise ServerUnreachable(self.server, "the address has no http:// or https://", _USE_ADDRESS)
        shown = credential(token or None, (CLIENT_TOKEN,))
        headers = {"User-Agent": "ludus"}
        if shown:
            headers["Authorization"] = "Bearer " + header_value(f"the token {shown.origin}", shown.token)
        if project := project or os.environ.get("LUDUS_PROJECT"):
            headers[PROJECT_HEADER] = header_value("the project", project)
        try:
            trusted = (tls or ClientTls.from_environment()).context() or public_authorities()
        except ValueError as error:
            raise ServerUnreachable(self.server, "TLS cannot be spoken", str(error)) from error
        try:
            httpx2.URL(self.server)
            proxy = proxy_of(self.server)
        except (httpx2.InvalidURL, ValueError) as error:
            raise ServerUnreachable(self.server, f"not a URL: {error}") from error
        try:
            http = httpx2.Client(
                base_url=self.server,
                headers=headers,
                timeout=timeout,
                transport=transport,
                verify=trusted,
                proxy=proxy,
                trust_env=False,
            )
        except (ImportError, ValueError) as error:
            raise ServerUnreachable(
                self.server, f"the proxy {without_password(proxy or '')} cannot be used: {error}", _USE_PROXY
            ) from error
        self._transport = Transport(self.server, http, shown, proxy)
        self.aliases = Aliases(self._transport)
        self.audit = AuditLog(self._transport)
        self.checkpoints = Checkpoints(self._transport)
        self.configs = Configs(self._transport)
        self.demonstrations = Demonstrations(self._transport)
        self.environment_parameters = EnvironmentParameters(self._transport)
        self.events = Events(self._transport)
        self.ladders = Ladders(self._transport)
        self.logs = Logs(self._transport)
        self.metrics = Metrics(self._transport)
        self.presets = Presets(self._transport)
        self.runs = Runs(self._transport)
        self.simulators = Simulators(self._transport)
        self.tokens = Tokens(self._transport)
        self.uploaded_checkpoints = UploadedCheckpoints(self._transport)
        self.webhooks = Webhooks(self._transport)
        self.queue = Queues(self._transport)
        self.workers = Workers(self._transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()

    @property
    def gateway(self) -> str:
        """`host:port` where simulators join: `LUDUS_SIMULATOR_SERVER`, else the server's host, port 7070."""
        return self._transport.gateway

    def version(self) -> str:
        """Return the server's version."""
        return str(self._transport.document("/version").get("version", "unknown"))

    def ready(self) -> bool:
        """Return whether the server is ready to take runs. Raises ServerUnreachable if it does not answer."""
        try:
            self._transport.document("/readyz")
        except Busy:
            return False
        return True
