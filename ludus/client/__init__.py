"""Typed client of the HTTP API: what the CLI, notebooks and CI pipelines talk to a Ludus server with.

    with Client("http://127.0.0.1:8080") as client:
        run = client.create_run({"behaviors": {"CartPole": {"trainer_type": "ppo"}}}, name="first")
        run = client.wait(run.id, timeout=600)
        client.download(run.id, "latest", "CartPole.onnx", "CartPole.onnx")

Everything that comes back is a frozen dataclass (`ludus.schemas`). Everything that can go wrong is an `ApiError`:

    ApiError
    ├── ServerUnreachable      nobody answers, or what answers is no Ludus server
    ├── ProblemAnswer          the server refuses; carries its problem (`code`, `detail`, `errors`)
    │   ├── NotFound           the run, checkpoint, ... does not exist
    │   └── Busy               too many requests at once, or not ready: try again later
    ├── NotFinite              a number that was to be sent is infinite or NaN
    ├── DownloadDamaged        a file arrived with another checksum than announced
    ├── NotSaved               the checkpoint that was asked for was not written
    ├── RunStalled             the run goes on only when somebody acts
    └── WaitTimedOut           the run is not where it was waited for

POSTs and PATCHes carry an idempotency key, so repeating one after a lost answer does not repeat its effect.
"""

from ludus.client.aliases import Aliases
from ludus.client.assessments import Assessments
from ludus.client.checkpoints import Checkpoints
from ludus.client.configs import Configs
from ludus.client.demonstrations import Demonstrations
from ludus.client.errors import (
    ApiError,
    Busy,
    DownloadDamaged,
    NotFinite,
    NotFound,
    NotSaved,
    ProblemAnswer,
    RunStalled,
    ServerUnreachable,
    WaitTimedOut,
)
from ludus.client.events import Events
from ludus.client.ladders import Ladders
from ludus.client.lifecycle import Lifecycle
from ludus.client.metrics import Metrics
from ludus.client.parameters import Parameters
from ludus.client.patience import PATIENCE_SECONDS
from ludus.client.runs import TERMINAL_STATES, Config, StoredConfig
from ludus.client.tokens import Tokens
from ludus.client.transport import DEFAULT_SERVER
from ludus.client.webhooks import Webhooks

__all__ = [
    "DEFAULT_SERVER",
    "PATIENCE_SECONDS",
    "TERMINAL_STATES",
    "ApiError",
    "Busy",
    "Client",
    "Config",
    "DownloadDamaged",
    "NotFinite",
    "NotFound",
    "NotSaved",
    "ProblemAnswer",
    "RunStalled",
    "ServerUnreachable",
    "StoredConfig",
    "WaitTimedOut",
]


class Client(
    Lifecycle,
    Parameters,
    Events,
    Metrics,
    Checkpoints,
    Aliases,
    Assessments,
    Configs,
    Demonstrations,
    Ladders,
    Webhooks,
    Tokens,
):
    """Connection to one server. Thread-safe; close it, or use it as a context manager."""

    def version(self) -> str:
        """Return the server's version."""
        return str(self._get("/version").get("version", "unknown"))

    def ready(self) -> bool:
        """Say whether the server is ready to take runs. Raises ServerUnreachable where nobody answers."""
        try:
            self._get("/readyz")
        except Busy:
            return False
        return True
