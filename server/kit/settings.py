"""Settings of the servers: what operators decide, read from the environment (`LUDUS_...`, groups joined by `__`).

    LUDUS_HOME=/var/lib/ludus  LUDUS_DATABASE__URL=postgresql+psycopg://...  LUDUS_WORKER__SLOTS=2

Only the `main`s construct `Settings()`; everything else is handed the part that it needs. Without any variable the
embedded stack results: SQLite, Celery's file transport and a folder of artifacts, all inside `home`.
What users decide about a training run is not here but in `server.config.config`.
"""

import math
import os
from collections.abc import Mapping
from difflib import get_close_matches
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    SecretStr,
    StringConstraints,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from ludus.protocol.server_tls import TlsFiles, check_certificates
from server.kit.artifacts.address import S3Address

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0)]
Label = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,39}$")]
"""What a worker has and a run may ask for."""


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


class SchedulingSettings(Group):
    """Which waiting run a free worker takes: one of the project with the fewest in training; of a project's runs the
    one with the highest priority, then of the token and the owner with the fewest, then the oldest.
    """

    aging_seconds: Seconds = Field(
        default=3600,
        description="A run that waits gains one step of priority each time so many seconds pass, so that none waits "
        "for ever.",
    )
    runs_per_project: int | None = Field(
        default=None, ge=0, description="Most runs of one project that are in training at once. Default: no limit."
    )
    project_quotas: dict[str, NonNegativeInt] = Field(
        default={}, description='The same for projects by name, before `runs_per_project`, as JSON: `{"bots": 4}`.'
    )
    runs_per_token: int | None = Field(
        default=None,
        ge=0,
        description="Most runs created with one token that are in training at once. Runs that no token of the database "
        "created (the server demands none, or the request came with `LUDUS_API__TOKEN`) count as those of one token. "
        "Default: no limit.",
    )
    token_quotas: dict[str, NonNegativeInt] = Field(
        default={},
        description='The same for tokens by id, before `runs_per_token`, as JSON: `{"tok_01k...": 4, "": 1}`; the '
        "empty id stands for runs without a token.",
    )
    explain_seconds: Seconds = Field(
        default=10, description="A run that no live worker can serve says so when it has waited for so long."
    )

    @model_validator(mode="before")
    @classmethod
    def _no_quotas_of_owners(cls, data: Any) -> Any:
        for former in ("runs_per_owner", "owner_quotas"):
            if isinstance(data, Mapping) and former in data:
                raise ValueError(
                    f"{former}: quotas bind projects and tokens, because anybody can name any owner; set "
                    "runs_per_project, project_quotas, runs_per_token or token_quotas instead"
                )
        return data

    def project_quota(self, project: str) -> float:
        """Return how many runs of a project may be in training at once; infinity without a limit."""
        default = math.inf if self.runs_per_project is None else self.runs_per_project
        return self.project_quotas.get(project, default)

    def token_quota(self, token_id: str) -> float:
        """Return how many runs that a token created may be in training at once; infinity without a limit."""
        default = math.inf if self.runs_per_token is None else self.runs_per_token
        return self.token_quotas.get(token_id, default)


class StorageSettings(Group):
    """Artifacts: checkpoints, models, logs, demonstrations."""

    root: Path = Field(default=Path(), description="Folder of the artifact store. Default: `artifacts` in `home`.")
    url: str | None = Field(
        default=None,
        description="S3 or a server that speaks its protocol, instead of the folder: "
        "`s3://bucket/prefix?endpoint=http://host:9000&region=us-east-1`. The bucket has to exist; prefix, endpoint "
        "(of AWS none is needed) and region may be left out.",
    )
    access_key: SecretStr | None = Field(
        default=None,
        description="Access key for `url`. Without one boto3 looks for keys where it always does: `AWS_...` variables, "
        "its shared files, the machine's role.",
    )
    secret_key: SecretStr | None = Field(default=None, description="Secret key for `url`.")
    timeout_seconds: Seconds = Field(
        default=30, description="How long the server of `url` may be silent before a request counts as failed."
    )
    tries: int = Field(default=5, ge=1, description="How often a request to the server of `url` is tried in all.")
    retention_seconds: Seconds | None = Field(
        default=None,
        description="Age at which checkpoints of runs are deleted. Spared are, of every run, the newest good one, the "
        "best ones, and those that are pinned or in use. Without it none is deleted for its age.",
    )
    retention_bytes: int | None = Field(
        default=None,
        ge=0,
        description="Size of all checkpoints of runs together beyond which the oldest are deleted, the same ones "
        "spared as by `retention_seconds`. Without it none is deleted for want of room.",
    )
    orphan_seconds: Seconds = Field(
        default=86400,
        ge=600,
        description="Age at which files that belong to nothing (a process was killed between writing them and entering "
        "them) are deleted.",
    )
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

    @field_validator("url", "access_key", "secret_key", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        """Take an empty variable, as a compose file passes it on, for none."""
        return None if value == "" else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.url is not None:
            S3Address.parse(self.url)
        if (self.access_key is None) != (self.secret_key is None):
            missing = "access_key" if self.access_key is None else "secret_key"
            raise ValueError(f"{missing} is missing: give both keys, or none to let boto3 look for them")
        return self


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
        if self.tls is not None:
            self.tls.check()
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
    proxies: str = Field(
        default="",
        description="Addresses or networks of reverse proxies, separated by commas, whose `X-Forwarded-For` is "
        "believed: who it names is counted by the limits and stands in the audit log. Default: nobody is believed.",
    )

    @field_validator("proxies")
    @classmethod
    def _are_networks(cls, value: str) -> str:
        for each in filter(None, map(str.strip, value.split(","))):
            try:
                ip_network(each)
            except ValueError as error:
                raise ValueError(f"{error}; name addresses or networks, as in 10.0.0.7,192.168.0.0/16") from None
        return value

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

    @model_validator(mode="after")
    def _tls_ca_is_of_use(self) -> Self:
        if self.tls_ca is None:
            return self
        if self.tls is None:
            raise ValueError("tls_ca needs tls_certificate and tls_key: collectors speak TLS where the gateway does")
        check_certificates(self.tls_ca)
        return self

    @property
    def demands_token(self) -> bool:
        """Whether nobody is let in without a token."""
        return self.require_token or self.token is not None


class WorkerSettings(Group):
    """A worker host: the supervisors and trainers on it."""

    slots: int | None = Field(
        default=None,
        ge=1,
        description="Runs that this host trains at once. Default: one per GPU, or one where there is none.",
    )
    gpus: list[int | str] | None = Field(
        default=None,
        description="The GPUs that this worker uses, as JSON: numbers or UUIDs of `nvidia-smi -L`, or `[]`. They are "
        "dealt out to the slots evenly, and a trainer sees those of its slot alone. Default: all of the host, or what "
        "CUDA_VISIBLE_DEVICES names.",
    )
    share_gpus: bool = Field(
        default=False, description="Let other workers of this host use the same GPUs. Otherwise each GPU is locked."
    )
    labels: list[Label] = Field(
        default=[],
        description='What runs can ask for in `resources.labels`, as JSON: `["a100", "linux"]`.',
    )
    commit: str = Field(
        default="",
        max_length=100,
        description="Commit that this installation was made of, for the fingerprints of runs. Default: that of the "
        "repository, where it runs from one.",
    )
    outage_seconds: Seconds = Field(
        default=300,
        description="How long a run trains on while its worker can't reach the database. What it reports waits; a run "
        "that was given to another worker meanwhile ends as soon as the database says so.",
    )
    trainer_memory_bytes: int | None = Field(
        default=None,
        ge=1,
        description="A trainer that holds more memory than this, with its collectors, saves a checkpoint and is "
        "replaced by a fresh one. Default: no limit.",
    )
    startup_seconds: Seconds = Field(
        default=300, description="How long a trainer may take until its collectors listen, before it is replaced."
    )
    silence_seconds: Seconds = Field(
        default=600,
        description="A trainer that has reported nothing for so long hangs and is replaced; an update of the largest "
        "models takes minutes.",
    )
    stall_seconds: Seconds = Field(
        default=20,
        description="A worker that leaves messages unheard for so long, although a slot of it is idle, has lost its "
        "queue without noticing, and starts anew.",
    )
    collectors: int = Field(default=1, ge=1, description="Collector processes of each attempt.")
    advertise_host: str = Field(default="127.0.0.1", description="Name under which simulators reach this host.")
    bind_host: str = Field(default="127.0.0.1", description="Address that collectors listen on.")
    port_range: tuple[Port, Port] | None = Field(
        default=None,
        description="First and last port for collectors, as JSON: `[7100, 7199]`. Default: any free port.",
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

    interval_seconds: Seconds = Field(
        default=1, description="Pause between two rounds; for the steward's own, a quarter of a lease at most."
    )
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


class WebhookSettings(Group):
    """Webhooks: how messages about events are sent. Read by the api and the steward."""

    private_addresses: bool = Field(
        default=False,
        description="Whether receivers may be in the own network (loopback, private and link-local addresses) and be "
        "reached without TLS. `ludus up` allows it while its API listens on loopback and demands no token.",
    )
    timeout_seconds: Seconds = Field(default=15, le=60, description="Longest exchange with a receiver.")
    retry_seconds: tuple[Seconds, ...] = Field(
        default=(5, 300, 1800, 7200, 18000, 36000, 36000),
        max_length=30,
        description="Pauses between the attempts to deliver a message, as JSON; each is longer by up to a fifth, at "
        "random. After the last attempt it is given up.",
    )
    interval_seconds: Seconds = Field(default=0.5, description="Pause between two looks for new events.")
    concurrency: int = Field(default=32, ge=1, le=256, description="Messages that one steward sends at once.")
    retention_seconds: Seconds = Field(
        default=30 * 86400, description="How long deliveries and their attempts stay in the log."
    )


class TelemetrySettings(Group):
    """Operational metrics for Prometheus of the roles without an HTTP API. The api has `/metrics` on its own port."""

    host: str = Field(
        default="127.0.0.1",
        description="Address to listen on. Nobody is asked for a token: keep it in a private network.",
    )
    gateway_port: Port = Field(default=0, description="Port of a gateway's metrics; 0: none are served.")
    steward_port: Port = Field(default=0, description="Port of a steward's metrics; 0: none are served.")
    worker_port: Port = Field(default=0, description="Port of a worker host's metrics; 0: none are served.")


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
    scheduling: SchedulingSettings = SchedulingSettings()
    storage: StorageSettings = StorageSettings()
    api: ApiSettings = ApiSettings()
    gateway: GatewaySettings = GatewaySettings()
    worker: WorkerSettings = WorkerSettings()
    steward: StewardSettings = StewardSettings()
    webhooks: WebhookSettings = WebhookSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    log: LogSettings = LogSettings()

    @model_validator(mode="before")
    @classmethod
    def _names_a_group(cls, data: Any) -> Any:
        """Refuse variables like `LUDUS_WORKR__SLOTS` and `LUDUS_API_TOKEN`: nobody would read them, and their author
        would never know.
        """
        for variable in os.environ:
            group, nested, _ = variable.removeprefix("LUDUS_").lower().partition("__")
            if variable.startswith("LUDUS_") and nested and group not in cls.model_fields:
                near = get_close_matches(group, cls.model_fields, 1)
                meant = f"; did you mean LUDUS_{near[0].upper()}__...?" if near else ""
                raise ValueError(f"{variable} belongs to no group of settings{meant}")
            if not nested and (setting := cls._joined_by_one(group)) is not None:
                raise ValueError(f"{variable} is read by nobody; did you mean LUDUS_{setting.upper()}?")
        return data

    @classmethod
    def _joined_by_one(cls, name: str) -> str | None:
        """Return the setting of a group that `api_token` means; None where it means none."""
        for group, field in cls.model_fields.items():
            inner = name.removeprefix(f"{group}_")
            if inner != name and inner in getattr(field.annotation, "model_fields", ()):
                return f"{group}__{inner}"
        return None

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
