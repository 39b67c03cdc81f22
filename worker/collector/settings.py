"""What a collector is told when it starts. Plain values; they travel as JSON."""

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace


@dataclass(frozen=True, slots=True)
class CollectorSettings:
    """Settings of all collectors of one attempt."""

    run_id: str
    epoch: int
    """The attempt's fencing epoch; tickets of other attempts are refused."""
    seed: int
    """The run's seed. A simulator's seed is this + its number; each collector samples actions from its own stream."""
    count: int = 1
    """Collector processes."""
    bind_host: str = "127.0.0.1"
    advertise_host: str = "127.0.0.1"
    """What simulators are told to connect to."""
    port_range: tuple[int, int] | None = None
    """First and last port, both included; None lets the system choose."""
    ticket_key: bytes | None = field(default=None, repr=False)
    """Key that tickets are verified with. None admits simulators without tickets: loopback development only."""
    environment_parameters: Mapping[str, float] = field(default_factory=dict)
    step_timeout: float = 60.0
    """Seconds of silence after actions were sent, after which a simulator counts as hung."""
    startup_timeout: float | None = 600.0
    """Seconds that a simulator may take from Welcome to its first step; None = no limit."""
    straggler_grace: float = 1.0
    """Seconds of silence after which an answered step no longer delays its round, if another can take its place."""
    max_message_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        """Refuse to listen to the world without tickets."""
        if self.ticket_key is None and self.bind_host not in {"127.0.0.1", "::1", "localhost"}:
            raise ValueError(f"listening on {self.bind_host} needs a ticket key; without one only loopback is allowed")

    def to_json(self) -> str:
        """Serialise for the control channel."""
        values = asdict(self)
        key = values.pop("ticket_key")
        return json.dumps({**values, "ticket_key": base64.b64encode(key).decode() if key is not None else None})

    @classmethod
    def from_json(cls, text: str) -> "CollectorSettings":
        """Read what `to_json` wrote."""
        values = json.loads(text)
        key = values.pop("ticket_key")
        ports = values.pop("port_range")
        settings = cls(**values, port_range=(ports[0], ports[1]) if ports else None)
        return settings if key is None else replace(settings, ticket_key=base64.b64decode(key))
