"""Settings of the servers: what operators decide, read from the environment (`LUDUS_...`, groups joined by `__`).

    LUDUS_HOME=/var/lib/ludus  LUDUS_DATABASE__URL=postgresql+psycopg://...  LUDUS_WORKER__SLOTS=2

Only the `main`s construct `Settings()`; everything else is handed the part that it needs. Without any variable the
embedded stack results: SQLite, Celery's file transport and a folder of artifacts, all inside `home`.
What users decide about a training run is not here but in `server.training.config`.
"""

import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from server.tls import TlsFiles

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0)]


class Group(BaseModel):
    """Parent of the groups of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DatabaseSettings(Group):
    """The system of record."""

    url: SecretStr = Field(
        default=SecretStr(""),
        description="SQLAlchemy address: `sqlite:///file` or `postgresql+psycopg://user:password@host/name`. "
        "Default: `ludus.db` in `home`.",
    )
    synchronous: Literal["FULL", "NORMAL"] = Field(
        default="FULL",
        description="SQLite only. FULL syncs each commit to disk: what is acknowledged survives a power failure. "
        "With NORMAL it survives the death of any process, but the last commits can be lost with the machine.",
    )
    busy_seconds: Seconds = Field(
        default=15,
        description="How long a writer waits for another one (SQLite's busy time-out, PostgreSQL's lock_timeout).",
    )
    statement_seconds: Seconds = Field(default=30, description="PostgreSQL's statement_timeout.")
    pool_size: int = Field(
        default=48, ge=1, description="Connections that one process keeps at most, for reading and for writing."
    )


class QueueSettings(Group):
    """The doorbell: Celery. It carries run ids and no state."""

    broker_url: SecretStr = Field(
        default=SecretStr(""),
        description="`redis://host:6379/0` (a database of its own), or empty for the file transport in `folder`.",
    )
    folder: Path = Field(
        default=Path(), description="Folder of the file transport, on a local disk. Default: `queue` in `home`."
    )
    polling_seconds: Seconds = Field(default=0.05, description="How often an idle worker looks into the folder.")


class StorageSettings(Group):
    """Artifacts: checkpoints, models, logs, demonstrations."""

    root: Path = Field(default=Path(), description="Folder of the artifact store. Default: `artifacts` in `home`.")
    demonstration_bytes: int = Field(
        default=256 << 20, ge=1, description="Largest file of a demonstration that can be uploaded."
    )
    demonstration_decoded_bytes: int = Field(
        default=1 << 30,
        ge=1,
        description="Most memory that one demonstration, or those to be merged, may take: files are compressed.",
    )
    checkpoint_bytes: int = Field(
        default=1 << 30, ge=1, description="Largest file of another program's checkpoint that can be uploaded."
    )


class Listening(Group):
    """Parent of the groups of those who listen: with or without TLS, and who is let in without a token."""

    require_token: bool = Field(
        default=False,
        description="Demand a token also on loopback, and so allow other addresses without a configured token: those "
        "of `ludus token create` are enough.",
    )
    tls_certificate: Path | None = Field(
        default=None, description="PEM file of the certificate, with its chain. Given, with `tls_key`: TLS is spoken."
    )
    tls_key: Path | None = Field(default=None, description="PEM file of the certificate's private key.")
    tls_client_ca: Path | None = Field(
        default=None,
        description="PEM file of the authority that clients' certificates are signed by. Given: who has none is not "
        "let in (mTLS).",
    )

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
            raise ValueError("tls_client_ca needs tls_certificate and tls_key: without TLS nobody shows a certificate")
        for file in (self.tls_certificate, self.tls_key, self.tls_client_ca):
            if file is not None and not os.access(file, os.R_OK):
                raise ValueError(f"{file} cannot be read; name a PEM file that this process may read")
        return self


class ApiSettings(Listening):
    """The HTTP API."""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: Port = Field(default=8080, description="Port to listen on; 0 lets the system choose.")
    token: SecretStr | None = Field(
        default=None,
        description="Bearer token that may do everything in all projects. Without one, and without `require_token`, "
        "the API listens on loopback only and demands no token.",
    )
    requests_per_minute: int = Field(
        default=6000, ge=0, description="Requests of one token, or of one address, in a minute; 0: no limit."
    )
    failures_per_minute: int = Field(
        default=20,
        ge=0,
        description="Failed authentications of one address in a minute, after which it is not heard; 0: no limit.",
    )
    head_seconds: Seconds = Field(
        default=20, description="How long a request line and its headers may take; then the connection is closed."
    )
    body_seconds: Seconds = Field(
        default=30, description="How long a body may take, and as long again for each MiB of it."
    )

    @property
    def demands_token(self) -> bool:
        """Whether nobody is let in without a token."""
        return self.require_token or self.token is not None


class GatewaySettings(Listening):
    """The gRPC front door of simulators."""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: Port = Field(default=7070, description="Port to listen on; 0 lets the system choose.")
    advertise: str | None = Field(
        default=None, description="`host:port` under which simulators reach the gateway from outside, where it differs."
    )
    token: SecretStr | None = Field(
        default=None,
        description="Bearer token with which simulators may play in any run. Without one, and without `require_token`, "
        "the gateway listens on loopback only and demands no token.",
    )
    tls_ca: Path | None = Field(
        default=None,
        description="PEM file of the authority that collectors' certificates are signed by, for relayed simulators; "
        "default: those that the system trusts. Collectors serve the TLS of this group.",
    )
    ticket_key: SecretStr | None = Field(
        default=None,
        description="Secret, at least 32 bytes, with which gateways sign tickets and collectors verify them; the same "
        "for all of them. Without one collectors take no tickets and listen on loopback only.",
    )
    ticket_seconds: int = Field(default=120, ge=1, description="How long a ticket opens a session.")

    @property
    def demands_token(self) -> bool:
        """Whether nobody is let in without a token."""
        return self.require_token or self.token is not None


class WorkerSettings(Group):
    """A worker host: the supervisors and trainers on it."""

    slots: int = Field(
        default=1, ge=1, description="Runs that this host trains at once: one per GPU, or one for the CPU."
    )
    collectors: int = Field(default=1, ge=1, description="Collector processes of each attempt.")
    advertise_host: str = Field(default="127.0.0.1", description="Name under which simulators reach this host.")
    bind_host: str = Field(default="127.0.0.1", description="Address that collectors listen on.")
    port_range: tuple[Port, Port] | None = Field(
        default=None,
        description="First and last port for collectors, as JSON: `[41000, 41100]`. Default: any free port.",
    )
    lease_seconds: Seconds = Field(
        default=10, description="A run whose supervisor is silent for this long goes to another worker."
    )
    heartbeat_seconds: Seconds = Field(
        default=2, description="How often a supervisor renews its lease; at most a third of it."
    )
    stop_seconds: Seconds = Field(
        default=60, description="How long a trainer may take for its final checkpoint before it is killed."
    )
    scratch: Path = Field(default=Path(), description="Folder for files in the making. Default: `scratch` in `home`.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.heartbeat_seconds * 3 > self.lease_seconds:
            raise ValueError(
                f"heartbeat_seconds ({self.heartbeat_seconds:g}) must be at most a third of lease_seconds "
                f"({self.lease_seconds:g}), or one lost beat loses the run; raise lease_seconds"
            )
        if self.port_range is not None and self.port_range[0] > self.port_range[1]:
            raise ValueError(f"port_range {list(self.port_range)} is empty; write [first, last]")
        return self


class StewardSettings(Group):
    """The caretaker of the database: reaper, reconciler, retention."""

    interval_seconds: Seconds = Field(default=1, description="Pause between two rounds.")
    ring_seconds: Seconds = Field(
        default=4, le=5, description="A run that has waited this long for a worker is announced to them again."
    )
    restart_budget: int = Field(
        default=3,
        ge=0,
        description="Restarts of a run without a new checkpoint in between, before it counts as FAILED.",
    )
    idempotency_seconds: Seconds = Field(
        default=86400, description="How long the answer to an idempotent request is kept."
    )
    audit_days: float = Field(default=90, gt=0, description="How long entries of the audit log are kept.")
    worker_seconds: Seconds = Field(
        default=86400, description="How long a worker that fell silent or stopped stays in the list."
    )


class LogSettings(Group):
    """What the processes write to standard error."""

    format: Literal["json", "console"] = Field(
        default="json", description="One JSON object per line, or lines for people."
    )
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least level that is written."
    )


class Settings(BaseSettings):
    """All settings of a server process."""

    model_config = SettingsConfigDict(
        env_prefix="LUDUS_",
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        validate_default=False,
        nested_model_default_partial_update=False,
    )

    home: Path = Field(default=Path(".ludus"), description="Folder of everything that the embedded stack keeps.")
    database: DatabaseSettings = DatabaseSettings()
    queue: QueueSettings = QueueSettings()
    storage: StorageSettings = StorageSettings()
    api: ApiSettings = ApiSettings()
    gateway: GatewaySettings = GatewaySettings()
    worker: WorkerSettings = WorkerSettings()
    steward: StewardSettings = StewardSettings()
    log: LogSettings = LogSettings()

    @model_validator(mode="before")
    @classmethod
    def _names_a_group(cls, data: Any) -> Any:
        """Refuse a variable like `LUDUS_WORKR__SLOTS`: nobody would read it, and its author would never know."""
        for variable in os.environ:
            group, nested, _ = variable.removeprefix("LUDUS_").lower().partition("__")
            if variable.startswith("LUDUS_") and nested and group not in cls.model_fields:
                near = get_close_matches(group, cls.model_fields, 1)
                meant = f"; did you mean LUDUS_{near[0].upper()}__...?" if near else ""
                raise ValueError(f"{variable} belongs to no group of settings{meant}")
        return data

    @model_validator(mode="before")
    @classmethod
    def _inside_home(cls, data: Any) -> Any:
        """Fill in the embedded defaults, which depend on `home`."""
        if not isinstance(data, Mapping):
            return data
        home = Path(data.get("home") or ".ludus").expanduser().absolute()
        filled: dict[str, Any] = {**data, "home": home}
        for group, field, default in (
            ("database", "url", f"sqlite:///{home / 'ludus.db'}"),
            ("queue", "folder", home / "queue"),
            ("storage", "root", home / "artifacts"),
            ("worker", "scratch", home / "scratch"),
        ):
            given = filled.get(group, {})
            if isinstance(given, BaseModel):
                given = given.model_dump(exclude_unset=True)
            if isinstance(given, Mapping):
                filled[group] = {**given, field: given.get(field) or default}
        return filled
