"""Typed client of the HTTP API, which the CLI, notebooks and CI pipelines use.

    with Client("http://127.0.0.1:8080") as client:
        run = client.runs.create({"behaviors": {"CartPole": {"trainer_type": "ppo"}}}, name="first")
        run = client.runs.wait(run.id, timeout=600)
        client.checkpoints.download(run.id, "latest", "CartPole.onnx", "CartPole.onnx")

Each resource of the API is an attribute: `client.runs`, `client.ladders`, ... (`ludus.client.client.Client` has all).
Their methods return frozen dataclasses (`ludus.schemas`) and raise `ApiError`:

    ApiError
    ├── ServerUnreachable      the server does not answer, or is no Ludus server
    ├── ProblemAnswer          the server refuses; carries its problem (`code`, `detail`, `errors`)
    │   ├── NotFound           the run, checkpoint, ... does not exist
    │   └── Busy               too many requests at once, or not ready: try again later
    ├── NotSendable            a value of a request has no form in JSON or in a header
    ├── DownloadDamaged        a file arrived with another checksum than announced
    ├── NotSaved               the requested checkpoint was not written
    ├── RunStalled             the run continues only after a person acts
    └── WaitTimedOut           the run did not reach the state in time

POSTs and PATCHes carry an idempotency key, so repeating one after a lost answer does not repeat its effect.
"""

from ludus.client.backoff import RETRY_SECONDS
from ludus.client.client import DEFAULT_SERVER, Client
from ludus.client.errors import (
    ApiError,
    Busy,
    DownloadDamaged,
    NotFound,
    NotSaved,
    NotSendable,
    ProblemAnswer,
    RunStalled,
    ServerUnreachable,
    WaitTimedOut,
)
from ludus.client.runs import TERMINAL_STATES, Config, StoredConfig

__all__ = [
    "DEFAULT_SERVER",
    "RETRY_SECONDS",
    "TERMINAL_STATES",
    "ApiError",
    "Busy",
    "Client",
    "Config",
    "DownloadDamaged",
    "NotFound",
    "NotSaved",
    "NotSendable",
    "ProblemAnswer",
    "RunStalled",
    "ServerUnreachable",
    "StoredConfig",
    "WaitTimedOut",
]
