"""Typed client of the HTTP API: what the CLI, notebooks and CI pipelines talk to a Ludus server with.

    with Client("http://127.0.0.1:8080") as client:
        run = client.create_run({"behaviors": {"CartPole": {"trainer_type": "ppo"}}}, name="first")
        run = client.wait(run.id, timeout=600)
        client.download(run.id, "latest", "CartPole.onnx", Path("CartPole.onnx"))

Everything that comes back is a frozen dataclass (`ludus.records`). Everything that can go wrong is an `ApiError`:

    ApiError
    ├── ServerUnreachable      nobody answers, or what answers is no Ludus server
    ├── ProblemAnswer          the server refuses; carries its problem (`code`, `detail`, `errors`)
    │   ├── NotFound           the run, checkpoint, ... does not exist
    │   └── Busy               too many requests at once, or not ready: try again later
    ├── DownloadDamaged        a file arrived with another checksum than announced
    └── WaitTimedOut           the run is not where it was waited for

POSTs and PATCHes carry an idempotency key, so repeating one after a lost answer does not repeat its effect.
"""

import hashlib
import json
import os
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx

from ludus.records import (
    Attempt,
    Checkpoint,
    ConfigDiff,
    ConfigSummary,
    ConfigUpgrade,
    ConfigVersion,
    Demonstration,
    EnvironmentParameters,
    Event,
    Ladder,
    Log,
    LogText,
    Match,
    Metric,
    Payoffs,
    PlannedRun,
    Player,
    ProblemDetail,
    Rating,
    RatingSeries,
    Run,
    Series,
    Simulator,
    UploadedCheckpoint,
    Worker,
    read_record,
)

Record = TypeVar("Record")

DEFAULT_SERVER = "http://127.0.0.1:8080"
TERMINAL_STATES = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
LONG_POLL_SECONDS = 20.0
"""How long one request of `wait` may stay open; below the idle time-out of common proxies."""
STREAM_SILENCE_SECONDS = 45.0
"""An event stream that says nothing for so long (the server pings every 15 s) is taken for dead."""
WORK_SECONDS = 600.0
"""How long the server may take to read, merge or thin a demonstration."""
PATIENCE_SECONDS = 60.0
"""For how long `wait` and `follow_events` bear with a server that doesn't answer: long enough for its restart."""


class ApiError(Exception):
    """Parent of everything that the client raises on purpose."""


class ServerUnreachable(ApiError):
    """Nobody answers at the server's address, or what answers is no Ludus server."""

    def __init__(self, server: str, reason: str) -> None:
        self.server = server
        self.reason = reason
        super().__init__(
            f"cannot reach the server at {server} ({reason}); start one with `ludus up`, "
            "or name another with --server or LUDUS_SERVER"
        )


class ProblemAnswer(ApiError):
    """The server answered with a problem (RFC 9457). `code` is stable, `detail` is a sentence for people."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        errors: Sequence[ProblemDetail] = (),
        retry_after: float | None = None,
    ) -> None:
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = tuple(errors)
        self.retry_after = retry_after
        super().__init__(detail)


class NotFound(ProblemAnswer):
    """What was asked for does not exist."""


class Busy(ProblemAnswer):
    """The server is at a limit or not ready; the same request may succeed later."""


class DownloadDamaged(ApiError):
    """A file arrived with another checksum than announced. Nothing was kept of it."""

    def __init__(self, name: str, expected: str, actual: str) -> None:
        self.name = name
        super().__init__(f"{name} arrived damaged: SHA-256 {actual}, announced {expected}; download it again")


class WaitTimedOut(ApiError):
    """The time-out passed before the run got to where it was waited for. `run` is its last known form."""

    def __init__(self, run: Run, seconds: float) -> None:
        self.run = run
        super().__init__(f"run {run.id} is still {run.state} after {seconds:g} s")


@dataclass(frozen=True)
class StoredConfig:
    """A stored configuration as the source of a run; the newest version unless `version` says another."""

    name: str
    version: int | None = None


Config = Mapping[str, Any] | str | StoredConfig
"""Where a run's configuration comes from: a document, its YAML or JSON text, or a stored one."""


class Client:
    """Connection to one server. Thread-safe; close it, or use it as a context manager."""

    def __init__(
        self,
        server: str | None = None,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Connect to `server` (default: `LUDUS_SERVER`, else port 8080 of this machine) with `token` (`LUDUS_TOKEN`).

        `timeout` is in seconds, per network operation. `transport` replaces the network.
        """
        self.server = (server or os.environ.get("LUDUS_SERVER") or DEFAULT_SERVER).rstrip("/")
        token = token or os.environ.get("LUDUS_TOKEN")
        headers = {"User-Agent": "ludus"} | ({"Authorization": f"Bearer {token}"} if token else {})
        try:
            self._http = httpx.Client(base_url=self.server, headers=headers, timeout=timeout, transport=transport)
        except (httpx.InvalidURL, ValueError) as error:
            raise ServerUnreachable(self.server, f"not a URL: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    # Runs

    def create_run(
        self,
        config: Config,
        *,
        overrides: Mapping[str, Any] | None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
        priority: int = 0,
        idempotency_key: str | None = None,
    ) -> Run:
        """Queue a training run.

        `config` is a document, its YAML text, or a `StoredConfig`; `overrides` maps dotted paths
        (`behaviors.CartPole.max_steps`) to values. Runs with a higher priority are trained first.
        """
        body = _run_body(config, overrides) | _without_none({"name": name, "tags": list(tags), "priority": priority})
        return self._read(Run, self._post("/v1/runs", body, idempotency_key))

    def plan_run(
        self,
        config: Config,
        *,
        overrides: Mapping[str, Any] | None = None,
        name: str | None = None,
        tags: Sequence[str] = (),
        priority: int = 0,
    ) -> PlannedRun:
        """Check what `create_run` would queue, without queuing it; returns the resolved configuration."""
        body = _run_body(config, overrides) | _without_none({"name": name, "tags": list(tags), "priority": priority})
        return self._read(PlannedRun, self._post("/v1/runs", body | {"validate_only": True}))

    def get_run(self, run: str) -> Run:
        """Return a run by its id, or the newest run of a name."""
        return self._read(Run, self._get(f"/v1/runs/{_part(run)}"))

    def list_runs(self, filter: str = "", order_by: str = "", limit: int | None = None) -> Iterator[Run]:  # noqa: A002
        """Iterate over runs, newest first unless `order_by` says otherwise. Pages are fetched as needed."""
        parameters = {"filter": filter, "order_by": order_by}
        return self._items(Run, "/v1/runs", "runs", parameters, limit)

    def stop(self, run: str) -> Run:
        """Ask a run to end with a final checkpoint and its models."""
        return self._read(Run, self._post(f"/v1/runs/{_part(run)}:stop"))

    def cancel(self, run: str) -> Run:
        """Ask a run to end at once, without a checkpoint."""
        return self._read(Run, self._post(f"/v1/runs/{_part(run)}:cancel"))

    def wait(self, run: str, states: Sequence[str] = ("terminal",), timeout: float | None = None) -> Run:
        """Block until a run is in one of `states` (`terminal` stands for all final ones) or has ended, and return it.

        Bears with a server that is away for up to a minute. `timeout` is in seconds; raises WaitTimedOut after it.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        wanted = {name for state in states for name in (TERMINAL_STATES if state == "terminal" else {state})}
        patience = _Patience()
        while True:
            left = LONG_POLL_SECONDS if deadline is None else deadline - time.monotonic()
            parameters = {"wait": ",".join(states), "timeout": f"{max(0.0, min(left, LONG_POLL_SECONDS)):.3f}"}
            try:
                record = self._read(Run, self._get(f"/v1/runs/{_part(run)}", parameters))
            except (ServerUnreachable, Busy) as error:
                patience.bear(error)
                continue
            patience.reset()
            if record.state in wanted or record.state in TERMINAL_STATES:
                return record
            if deadline is not None and time.monotonic() >= deadline:
                assert timeout is not None
                raise WaitTimedOut(record, timeout)

    def attempts(self, run: str) -> list[Attempt]:
        """Return all attempts of a run, oldest first."""
        return self._all(Attempt, self._get(f"/v1/runs/{_part(run)}/attempts"), "attempts")

    # Environment parameters

    def environment_parameters(self, run: str) -> EnvironmentParameters:
        """Return where each environment parameter of a run is in its lessons, and what it waits for."""
        return self._read(EnvironmentParameters, self._get(f"/v1/runs/{_part(run)}/environment_parameters"))

    def set_lesson(self, run: str, parameter: str, lesson: int | str) -> EnvironmentParameters:
        """Begin another lesson of a parameter, by its name or its number from 1, while the run goes on.

        Like `set_parameter`, this returns at once; the event `lesson_changed` says when the trainer has done it.
        """
        return self._change_parameter(run, parameter, {"lesson": lesson})

    def set_parameter(self, run: str, parameter: str, value: float | Mapping[str, Any]) -> EnvironmentParameters:
        """Give the present lesson of a parameter another value, a number or a sampler, while the run goes on."""
        return self._change_parameter(run, parameter, {"value": value})

    def _change_parameter(self, run: str, parameter: str, change: Mapping[str, Any]) -> EnvironmentParameters:
        path = f"/v1/runs/{_part(run)}/environment_parameters"
        return self._read(EnvironmentParameters, self._patch(path, {"parameters": {parameter: change}}))

    # Events

    def list_events(self, run: str, after: int = 0) -> Iterator[Event]:
        """Iterate over the events that exist now, those with a sequence number above `after`."""
        while True:
            page = self._get(f"/v1/runs/{_part(run)}/events", {"after_seq": str(after)})
            yield from self._all(Event, page, "events")
            if page.get("next_after_seq") is None:
                return
            after = page["next_after_seq"]

    def follow_events(self, run: str, after: int = 0) -> Iterator[Event]:
        """Iterate over events as they happen, from the one after `after` to the run's last.

        Reconnects where a connection breaks, and goes on exactly after the last event it gave out.
        """
        patience = _Patience()
        while True:
            try:
                for event in self._stream_once(run, after):
                    if event is None:
                        return
                    patience.reset()
                    after = event.seq
                    yield event
            except (ServerUnreachable, Busy) as error:
                patience.bear(error)

    def _stream_once(self, run: str, after: int) -> Iterator[Event | None]:
        """Yield events of one connection, and None where the server says that the run has ended."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        limits = httpx.Timeout(self._http.timeout.connect, read=STREAM_SILENCE_SECONDS)
        path = f"/v1/runs/{_part(run)}/events:stream"
        try:
            with self._http.stream("GET", path, headers=headers, timeout=limits) as answer:
                if answer.status_code == httpx.codes.NO_CONTENT:
                    yield None
                    return
                _raise_for_problem(answer, self.server)
                for kind, data in _server_sent(answer.iter_lines()):
                    if kind == "end":
                        yield None
                        return
                    yield self._read(Event, json.loads(data))
        except httpx.TransportError as error:
            raise ServerUnreachable(self.server, _reason(error)) from error
        raise ServerUnreachable(self.server, "the event stream ended early")

    # Metrics

    def metrics(self, run: str) -> list[Metric]:
        """Return the newest value of every metric of a run."""
        return self._all(Metric, self._get(f"/v1/runs/{_part(run)}/metrics"), "metrics")

    def series(
        self, run: str, key: str, behavior: str | None = None, points: int = 500, after_step: int | None = None
    ) -> list[Series]:
        """Return a metric over time, one series per behavior, down-sampled by the server to at most `points` each.

        With `after_step` nothing is thinned: they are the first `points` (at most 5000) points beyond that step.
        """
        parameters = {"key": key, "points": str(points)} | ({} if behavior is None else {"behavior": behavior})
        parameters |= {} if after_step is None else {"after_step": str(after_step)}
        answer = self._get(f"/v1/runs/{_part(run)}/metrics/series", parameters)
        return self._all(Series, answer, "series")

    # Checkpoints

    def checkpoints(self, run: str) -> list[Checkpoint]:
        """Return a run's checkpoints, newest first."""
        return list(self._items(Checkpoint, f"/v1/runs/{_part(run)}/checkpoints", "checkpoints"))

    def get_checkpoint(self, run: str, checkpoint: str = "latest") -> Checkpoint:
        """Return one checkpoint by its id, or the `latest`."""
        return self._read(Checkpoint, self._get(f"/v1/runs/{_part(run)}/checkpoints/{_part(checkpoint)}"))

    def download(self, run: str, checkpoint: str, name: str, target: Path) -> Path:
        """Download one file of a checkpoint to `target` and return it.

        The checksum is verified first: `target` is either the complete file or what it was before.
        """
        path = f"/v1/runs/{_part(run)}/checkpoints/{_part(checkpoint)}/files/{_part(name)}"
        return self._download(path, name, target)

    def upload_checkpoint(
        self, file: Path, *, name: str | None = None, behavior: str | None = None, idempotency_key: str | None = None
    ) -> UploadedCheckpoint:
        """Store a `checkpoint.pt` of ML-Agents, for configurations to name its id in `initialize_from`.

        `behavior` is a note for people: which one it was trained for.
        """
        parameters = _without_none({"name": name, "behavior": behavior})
        return self._read(UploadedCheckpoint, self._upload("/v1/checkpoints", file, parameters, idempotency_key))

    def list_uploaded_checkpoints(
        self,
        filter: str = "",  # noqa: A002
        order_by: str = "",
        limit: int | None = None,
    ) -> Iterator[UploadedCheckpoint]:
        """Iterate over uploaded checkpoints, newest first unless `order_by` says otherwise."""
        parameters = {"filter": filter, "order_by": order_by}
        return self._items(UploadedCheckpoint, "/v1/checkpoints", "checkpoints", parameters, limit)

    def get_uploaded_checkpoint(self, checkpoint: str) -> UploadedCheckpoint:
        """Return one uploaded checkpoint."""
        return self._read(UploadedCheckpoint, self._get(f"/v1/checkpoints/{_part(checkpoint)}"))

    def delete_uploaded_checkpoint(self, checkpoint: str) -> None:
        """Delete an uploaded checkpoint. Refused while a run that has not ended begins with it."""
        self._delete(f"/v1/checkpoints/{_part(checkpoint)}")

    # Logs

    def logs(self, run: str) -> list[Log]:
        """Return the log files of all attempts of a run, oldest attempt first."""
        return self._all(Log, self._get(f"/v1/runs/{_part(run)}/logs"), "logs")

    def read_log(
        self, run: str, epoch: int, name: str, *, offset: int = 0, limit: int | None = None, tail: int | None = None
    ) -> LogText:
        """Read a part of a log: at most `limit` bytes from `offset`, or the last `tail` bytes."""
        parameters = {"tail": str(tail)} if tail is not None else {"offset": str(offset)}
        parameters |= {} if limit is None else {"limit": str(limit)}
        return self._read(LogText, self._get(f"/v1/runs/{_part(run)}/attempts/{epoch}/logs/{_part(name)}", parameters))

    # Simulators and workers

    def simulators(self, run: str, state: str | None = None) -> list[Simulator]:
        """Return the simulators of a run, connected and past, newest first; only those in `state` if it is given."""
        parameters = {} if state is None else {"filter": f'state = "{state}"'}
        return list(self._items(Simulator, f"/v1/runs/{_part(run)}/simulators", "simulators", parameters))

    def workers(self) -> list[Worker]:
        """Return the slots of all worker hosts."""
        return list(self._items(Worker, "/v1/workers", "workers"))

    # Configurations

    def create_config(
        self,
        name: str,
        config: Mapping[str, Any] | str,
        *,
        description: str = "",
        idempotency_key: str | None = None,
    ) -> ConfigVersion:
        """Store a configuration under a name. Storing an equal one again returns the version that exists."""
        body = {"config": config, "description": description}
        return self._read(ConfigVersion, self._post(f"/v1/configs/{_part(name)}/versions", body, idempotency_key))

    def list_configs(self) -> Iterator[ConfigSummary]:
        """Iterate over the names of stored configurations."""
        return self._items(ConfigSummary, "/v1/configs", "configs")

    def list_config_versions(self, name: str) -> Iterator[ConfigSummary]:
        """Iterate over the versions of a stored configuration, newest first."""
        return self._items(ConfigSummary, f"/v1/configs/{_part(name)}/versions", "versions")

    def get_config(self, name: str, version: int | None = None) -> ConfigVersion:
        """Return one version of a stored configuration, the newest unless `version` says another."""
        which = "latest" if version is None else str(version)
        return self._read(ConfigVersion, self._get(f"/v1/configs/{_part(name)}/versions/{which}"))

    def diff_configs(self, name: str, old: int, new: int) -> ConfigDiff:
        """Compare the resolved forms of two versions of a stored configuration."""
        parameters = {"old": str(old), "new": str(new)}
        return self._read(ConfigDiff, self._get(f"/v1/configs/{_part(name)}:diff", parameters))

    def upgrade_config(
        self,
        config: Mapping[str, Any] | str,
        *,
        curriculum: Mapping[str, Any] | str | None = None,
        sampler: Mapping[str, Any] | str | None = None,
    ) -> ConfigUpgrade:
        """Bring a configuration of an older ML-Agents into the format of today; nothing is stored.

        `curriculum` (by behavior) and `sampler` are the files that releases up to 0.16 had beside it.
        """
        body = {"config": config} | _without_none({"curriculum": curriculum, "sampler": sampler})
        return self._read(ConfigUpgrade, self._post("/v1/configs:upgrade", body))

    # Demonstrations

    def upload_demonstration(
        self, file: Path, *, name: str | None = None, idempotency_key: str | None = None
    ) -> Demonstration:
        """Store a recording: an ML-Agents `.demo` file, or a `.npz` of Ludus' own. The server reads all of it."""
        parameters = _without_none({"name": name})
        return self._read(Demonstration, self._upload("/v1/demonstrations", file, parameters, idempotency_key))

    def list_demonstrations(
        self,
        filter: str = "",  # noqa: A002
        order_by: str = "",
        limit: int | None = None,
    ) -> Iterator[Demonstration]:
        """Iterate over demonstrations, newest first unless `order_by` says otherwise."""
        parameters = {"filter": filter, "order_by": order_by}
        return self._items(Demonstration, "/v1/demonstrations", "demonstrations", parameters, limit)

    def get_demonstration(self, demonstration: str) -> Demonstration:
        """Return one demonstration with its summary."""
        return self._read(Demonstration, self._get(f"/v1/demonstrations/{_part(demonstration)}"))

    def merge_demonstrations(
        self, demonstrations: Sequence[str], *, name: str | None = None, idempotency_key: str | None = None
    ) -> Demonstration:
        """Make one demonstration of several: all their episodes, in this order."""
        body = _without_none({"demonstrations": list(demonstrations), "name": name})
        return self._read(Demonstration, self._make("/v1/demonstrations:merge", body, idempotency_key))

    def subsample_demonstration(
        self,
        demonstration: str,
        count: int,
        *,
        seed: int = 0,
        name: str | None = None,
        idempotency_key: str | None = None,
    ) -> Demonstration:
        """Make a demonstration of `count` transitions, drawn without replacement; equal seeds draw equal ones."""
        body = _without_none({"count": count, "seed": seed, "name": name})
        path = f"/v1/demonstrations/{_part(demonstration)}:subsample"
        return self._read(Demonstration, self._make(path, body, idempotency_key))

    def download_demonstration(self, demonstration: str, target: Path) -> Path:
        """Download a demonstration's file to `target` and return it; its checksum is verified first."""
        return self._download(f"/v1/demonstrations/{_part(demonstration)}/file", demonstration, target)

    def delete_demonstration(self, demonstration: str) -> None:
        """Delete a demonstration. Refused while a run that has not ended uses it."""
        self._delete(f"/v1/demonstrations/{_part(demonstration)}")

    # Ladders

    def create_ladder(
        self,
        name: str,
        *,
        description: str = "",
        initial_elo: float | None = None,
        idempotency_key: str | None = None,
    ) -> Ladder:
        """Make a ladder that runs can share: they name it in `self_play.ladder`."""
        body = _without_none({"name": name, "description": description, "initial_elo": initial_elo})
        return self._read(Ladder, self._post("/v1/ladders", body, idempotency_key))

    def list_ladders(self, filter: str = "", order_by: str = "", limit: int | None = None) -> Iterator[Ladder]:  # noqa: A002
        """Iterate over ladders, newest first unless `order_by` says otherwise."""
        return self._items(Ladder, "/v1/ladders", "ladders", {"filter": filter, "order_by": order_by}, limit)

    def get_ladder(self, ladder: str) -> Ladder:
        """Return a ladder by its id or name, or the one that a run (id or name) plays on."""
        return self._read(Ladder, self._get(f"/v1/ladders/{_part(ladder)}"))

    def delete_ladder(self, ladder: str) -> None:
        """Delete a ladder with its players and matches. Refused while a run that has not ended plays on it."""
        self._delete(f"/v1/ladders/{_part(ladder)}")

    def recompute_ladder(self, ladder: str) -> Ladder:
        """Have all ratings computed anew from the matches; `rated_through` says how far that is."""
        return self._read(Ladder, self._post(f"/v1/ladders/{_part(ladder)}:recompute"))

    def register_player(
        self,
        ladder: str,
        name: str,
        kind: str,
        *,
        checkpoint: str | None = None,
        behavior: str | None = None,
        elo: float | None = None,
        mu: float | None = None,
        sigma: float | None = None,
        fixed: bool = False,
        idempotency_key: str | None = None,
    ) -> Player:
        """Register a `scripted` or `human` player, or a `checkpoint`, whose matches are reported.

        The ratings are those that it begins with; of a `fixed` one they never change.
        """
        named = {"checkpoint_id": checkpoint, "behavior": behavior, "elo": elo, "mu": mu, "sigma": sigma}
        body = {"name": name, "kind": kind, "fixed": fixed} | _without_none(named)
        return self._read(Player, self._post(f"/v1/ladders/{_part(ladder)}/players", body, idempotency_key))

    def list_players(
        self,
        ladder: str,
        filter: str = "",  # noqa: A002
        order_by: str = "",
        limit: int | None = None,
    ) -> Iterator[Player]:
        """Iterate over a ladder's players, in the order in which they came unless `order_by` says otherwise."""
        parameters = {"filter": filter, "order_by": order_by}
        return self._items(Player, f"/v1/ladders/{_part(ladder)}/players", "players", parameters, limit)

    def list_ratings(
        self,
        ladder: str,
        filter: str = "",  # noqa: A002
        order_by: str = "",
        limit: int | None = None,
    ) -> Iterator[Rating]:
        """Iterate over a ladder's ratings, the highest Elo first unless `order_by` says otherwise."""
        parameters = {"filter": filter, "order_by": order_by}
        return self._items(Rating, f"/v1/ladders/{_part(ladder)}/ratings", "ratings", parameters, limit)

    def rating_history(self, ladder: str, players: Sequence[int] = (), points: int = 500) -> list[RatingSeries]:
        """Return players' ratings over their matches, at most `points` each; of none, the newest learning policies."""
        parameters = {"player": [str(player) for player in players], "points": str(points)}
        answer = self._get(f"/v1/ladders/{_part(ladder)}/ratings/history", parameters)
        return self._all(RatingSeries, answer, "series")

    def payoffs(self, ladder: str, players: Sequence[int] = (), limit: int = 200) -> Payoffs:
        """Return how each of some players did against each other one; of none, the newest `limit` that have played."""
        parameters = {"player": [str(player) for player in players], "limit": str(limit)}
        return self._read(Payoffs, self._get(f"/v1/ladders/{_part(ladder)}/payoffs", parameters))

    def list_matches(
        self,
        ladder: str,
        filter: str = "",  # noqa: A002
        order_by: str = "",
        limit: int | None = None,
    ) -> Iterator[Match]:
        """Iterate over a ladder's matches, newest first; superseded ones only with `superseded = true` as `filter`."""
        parameters = {"filter": filter, "order_by": order_by}
        return self._items(Match, f"/v1/ladders/{_part(ladder)}/matches", "matches", parameters, limit)

    def report_match(
        self,
        ladder: str,
        players: Sequence[int | str],
        *,
        outcome: str | None = None,
        scores: Sequence[float] | None = None,
        teams: Sequence[int] | None = None,
        at: datetime | None = None,
        truncated: bool = False,
        idempotency_key: str | None = None,
    ) -> Match:
        """Enter a match that was played elsewhere, by the numbers or names of its players.

        Either `outcome` says how the first one did (`win`, `draw`, `loss`), or `scores` how each did: the higher, the
        better. Repeating it with the same `idempotency_key` enters it once.
        """
        seats: list[dict[str, Any]] = [
            {"player": player, "team": index if teams is None else teams[index]} for index, player in enumerate(players)
        ]
        if scores is not None:
            for seat, score in zip(seats, scores, strict=True):
                seat["score"] = score
        moment = None if at is None else at.isoformat()
        body = {"seats": seats, "truncated": truncated} | _without_none({"outcome": outcome, "at": moment})
        return self._read(Match, self._post(f"/v1/ladders/{_part(ladder)}/matches", body, idempotency_key))

    # The server itself

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

    # Plumbing

    def _items(
        self,
        kind: type[Record],
        path: str,
        field: str,
        parameters: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> Iterator[Record]:
        token = ""
        left = limit
        while left is None or left > 0:
            query = {key: value for key, value in (parameters or {}).items() if value}
            query |= {"page_token": token} if token else {}
            query |= {} if left is None else {"page_size": str(min(left, 1000))}
            page = self._get(path, query)
            items = self._all(kind, page, field)
            yield from items
            token = page.get("next_page_token", "")
            if not token:
                return
            left = None if left is None else left - len(items)

    def _all(self, kind: type[Record], answer: Mapping[str, Any], field: str) -> list[Record]:
        return [self._read(kind, item) for item in answer.get(field, ())]

    def _read(self, kind: type[Record], data: Any) -> Record:
        try:
            return read_record(kind, data)
        except ValueError as error:
            raise ServerUnreachable(self.server, f"it does not answer as a Ludus server: {error}") from error

    def _get(self, path: str, parameters: Mapping[str, str | Sequence[str]] | None = None) -> dict[str, Any]:
        seconds = self._http.timeout.read
        announced = (parameters or {}).get("timeout", "0")
        waits = float(announced) if isinstance(announced, str) else 0.0
        timeout = httpx.Timeout(self._http.timeout.connect, read=None if seconds is None else seconds + waits)
        return self._send(self._http.build_request("GET", path, params=parameters, timeout=timeout))

    def _post(self, path: str, body: Mapping[str, Any] | None = None, key: str | None = None) -> dict[str, Any]:
        headers = {"Idempotency-Key": key or str(uuid.uuid4())}
        return self._send(self._http.build_request("POST", path, json=body, headers=headers))

    def _patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        return self._send(self._http.build_request("PATCH", path, json=body, headers=headers))

    def _make(self, path: str, body: Mapping[str, Any], key: str | None) -> dict[str, Any]:
        """Post what takes the server a while."""
        headers = {"Idempotency-Key": key or str(uuid.uuid4())}
        return self._send(self._http.build_request("POST", path, json=body, headers=headers, timeout=self._patient()))

    def _upload(self, path: str, file: Path, parameters: Mapping[str, str], key: str | None) -> dict[str, Any]:
        """Post a file as it is, streamed."""
        headers = {"Idempotency-Key": key or str(uuid.uuid4()), "Content-Type": "application/octet-stream"}
        with file.open("rb") as content:
            request = self._http.build_request(
                "POST", path, params=parameters, content=content, headers=headers, timeout=self._patient()
            )
            return self._send(request)

    def _delete(self, path: str) -> None:
        try:
            answer = self._http.send(self._http.build_request("DELETE", path))
        except httpx.TransportError as error:
            raise ServerUnreachable(self.server, _reason(error)) from error
        _raise_for_problem(answer, self.server)

    def _patient(self) -> httpx.Timeout:
        """Return time-outs for a request that the server works on before it answers."""
        given = self._http.timeout
        read = None if given.read is None else max(given.read, WORK_SECONDS)
        return httpx.Timeout(given.connect, read=read, write=given.write)

    def _download(self, path: str, name: str, target: Path) -> Path:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file, self._http.stream("GET", path) as answer:
                _raise_for_problem(answer, self.server)
                digest = hashlib.sha256()
                for chunk in answer.iter_bytes():
                    digest.update(chunk)
                    file.write(chunk)
                expected = answer.headers.get("etag", "").strip('"')
                if digest.hexdigest() != expected:
                    raise DownloadDamaged(name, expected, digest.hexdigest())
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(target)
        except httpx.TransportError as error:
            raise ServerUnreachable(self.server, _reason(error)) from error
        finally:
            Path(temporary).unlink(missing_ok=True)
        return target

    def _send(self, request: httpx.Request) -> dict[str, Any]:
        try:
            answer = self._http.send(request)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise ServerUnreachable(self.server, _reason(error)) from error
        _raise_for_problem(answer, self.server)
        try:
            data = answer.json()
        except ValueError:
            data = None
        if not isinstance(data, dict):
            raise ServerUnreachable(self.server, "it does not answer as a Ludus server")
        return data


class _Patience:
    """Waits with growing pauses between attempts, and gives up after PATIENCE_SECONDS without a success."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._since: float | None = None
        self._pause = 0.2

    def bear(self, error: ServerUnreachable | Busy) -> None:
        now = time.monotonic()
        self._since = self._since or now
        if now - self._since > PATIENCE_SECONDS:
            raise error
        announced = error.retry_after if isinstance(error, Busy) else None
        time.sleep(self._pause if announced is None else announced)
        self._pause = min(self._pause * 2, 2.0)


def _run_body(config: Config, overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    if isinstance(config, StoredConfig):
        source = _without_none({"config_name": config.name, "config_version": config.version})
    else:
        source = {"config": config}
    return {**source, "overrides": dict(overrides or {})}


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _part(text: str) -> str:
    return quote(text, safe="")


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _raise_for_problem(answer: httpx.Response, server: str) -> None:
    if answer.is_success:
        return
    try:
        problem = json.loads(answer.read())
        code, detail = problem["code"], problem["detail"]
    except (ValueError, KeyError, TypeError) as error:
        raise ServerUnreachable(server, f"it answers {answer.status_code}, and not as a Ludus server") from error
    kind: type[ProblemAnswer] = {404: NotFound, 429: Busy, 503: Busy}.get(answer.status_code, ProblemAnswer)
    errors = [read_record(ProblemDetail, item) for item in problem.get("errors", [])]
    pause = answer.headers.get("retry-after", "")
    raise kind(answer.status_code, code, detail, errors, float(pause) if pause.isdecimal() else None)


def _server_sent(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Parse a stream of server-sent events into (event, data). Comments are pings and say nothing."""
    kind, data = "message", list[str]()
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield kind, "\n".join(data)
            kind, data = "message", []
        elif name == "event":
            kind = value
        elif name == "data":
            data.append(value)
