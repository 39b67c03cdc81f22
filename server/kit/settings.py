"""Settings of the servers, which operators set in the environment (`LUDUS_...`, groups joined by `__`).

    LUDUS_HOME=/var/lib/ludus  LUDUS_DATABASE__URL=postgresql+psycopg://...  LUDUS_WORKER__SLOTS=2

Secrets may be in files: `LUDUS_DATABASE__URL_FILE=/run/secrets/database` (`server.kit.secret_files`).
Only the `main`s construct `Settings()`; everything else is handed the part that it needs. Without any variable the
embedded stack results: SQLite, Celery's file transport and a folder of artifacts, all inside `home`.
The settings of a training run, which users make, are in `server.config`.
"""

import os
from collections.abc import Mapping
from difflib import get_close_matches
from ipaddress import IPv6Address
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from ludus.config.values import Label
from server.kit.artifacts.address import S3Address
from server.kit.db.texts import JsonObject
from server.kit.listening import ApiSettings, GatewaySettings, Group, Port, Seconds, TelemetrySettings
from server.kit.scheduling import SchedulingSettings
from server.kit.secret_files import SUFFIX, read_secret_files


class DatabaseSettings(Group):
    """The system of record."""

    url: SecretStr = SecretStr("")
    """SQLAlchemy address: `sqlite:///file` or `postgresql+psycopg://user:password@host/name`. Default: `ludus.db` in
    `home`.
    """
    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    """SQLite only. FULL syncs each commit to disk: acknowledged commits survive a power failure. With NORMAL they
    survive the death of any process, but a power failure can lose the last ones.
    """
    busy_seconds: Seconds = 15
    """How long a writer waits for another one (SQLite's busy time-out, PostgreSQL's lock_timeout)."""
    statement_seconds: Seconds = 30
    """PostgreSQL's statement_timeout."""
    pool_size: int | None = Field(default=None, ge=1)
    """Maximum number of connections of one process. Default: 2 of a worker's slot, 8 of a controller, 10 of a gateway,
    16 of an api. With SQLite as many again for writing.
    """
    await_schema_seconds: float = Field(default=0.0, ge=0)
    """How long a worker, gateway or controller that starts waits for `ludus migrate` to finish; 0: it takes the schema
    as it is, and ends where there is none. `ludus up` sets it, and starts the worker, which takes the longest, beside
    the migration.
    """


class QueueSettings(Group):
    """Celery, which wakes workers. Its messages carry run ids and no state."""

    broker_url: SecretStr = SecretStr("")
    """`redis://host:6379/0` (a database of its own), or empty for the file transport in `folder`."""
    folder: Path = Path()
    """Folder of the file transport, on a local disk. Default: `queue` in `home`."""
    polling_seconds: Seconds = 0.05
    """How often an idle worker looks into the folder."""


class StorageSettings(Group):
    """Artifacts: checkpoints, models, logs, demonstrations."""

    root: Path = Path()
    """Folder of the artifact store. Default: `artifacts` in `home`."""
    url: str | None = None
    """S3 or a server that speaks its protocol, instead of the folder:
    `s3://bucket/prefix?endpoint=http://host:9000&region=us-east-1`. The bucket must exist; prefix, endpoint (AWS needs
    none) and region are optional.
    """
    public_endpoint: str | None = None
    """Address at which clients reach the server of `url`: `https://files.example.com`. They download large files there,
    by presigned addresses. Default: of AWS its own; of another server none, and the api passes all files on.
    """
    redirect_bytes: int = Field(default=16 << 20, ge=0)
    """Smallest file that is downloaded from the server of `url` itself."""
    access_key: SecretStr | None = None
    """Access key for `url`. Without one boto3 uses its own sources: `AWS_...` variables, its shared files, the
    machine's role.
    """
    secret_key: SecretStr | None = None
    """Secret key for `url`."""
    timeout_seconds: Seconds = 30
    """How long the server of `url` may be silent before a request counts as failed."""
    tries: int = Field(default=5, ge=1)
    """Maximum number of attempts of a request to the server of `url`."""
    retention_seconds: Seconds | None = None
    """Age at which checkpoints of runs are deleted, except the newest good one of each run, the best ones, and pinned
    or used ones. Default: no limit.
    """
    retention_bytes: int | None = Field(default=None, ge=0)
    """Total size of the checkpoints of all runs beyond which the oldest are deleted, with the same exceptions as
    `retention_seconds`. Default: no limit.
    """
    purge_delay_seconds: float = Field(default=0.0, ge=0)
    """How long the files of checkpoints that were given up, of deleted runs, demonstrations and uploaded checkpoints,
    and of former archives of metrics stay. Where backups are made of a running server, set it longer than one takes:
    the copied files then have all that the copied database names.
    """
    orphan_seconds: Seconds = Field(default=86400, ge=600)
    """Age at which files without a row in the database are deleted (a process was killed between writing the file and
    the row).
    """
    demonstration_bytes: int = Field(default=256 << 20, ge=1)
    """Largest file of a demonstration that can be uploaded."""
    demonstration_decoded_bytes: int = Field(default=1 << 30, ge=1)
    """Maximum memory of one decoded demonstration, or of all demonstrations to be merged: files are compressed."""
    checkpoint_bytes: int = Field(default=1 << 30, ge=1)
    """Largest file of another program's checkpoint that can be uploaded."""

    @field_validator("url", "public_endpoint", "access_key", "secret_key", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        """Take an empty variable, as a compose file passes it on, for none."""
        return None if value == "" else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.url is not None:
            S3Address.parse(self.url)
        if self.public_endpoint is not None and not self.public_endpoint.startswith(("http://", "https://")):
            raise ValueError(f"public_endpoint {self.public_endpoint!r} begins with neither http:// nor https://")
        if self.public_endpoint is not None and self.url is None:
            raise ValueError("public_endpoint is the address of an S3 server: set url too, or neither")
        if (self.access_key is None) != (self.secret_key is None):
            missing = "access_key" if self.access_key is None else "secret_key"
            raise ValueError(f"{missing} is missing: give both keys, or none to let boto3 look for them")
        return self


class WorkerSettings(Group):
    """A worker host: the supervisors and trainers on it."""

    slots: int | None = Field(default=None, ge=1)
    """Runs in training at once on this host. Default: one per GPU, or one without GPUs."""
    gpus: list[int | str] | None = None
    """The GPUs that this worker uses, as JSON: numbers or UUIDs of `nvidia-smi -L`, or `[]`. They are assigned to the
    slots evenly, and a trainer sees only the GPUs of its slot. Default: all of the host, or those in
    CUDA_VISIBLE_DEVICES.
    """
    share_gpus: bool = False
    """Whether other workers of this host may use the same GPUs. If false, each GPU is locked."""
    labels: list[Label] = Field(default=[])
    """Labels that runs can demand in `resources.labels`, as JSON: `["a100", "linux"]`."""
    commit: str = Field(default="", max_length=100)
    """Commit of this installation, for the fingerprints of runs. Default: the commit of the repository, if it runs from
    one.
    """
    outage_seconds: Seconds = 300
    """How long a run continues while its worker cannot reach the database. Its reports wait. If another worker has
    taken the run meanwhile, the attempt ends when the database answers again.
    """
    trainer_memory_bytes: int | None = Field(default=None, ge=1)
    """A trainer that uses more memory than this, with its collectors, saves a checkpoint and is replaced by a new one.
    Default: no limit.
    """
    startup_seconds: Seconds = 300
    """How long a trainer may take until its collectors listen, before it is replaced."""
    silence_seconds: Seconds = 600
    """A trainer without a report for this time counts as hung and is replaced; an update of the largest models takes
    minutes.
    """
    stall_seconds: Seconds = 20
    """A worker with an idle slot that receives no waiting message for this time has lost its queue, and restarts."""
    collectors: int = Field(default=1, ge=1)
    """Collector processes of each attempt."""
    advertise_host: str = "127.0.0.1"
    """Host name or address of this host for simulators; that of IPv6 as it is, `fd00::7`, or in brackets."""
    bind_host: str = "127.0.0.1"
    """Address that collectors listen on; `::` for all addresses of IPv6 and IPv4."""
    port_range: tuple[Port, Port] | None = None
    """First and last port for collectors, as JSON: `[7100, 7199]`. A run needs one for each of its collectors, and one
    more for edge collectors. Default: any free port."""
    websocket_range: tuple[Port, Port] | None = None
    """First and last port at which collectors take WebSockets, one each, as JSON. Only where
    `LUDUS_GATEWAY__WEBSOCKET_PORT` is set, too. Default: any free port without `port_range`; with it none, and gateways
    relay WebSockets.
    """
    lease_seconds: Seconds = 10
    """A run whose supervisor is silent for this long goes to another worker."""
    heartbeat_seconds: Seconds = 2
    """How often a supervisor renews its lease; at most a third of it."""
    stop_seconds: Seconds = 60
    """How long a trainer may take for its final checkpoint before it is killed."""
    scratch: Path = Path()
    """Folder for unfinished files. Default: `scratch` in `home`."""
    alive_file: Path = Path()
    """File that the slots touch every few seconds, for liveness probes. Default: `worker.alive` in `home`."""

    @field_validator("advertise_host", "bind_host")
    @classmethod
    def _is_host(cls, value: str) -> str:
        """Take the brackets from an address of IPv6, and refuse what is not one but has a colon."""
        host = value.removeprefix("[").removesuffix("]")
        if ":" in host:
            try:
                IPv6Address(host)
            except ValueError:
                raise ValueError(
                    f"{value} is neither a host name nor an address; leave a port out: port_range has them"
                ) from None
        return host

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.heartbeat_seconds * 3 > self.lease_seconds:
            raise ValueError(
                f"heartbeat_seconds ({self.heartbeat_seconds:g}) must be at most a third of lease_seconds "
                f"({self.lease_seconds:g}), or one lost beat loses the run; raise lease_seconds"
            )
        for name in ("port_range", "websocket_range"):
            ports = getattr(self, name)
            if ports is not None and ports[0] > ports[1]:
                raise ValueError(f"{name} {list(ports)} is empty; write [first, last]")
        return self


class ControllerSettings(Group):
    """The caretaker of the database: reaper, reconciler, retention."""

    interval_seconds: Seconds = 1
    """Pause between two rounds; for the controller's own, a quarter of a lease at most."""
    wake_seconds: Seconds = Field(default=4, le=5)
    """After this time of waiting, the controller wakes the workers again for a run."""
    restart_budget: int = Field(default=3, ge=0)
    """Restarts of a run without a new checkpoint in between, before it counts as FAILED."""
    idempotency_seconds: Seconds = 86400
    """How long the answer to an idempotent request is kept."""
    audit_days: float = Field(default=90, gt=0)
    """How long entries of the audit log are kept."""
    run_days: float | None = Field(default=None, gt=0)
    """Age after its end at which a run is deleted with all that belongs to it, unless something needs it (a pinned
    checkpoint, an alias, a ladder, another run). Default: no limit.
    """
    event_days: float | None = Field(default=365, gt=0)
    """How long routine events are kept. Changes of a run's state, warnings and errors stay as long as the run. Empty:
    no limit.
    """
    simulator_days: float | None = Field(default=30, gt=0)
    """How long a simulator stays in the list after it has left. Empty: no limit."""
    match_days: float | None = Field(default=365, gt=0)
    """How long rated matches of ended runs, and reported ones, are kept. Ratings, their history and the payoffs stay.
    Empty: no limit.
    """
    recording_days: float | None = Field(default=30, gt=0)
    """How long recordings of simulators' sessions are kept. Empty: as long as their run."""
    worker_seconds: Seconds = 86400
    """How long a silent or stopped worker stays in the list."""

    @field_validator("run_days", "event_days", "simulator_days", "match_days", "recording_days", mode="before")
    @classmethod
    def _empty_is_no_limit(cls, value: object) -> object:
        return None if value == "" else value


class WebhookSettings(Group):
    """Webhooks: how messages about events are sent. Read by the api and the controller."""

    private_addresses: bool = False
    """Allow receivers in the server's own network (loopback, private and link-local addresses) and without TLS. `ludus
    up` allows it while its API listens on loopback and demands no token.
    """
    timeout_seconds: Seconds = Field(default=15, le=60)
    """Longest exchange with a receiver."""
    retry_seconds: tuple[Seconds, ...] = Field(default=(5, 300, 1800, 7200, 18000, 36000, 36000), max_length=30)
    """Pauses between the attempts to deliver a message, as JSON; each is longer by up to a fifth, at random. After the
    last attempt it is given up.
    """
    interval_seconds: Seconds = 0.5
    """Pause between two checks for new events."""
    concurrency: int = Field(default=32, ge=1, le=256)
    """Messages that one controller sends at once."""
    retention_seconds: Seconds = 30 * 86400
    """How long deliveries and their attempts stay in the log."""


Days = Annotated[float, Field(gt=0, le=36500)]


class MetricsSettings(Group):
    """How long the controller keeps metrics of runs, and where. Newest and extreme values are kept for ever."""

    archive_days: Days | None = 7
    """Days after its end when a run's metrics move from the database to a Parquet file in the artifact store; the API
    reads them there. Empty: never.
    """
    project_archive_days: dict[str, Days | None] = Field(default={})
    """The same for projects by name, before `archive_days`, as JSON: `{"bots": 1, "league": null}`."""
    full_days: Days | None = None
    """Age in days at which the points of a metric are thinned to `thinned_points`. The last one and the extremes are
    always kept. Default: never.
    """
    project_full_days: dict[str, Days | None] = Field(default={})
    """The same for projects by name, before `full_days`, as JSON: `{"bots": 30}`."""
    thinned_points: int = Field(default=2000, ge=100, le=1_000_000)
    """Maximum number of points of one metric that are older than `full_days`."""

    def full_days_of(self, project: str) -> float | None:
        """Return `full_days` of a project."""
        return self.project_full_days.get(project, self.full_days)

    @field_validator("archive_days", "full_days", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        """Take an empty variable for none."""
        return None if value == "" else value


class LogSettings(Group):
    """The log that the processes write to standard error."""

    format: Literal["json", "console"] = "json"
    """One JSON object per line, or lines for people."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is written."""


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

    home: Path = Path(".ludus")
    """Folder of all data of the embedded stack."""
    database: DatabaseSettings = DatabaseSettings()
    queue: QueueSettings = QueueSettings()
    scheduling: SchedulingSettings = SchedulingSettings()
    storage: StorageSettings = StorageSettings()
    metrics: MetricsSettings = MetricsSettings()
    api: ApiSettings = ApiSettings()
    gateway: GatewaySettings = GatewaySettings()
    worker: WorkerSettings = WorkerSettings()
    controller: ControllerSettings = ControllerSettings()
    webhooks: WebhookSettings = WebhookSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    log: LogSettings = LogSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  # pydantic passes all sources by name
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003  # the same
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read the environment, secrets also from the files that it names. Raises SettingsError."""
        assert isinstance(env_settings, EnvSettingsSource)
        env_settings.env_vars = read_secret_files(env_settings.env_vars, settings_cls, "LUDUS_")
        return init_settings, env_settings

    @model_validator(mode="before")
    @classmethod
    def _names_a_group(cls, data: Any) -> Any:
        """Refuse variables like `LUDUS_WORKR__SLOTS` and `LUDUS_API_TOKEN`: they would have no effect."""
        for variable in os.environ:
            group, nested, _ = variable.removeprefix("LUDUS_").lower().partition("__")
            if variable.startswith("LUDUS_") and nested and group not in cls.model_fields:
                near = get_close_matches(group, cls.model_fields, 1)
                meant = f"; did you mean LUDUS_{near[0].upper()}__...?" if near else ""
                raise ValueError(f"{variable} belongs to no group of settings{meant}")
            if not nested and (setting := cls._joined_by_one(group)) is not None:
                raise ValueError(f"{variable} is unknown; did you mean LUDUS_{setting.upper()}?")
        return data

    @classmethod
    def _joined_by_one(cls, name: str) -> str | None:
        """Return the setting of a group that `api_token` means; None where it means none."""
        for group, field in cls.model_fields.items():
            inner = name.removeprefix(f"{group}_")
            if inner != name and inner.removesuffix(SUFFIX.lower()) in getattr(field.annotation, "model_fields", ()):
                return f"{group}__{inner}"
        return None

    @model_validator(mode="before")
    @classmethod
    def _inside_home(cls, data: Any) -> Any:
        """Fill in the embedded defaults, which depend on `home`."""
        if not isinstance(data, Mapping):
            return data
        home = Path(data.get("home") or ".ludus").expanduser().absolute()
        filled: JsonObject = {**data, "home": home}
        for group, field, default in (
            ("database", "url", f"sqlite:///{home / 'ludus.db'}"),
            ("queue", "folder", home / "queue"),
            ("storage", "root", home / "artifacts"),
            ("worker", "scratch", home / "scratch"),
            ("worker", "alive_file", home / "worker.alive"),
        ):
            values = filled.get(group, {})
            if isinstance(values, BaseModel):
                values = values.model_dump(exclude_unset=True)
            if isinstance(values, Mapping):
                filled[group] = {**values, field: values.get(field) or default}
        return filled
