"""Settings of a collector process: plain values, passed as JSON."""

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ludus.config.recording import RecordConfig
from ludus.protocol.environment_parameters import ParameterValue
from ludus.protocol.side_channels import EngineConfiguration
from ludus.protocol.tls import TlsFiles, is_loopback
from ludus.reading import read_record


@dataclass(frozen=True, slots=True)
class CollectorSettings:
    """Settings of all collectors of one attempt."""

    run_id: str
    attempt: int
    """The attempt's number, the fencing token; tickets of other attempts are refused."""
    seed: int
    """The run's seed. A simulator's seed is this + its number; each collector samples actions from its own stream."""
    count: int = 1
    """Collectors, those in places for edge collectors among them, which come last."""
    edge_places: int = 0
    """Places for edge collectors."""
    bind_host: str = "127.0.0.1"
    advertise_host: str = "127.0.0.1"
    """Host name in the addresses that simulators get."""
    port_range: tuple[int, int] | None = None
    """First and last port, both included; None lets the system choose."""
    ticket_key: bytes | None = field(default=None, repr=False)
    """Key that tickets are verified with. None admits simulators without tickets: loopback development only."""
    tls_certificate: str | None = None
    """PEM file of the certificate that simulators are shown, with `tls_key`; None: no TLS."""
    tls_key: str | None = None
    tls_client_ca: str | None = None
    """PEM file of the authority of simulators' certificates; given, they must show one."""
    websocket_origins: tuple[str, ...] | None = None
    """Origins of pages that may connect by WebSockets, beside pages of this machine. None: WebSockets are off."""
    websocket_range: tuple[int, int] | None = None
    """Ports for WebSockets. None: any, if `port_range` is None, too, else there are none: gateways relay."""
    environment_parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    """Environment parameters; native simulators get values that are drawn for them."""
    parameter_set: int = 0
    """Number of these parameters: the learner counts its changes of them."""
    step_timeout: float = 60.0
    """Seconds of silence after actions were sent, after which a simulator counts as hung."""
    startup_timeout: float | None = 600.0
    """Seconds that a simulator may take from Welcome to its first step; None = no limit."""
    second_call_timeout: float = 30.0
    """Seconds that a Unity player may take for its second call, which it makes at once."""
    no_agents_after: float = 30.0
    """Seconds after which a Unity player without any agent is reported."""
    late_agents_grace: float = 1.0
    """Seconds of silence after which an answered step no longer delays its round, if another can take its place."""
    max_message_bytes: int = 64 << 20
    engine: EngineConfiguration = field(default_factory=EngineConfiguration)
    """Engine settings that Unity players get when they begin."""
    num_areas: int = 1
    """Training areas that Unity players replicate."""
    unity_port: int | None = None
    """A port on loopback for Unity players without a bridge, beside the others."""
    record: RecordConfig = field(default_factory=RecordConfig)
    """Which sessions are recorded."""
    recordings: str | None = None
    """Folder for recordings; empty: they are sent to the learner. None: there are none."""
    log_path: str | None = None
    """File that takes over standard output and standard error; None: those of the learner's start."""

    def __post_init__(self) -> None:
        """Refuse to listen beyond loopback without tickets."""
        if self.ticket_key is None and not is_loopback(self.bind_host):
            raise ValueError(f"listening on {self.bind_host} needs a ticket key; without one only loopback is allowed")

    @property
    def tls(self) -> TlsFiles | None:
        """The files of TLS; None without TLS."""
        if self.tls_certificate is None or self.tls_key is None:
            return None
        client_ca = None if self.tls_client_ca is None else Path(self.tls_client_ca)
        return TlsFiles(Path(self.tls_certificate), Path(self.tls_key), client_ca)

    def to_json(self) -> str:
        """Serialise for the control channel."""
        key = None if self.ticket_key is None else base64.b64encode(self.ticket_key).decode()
        return json.dumps({**asdict(self), "ticket_key": key, "record": self.record.model_dump()})

    @classmethod
    def from_json(cls, text: str) -> "CollectorSettings":
        """Read the output of `to_json`."""
        values = json.loads(text)
        key = values["ticket_key"]
        return read_record(cls, {**values, "ticket_key": None if key is None else base64.b64decode(key)})
