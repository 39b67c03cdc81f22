"""The client: a connection to one server, and its resources. Runs and events have modules of their own."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from enum import Enum
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypedDict, Unpack

import httpx2

from ludus import schemas
from ludus.client.backoff import ServerBackoff
from ludus.client.errors import Busy, NotSaved, ServerUnreachable
from ludus.client.events import Events
from ludus.client.runs import Runs
from ludus.client.started_simulators import SimulatorOptions, StartedSimulators
from ludus.client.transport import Resource, Transport, header_value, public_authorities, route, texts, without_none
from ludus.json_values import JsonObject
from ludus.paths import AnyPath
from ludus.protocol.credentials import CLIENT_TOKEN, credential
from ludus.protocol.proxies import proxy_of, without_password
from ludus.protocol.tls import ClientTls

DEFAULT_SERVER: Final = "http://127.0.0.1:8080"
PROJECT_HEADER: Final = "Ludus-Project"
_USE_PROXY: Final = "name another in https_proxy and http_proxy, or the server's host in no_proxy"
_USE_ADDRESS: Final = "write it as https://ludus.example.org or http://127.0.0.1:8080 into --server or LUDUS_SERVER"


class _Anything(Enum):
    """Type of ANYTHING, which `None` (no alias yet) must differ from."""

    ANYTHING = "anything"


ANYTHING: Final = _Anything.ANYTHING


class Aliases(Resource):
    """Requests about aliases."""

    def list(self, filter: str = "", order_by: str = "", limit: int | None = None) -> Iterator[schemas.Alias]:
        """Iterate over aliases, by name unless `order_by` says otherwise."""
        return self._pages(schemas.Alias, "/v1/aliases", limit, filter=filter, order_by=order_by)

    def get(self, name: str) -> schemas.Alias:
        """Return one alias, with the checkpoint that it names."""
        return self._get(schemas.Alias, route("aliases", name))

    def history(self, name: str, filter: str = "", limit: int | None = None) -> Iterator[schemas.AliasMove]:
        """Iterate over the moves of an alias, newest first; an alias that was deleted has its history, too."""
        return self._pages(schemas.AliasMove, route("aliases", name, "history"), limit, field="moves", filter=filter)

    def set(
        self, name: str, checkpoint: str, *, expected: str | Literal[_Anything.ANYTHING] | None = ANYTHING
    ) -> schemas.Alias:
        """Point an alias to a checkpoint of a run; the alias is created if there is none.

        With `expected` it is moved only if it names that checkpoint now (None: only if there is no such alias yet);
        otherwise a `ProblemAnswer` with the code `alias_moved` is raised.
        """
        body = {"checkpoint_id": checkpoint} | ({} if expected is ANYTHING else {"expected": expected})
        return self._transport.put(schemas.Alias, route("aliases", name), body)

    def delete(self, name: str) -> None:
        """Remove an alias; the checkpoint stays."""
        self._transport.delete(route("aliases", name))


SAVE_POLL_SECONDS: Final = 0.5
"""Pause of `save` between two requests."""


class Checkpoints(Resource):
    """Requests about checkpoints of runs. `checkpoint` is an id, `latest` or `best`."""

    def list(self, run: str) -> Sequence[schemas.Checkpoint]:
        """Return a run's checkpoints, newest first."""
        return [*self._pages(schemas.Checkpoint, route("runs", run, "checkpoints"))]

    def get(self, run: str, checkpoint: str = "latest") -> schemas.Checkpoint:
        """Return one checkpoint."""
        return self._get(schemas.Checkpoint, route("runs", run, "checkpoints", checkpoint))

    def pin(self, run: str, checkpoint: str) -> schemas.Checkpoint:
        """Exempt a checkpoint from retention."""
        return self._post(schemas.Checkpoint, route("runs", run, "checkpoints", checkpoint) + ":pin")

    def unpin(self, run: str, checkpoint: str) -> schemas.Checkpoint:
        """Subject a checkpoint to retention again."""
        return self._post(schemas.Checkpoint, route("runs", run, "checkpoints", checkpoint) + ":unpin")

    def score(self, run: str, checkpoint: str, metric: str, value: float, *, behavior: str = "") -> schemas.Checkpoint:
        """Store a metric of an evaluation with a checkpoint; `checkpoint_settings.keep_best.metric` may name it."""
        body = {"metric": metric, "value": value, "behavior": behavior}
        return self._post(schemas.Checkpoint, route("runs", run, "checkpoints", checkpoint) + ":score", body)

    def verify(self, run: str, checkpoint: str = "latest") -> schemas.CheckpointVerified:
        """Compare the checksums of all files of a checkpoint, on the server. A damaged checkpoint is marked."""
        return self._post(
            schemas.CheckpointVerified, route("runs", run, "checkpoints", checkpoint) + ":verify", {}, slow=True
        )

    def prune(
        self, *, older_than_seconds: float | None = None, max_bytes: int | None = None, dry_run: bool = False
    ) -> schemas.Pruned:
        """Delete checkpoints of runs by age and total size; the server's settings replace limits that are None.

        The newest good checkpoint of every run stays, and the best, the pinned and the used ones.
        """
        body = without_none(older_than_seconds=older_than_seconds, max_bytes=max_bytes, dry_run=dry_run)
        return self._post(schemas.Pruned, "/v1/checkpoints:prune", body, slow=True)

    def download(self, run: str, checkpoint: str, name: str, target: AnyPath) -> Path:
        """Download one file of a checkpoint to `target` and return it.

        A download that breaks off is resumed, and the checksum is verified at the end: `target` is either the complete
        file or unchanged.
        """
        return self._transport.download(route("runs", run, "checkpoints", checkpoint, "files", name), name, target)

    def request(self, run: str) -> schemas.CheckpointRequest:
        """Ask a running run for a checkpoint now; returns at once. `save` waits for it."""
        return self._post(schemas.CheckpointRequest, route("runs", run) + ":checkpoint")

    def get_request(self, run: str, seq: int) -> schemas.CheckpointRequest:
        """Return a request for a checkpoint, with the checkpoint's id once it is stored."""
        return self._get(schemas.CheckpointRequest, route("runs", run, "checkpoint_requests", seq))

    def save(self, run: str, timeout: float | None = 60.0) -> str:
        """Ask a running run for a checkpoint now, wait until it is stored, and return its id.

        `timeout` is in seconds; None is no limit. Raises NotSaved when there is no checkpoint, or none in time.
        """
        backoff = ServerBackoff(timeout)
        request = backoff.attempt(lambda: self.request(run))
        while request.answered_at is None:
            if backoff.over:
                raise NotSaved(run, f"there is none after {timeout:g} s; the trainer still owes request {request.seq}")
            backoff.sleep(SAVE_POLL_SECONDS)
            request = backoff.persist(partial(self.get_request, request.run_id, request.seq))
        if request.checkpoint_id is None:
            raise NotSaved(run, request.problem or "the server does not say why")
        return request.checkpoint_id


class UploadedCheckpoints(Resource):
    """Requests about checkpoints that were uploaded, for configurations to name in `initialize_from`."""

    def upload(
        self, file: AnyPath, *, name: str | None = None, behavior: str | None = None, idempotency_key: str | None = None
    ) -> schemas.UploadedCheckpoint:
        """Store a `checkpoint.pt` of ML-Agents. `behavior` is a note for people: which one it was trained for."""
        parameters = without_none(name=name, behavior=behavior)
        return self._transport.upload(schemas.UploadedCheckpoint, "/v1/checkpoints", file, parameters, idempotency_key)

    def list(
        self, filter: str = "", order_by: str = "", limit: int | None = None
    ) -> Iterator[schemas.UploadedCheckpoint]:
        """Iterate over uploaded checkpoints, newest first unless `order_by` says otherwise."""
        return self._pages(schemas.UploadedCheckpoint, "/v1/checkpoints", limit, filter=filter, order_by=order_by)

    def get(self, checkpoint: str) -> schemas.UploadedCheckpoint:
        """Return one uploaded checkpoint."""
        return self._get(schemas.UploadedCheckpoint, route("checkpoints", checkpoint))

    def delete(self, checkpoint: str) -> None:
        """Delete an uploaded checkpoint. Refused while a run that has not ended begins with it."""
        self._transport.delete(route("checkpoints", checkpoint))


class Configs(Resource):
    """Requests about stored configurations."""

    def create(
        self,
        name: str,
        config: Mapping[str, object] | str,
        *,
        description: str = "",
        idempotency_key: str | None = None,
    ) -> schemas.ConfigVersion:
        """Store a configuration under a name. If its newest version is equal, that version is returned."""
        body = {"config": config, "description": description}
        return self._post(schemas.ConfigVersion, route("configs", name, "versions"), body, idempotency_key)

    def list(self) -> Iterator[schemas.ConfigSummary]:
        """Iterate over the names of stored configurations."""
        return self._pages(schemas.ConfigSummary, "/v1/configs")

    def list_versions(self, name: str) -> Iterator[schemas.ConfigSummary]:
        """Iterate over the versions of a stored configuration, newest first."""
        return self._pages(schemas.ConfigSummary, route("configs", name, "versions"))

    def get(self, name: str, version: int | None = None) -> schemas.ConfigVersion:
        """Return one version of a stored configuration; None is the newest one."""
        which = "latest" if version is None else version
        return self._get(schemas.ConfigVersion, route("configs", name, "versions", which))

    def diff(self, name: str, old: int, new: int | None = None, *, run: str | None = None) -> schemas.ConfigDiff:
        """Compare the resolved forms of two versions of a stored configuration.

        With `run` instead of `new`: a version and what this run was created with.
        """
        query = without_none(old=old, new=new, run=run)
        return self._get(schemas.ConfigDiff, route("configs", name) + ":diff", query)

    def upgrade(
        self,
        config: Mapping[str, object] | str,
        *,
        curriculum: Mapping[str, object] | str | None = None,
        sampler: Mapping[str, object] | str | None = None,
    ) -> schemas.ConfigUpgrade:
        """Convert a configuration of an older ML-Agents to the present format; nothing is stored.

        `curriculum` (by behavior) and `sampler` are the separate files of releases up to 0.16.
        """
        body = without_none(config=config, curriculum=curriculum, sampler=sampler)
        return self._post(schemas.ConfigUpgrade, "/v1/configs:upgrade", body)


class Demonstrations(Resource):
    """Requests about demonstrations."""

    def upload(
        self, file: AnyPath, *, name: str | None = None, idempotency_key: str | None = None
    ) -> schemas.Demonstration:
        """Store a recording: an ML-Agents `.demo` file, or a `.npz` of Ludus' own. The server reads all of it."""
        parameters = without_none(name=name)
        return self._transport.upload(schemas.Demonstration, "/v1/demonstrations", file, parameters, idempotency_key)

    def list(
        self, filter: str = "", order_by: str = "", limit: int | None = None
    ) -> Iterator[schemas.DemonstrationSummary]:
        """Iterate over demonstrations, newest first unless `order_by` says otherwise."""
        return self._pages(schemas.DemonstrationSummary, "/v1/demonstrations", limit, filter=filter, order_by=order_by)

    def get(self, demonstration: str) -> schemas.Demonstration:
        """Return one demonstration with its summary."""
        return self._get(schemas.Demonstration, route("demonstrations", demonstration))

    def merge(
        self, demonstrations: Sequence[str], *, name: str | None = None, idempotency_key: str | None = None
    ) -> schemas.Demonstration:
        """Create one demonstration from all episodes of several, in their order."""
        body = without_none(demonstrations=texts(demonstrations), name=name)
        return self._post(schemas.Demonstration, "/v1/demonstrations:merge", body, idempotency_key, slow=True)

    def subsample(
        self,
        demonstration: str,
        count: int | None = None,
        *,
        episodes: int | None = None,
        every: int | None = None,
        seed: int | None = None,
        name: str | None = None,
        idempotency_key: str | None = None,
    ) -> schemas.Demonstration:
        """Create a demonstration from some `episodes` of another one: `count` transitions of them, or every `every`-th.

        Without a seed the first episodes are taken, and every n-th transition from an episode's first one on; with one
        they are drawn. `count` transitions are always drawn. Equal seeds draw equally.
        """
        body = without_none(count=count, episodes=episodes, every=every, seed=seed, name=name)
        path = route("demonstrations", demonstration) + ":subsample"
        return self._post(schemas.Demonstration, path, body, idempotency_key, slow=True)

    def download(self, demonstration: str, target: AnyPath) -> Path:
        """Download a demonstration's file to `target` and return it; its checksum is verified first."""
        path = route("demonstrations", demonstration, "file")
        return self._transport.download(path, demonstration, target)

    def delete(self, demonstration: str) -> None:
        """Delete a demonstration. Refused while a run that has not ended uses it."""
        self._transport.delete(route("demonstrations", demonstration))


FRAMES: Final = 200
"""Messages of a recording that are read at once."""


class Recordings(Resource):
    """Requests about recordings of simulators' sessions."""

    def list(self, run: str, limit: int | None = None) -> Iterator[schemas.Recording]:
        """Iterate over the recordings of a run, the newest first."""
        return self._pages(schemas.Recording, route("runs", run, "recordings"), limit)

    def frames(
        self, run: str, recording: str, start: int = 1, limit: int | None = None
    ) -> Iterator[schemas.RecordedFrame]:
        """Iterate over the messages of a recording in numbers and words, from the number `start` on."""
        path, left = route("runs", run, "recordings", recording, "frames"), limit
        while left is None or left > 0:
            size = FRAMES if left is None else min(left, FRAMES)
            part = self._get(schemas.RecordedFrames, path, {"start": start, "limit": size})
            yield from part.frames
            if part.next_start is None:
                return
            start, left = part.next_start, None if left is None else left - size

    def download(self, run: str, recording: str, target: AnyPath) -> Path:
        """Download a recording to `target` and return it; its checksum is verified first."""
        path = route("runs", run, "recordings", recording, "file")
        return self._transport.download(path, recording, target)

    def delete(self, run: str, recording: str) -> None:
        """Delete a recording."""
        self._transport.delete(route("runs", run, "recordings", recording))


class EnvironmentParameters(Resource):
    """Requests about environment parameters."""

    def get(self, run: str) -> schemas.EnvironmentParameters:
        """Return each environment parameter of a run: its lesson, its value, and when the next lesson begins."""
        return self._get(schemas.EnvironmentParameters, route("runs", run, "environment_parameters"))

    def set_lesson(self, run: str, parameter: str, lesson: int | str) -> schemas.EnvironmentParameters:
        """Begin another lesson of a parameter, by its name or its number from 1, while the run continues.

        Like `set_value`, this returns at once; the event `lesson_changed` says when the trainer has done it.
        """
        return self._change(run, parameter, {"lesson": lesson})

    def set_value(self, run: str, parameter: str, value: float | Mapping[str, object]) -> schemas.EnvironmentParameters:
        """Give the present lesson of a parameter another value, a number or a sampler, while the run continues."""
        return self._change(run, parameter, {"value": value})

    def _change(self, run: str, parameter: str, change: Mapping[str, object]) -> schemas.EnvironmentParameters:
        return self._transport.patch(
            schemas.EnvironmentParameters,
            route("runs", run, "environment_parameters"),
            {"parameters": {parameter: change}},
        )


class Experiments(Resource):
    """Requests about experiments. `experiment` is an id or a name."""

    def create(self, document: JsonObject, *, idempotency_key: str | None = None) -> schemas.Experiment:
        """Create an experiment: `name`, `config` or `config_name`, what varies, the budget (docs/experiments.md)."""
        return self._post(schemas.Experiment, "/v1/experiments", document, idempotency_key)

    def plan(self, document: JsonObject) -> schemas.PlannedExperiment:
        """Check an experiment; return what would be created, with every default filled in."""
        return self._post(schemas.PlannedExperiment, "/v1/experiments", {**document, "validate_only": True})

    def list(self, filter: str = "", order_by: str = "", limit: int | None = None) -> Iterator[schemas.Experiment]:
        """Iterate over experiments, newest first unless `order_by` says otherwise."""
        return self._pages(schemas.Experiment, "/v1/experiments", limit, filter=filter, order_by=order_by)

    def get(self, experiment: str) -> schemas.Experiment:
        """Return an experiment, with its best trial so far."""
        return self._get(schemas.Experiment, route("experiments", experiment))

    def update(
        self,
        experiment: str,
        *,
        budget: JsonObject | None = None,
        parallelism: int | None = None,
        objective: JsonObject | None = None,
        description: str | None = None,
    ) -> schemas.Experiment:
        """Change an experiment: a budget replaces the former one; the objective changes while no trial has a value."""
        changes = without_none(budget=budget, parallelism=parallelism, objective=objective, description=description)
        return self._transport.patch(schemas.Experiment, route("experiments", experiment), changes)

    def pause(self, experiment: str) -> schemas.Experiment:
        """Begin no more runs, and pause those that train."""
        return self._post(schemas.Experiment, route("experiments", experiment) + ":pause")

    def resume(self, experiment: str) -> schemas.Experiment:
        """Go on with an experiment that was paused or stopped, or has failed."""
        return self._post(schemas.Experiment, route("experiments", experiment) + ":resume")

    def retry(self, experiment: str, trials: Sequence[int] | None = None) -> schemas.Experiment:
        """Try trials again that were stopped (default: all of these) or have failed. One that has ended goes on."""
        body = without_none(trials=None if trials is None else [*trials])
        return self._post(schemas.Experiment, route("experiments", experiment) + ":retry", body)

    def stop(self, experiment: str) -> schemas.Experiment:
        """End an experiment and stop its runs. One that has ended stays as it is."""
        return self._post(schemas.Experiment, route("experiments", experiment) + ":stop")

    def delete(self, experiment: str) -> None:
        """Delete an experiment that has ended; its runs stay."""
        self._transport.delete(route("experiments", experiment))

    def trials(
        self, experiment: str, filter: str = "", order_by: str = "", limit: int | None = None
    ) -> Iterator[schemas.Trial]:
        """Iterate over trials by number, or by value: `order_by="value desc"`."""
        return self._pages(
            schemas.Trial, route("experiments", experiment, "trials"), limit, filter=filter, order_by=order_by
        )

    def config(self, experiment: str, trial: int) -> JsonObject:
        """Return the configuration of a trial, as a document without a seed."""
        return self._get(schemas.TrialConfig, route("experiments", experiment, "trials", trial, "config")).config

    def importance(self, experiment: str) -> schemas.Importance:
        """Return how much of the differences between complete trials each key explains."""
        return self._get(schemas.Importance, route("experiments", experiment, "importance"))


class Ladders(Resource):
    """Requests about ladders. `ladder` is an id or a name, or the id or name of a run that plays on it."""

    def create(
        self, name: str, *, description: str = "", initial_elo: float | None = None, idempotency_key: str | None = None
    ) -> schemas.Ladder:
        """Create a ladder that runs can share: they name it in `self_play.ladder`."""
        body = without_none(name=name, description=description, initial_elo=initial_elo)
        return self._post(schemas.Ladder, "/v1/ladders", body, idempotency_key)

    def list(self, filter: str = "", order_by: str = "", limit: int | None = None) -> Iterator[schemas.Ladder]:
        """Iterate over ladders, newest first unless `order_by` says otherwise."""
        return self._pages(schemas.Ladder, "/v1/ladders", limit, filter=filter, order_by=order_by)

    def get(self, ladder: str) -> schemas.Ladder:
        """Return a ladder."""
        return self._get(schemas.Ladder, route("ladders", ladder))

    def delete(self, ladder: str) -> None:
        """Delete a ladder with its players and matches. Refused while a run that has not ended plays on it."""
        self._transport.delete(route("ladders", ladder))

    def recompute(self, ladder: str) -> schemas.Ladder:
        """Compute all ratings again from the matches; `rated_through` is the progress."""
        return self._post(schemas.Ladder, route("ladders", ladder) + ":recompute")

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
    ) -> schemas.Player:
        """Register a `scripted` or `human` player, or a `checkpoint`, whose matches are reported.

        `elo`, `mu` and `sigma` are its initial ratings; those of a `fixed` player never change.
        """
        ratings = without_none(checkpoint_id=checkpoint, behavior=behavior, elo=elo, mu=mu, sigma=sigma)
        body = {"name": name, "kind": kind, "fixed": fixed, **ratings}
        return self._post(schemas.Player, route("ladders", ladder, "players"), body, idempotency_key)

    def list_players(
        self, ladder: str, filter: str = "", order_by: str = "", limit: int | None = None
    ) -> Iterator[schemas.Player]:
        """Iterate over a ladder's players, in the order of registration unless `order_by` says otherwise."""
        return self._pages(schemas.Player, route("ladders", ladder, "players"), limit, filter=filter, order_by=order_by)

    def list_ratings(
        self, ladder: str, filter: str = "", order_by: str = "", limit: int | None = None
    ) -> Iterator[schemas.Rating]:
        """Iterate over a ladder's ratings, the highest Elo first unless `order_by` says otherwise."""
        return self._pages(schemas.Rating, route("ladders", ladder, "ratings"), limit, filter=filter, order_by=order_by)

    def rating_history(
        self, ladder: str, players: Sequence[int] = (), points: int = 500
    ) -> Sequence[schemas.RatingSeries]:
        """Return the ratings of players over their matches, at most `points` of each.

        Without `players` they are the newest policies that learn.
        """
        parameters = {"players": [*players], "points": points}
        answer = self._transport.document(route("ladders", ladder, "ratings", "history"), parameters)
        return self._transport.read_all(schemas.RatingSeries, answer, "series")

    def payoffs(
        self, ladder: str, players: Sequence[int] = (), limit: int = 200, *, met: bool = True
    ) -> schemas.Payoffs:
        """Return the results of each of some players against each other one.

        Without `players` they are the newest `limit` that have played against one of the others, or without `met` the
        newest that have played at all.
        """
        parameters = {"players": [*players], "limit": limit, "met": met}
        return self._get(schemas.Payoffs, route("ladders", ladder, "payoffs"), parameters)

    def list_matches(
        self, ladder: str, filter: str = "", order_by: str = "", limit: int | None = None
    ) -> Iterator[schemas.Match]:
        """Iterate over a ladder's matches, newest first; superseded ones only with `superseded = true` as `filter`."""
        return self._pages(schemas.Match, route("ladders", ladder, "matches"), limit, filter=filter, order_by=order_by)

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
    ) -> schemas.Match:
        """Store a match that was played elsewhere, by the numbers or names of its players.

        The result is either `outcome`, that of the first player (`win`, `draw`, `loss`), or `scores`, one per player:
        higher is better. Repeating the call with the same `idempotency_key` stores one match.
        """
        participants: list[dict[str, object]] = [
            {"player": player, "team": index if teams is None else teams[index]} for index, player in enumerate(players)
        ]
        if scores is not None:
            for participant, score in zip(participants, scores, strict=True):
                participant["score"] = score
        body = without_none(
            participants=participants, truncated=truncated, outcome=outcome, at=None if at is None else at.isoformat()
        )
        return self._post(schemas.Match, route("ladders", ladder, "matches"), body, idempotency_key)


class Logs(Resource):
    """Requests about logs."""

    def list(self, run: str) -> Sequence[schemas.Log]:
        """Return the log files of all attempts of a run, oldest attempt first."""
        return [*self._pages(schemas.Log, route("runs", run, "logs"))]

    def read(
        self, run: str, attempt: int, name: str, *, offset: int = 0, limit: int | None = None, tail: int | None = None
    ) -> schemas.LogText:
        """Read a part of a log: at most `limit` bytes from `offset`, or the last `tail` bytes."""
        part = without_none(tail=tail, limit=limit) | ({"offset": offset} if tail is None else {})
        return self._get(schemas.LogText, route("runs", run, "attempts", attempt, "logs", name), part)

    def download(self, run: str, attempt: int, name: str, target: AnyPath) -> Path:
        """Download a log as it is now to `target` and return it; the download restarts if the log grows meanwhile."""
        return self._transport.download(route("runs", run, "attempts", attempt, "logs", name, "file"), name, target)


FRAME: Final = ("run_id", "behavior", "key", "step", "time", "value", "minimum", "maximum", "count", "smoothed")
"""Columns of a DataFrame of series."""


_THINNED: Final = 20
"""Entries of a thinned series for each point of its tail: of 1,000,000 points the last five take four requests."""


class CurveOptions(TypedDict, total=False):
    """Further parameters of series. One that is None has the server's default."""

    from_step: int | None
    """Only points from this step on."""
    to_step: int | None
    """Only points up to this step."""
    smoothing: float | None
    """The weight of the past in `Series.smoothed`, 0 to below 1."""
    with_predecessors: bool | None
    """Whether the series of a run that continues others begins with their points, up to the checkpoints that were
    taken over."""


class Metrics(Resource):
    """Requests about metrics."""

    def list(self, run: str) -> Sequence[schemas.Metric]:
        """Return the newest value of every metric of a run."""
        return [*self._pages(schemas.Metric, route("runs", run, "metrics"))]

    def series(
        self,
        run: str,
        key: str,
        behavior: str | None = None,
        points: int = 500,
        after_step: int | None = None,
        **curve: Unpack[CurveOptions],
    ) -> Sequence[schemas.Series]:
        """Return a metric over time, one series per behavior, down-sampled by the server to at most `points` each.

        With `after_step` nothing is down-sampled: the result is the first `points` (at most 5000) points beyond it.
        """
        parameters = without_none(key=key, points=points, behavior=behavior, after_step=after_step, **curve)
        return self._transport.read_all(
            schemas.Series, self._transport.document(route("runs", run, "metrics", "series"), parameters), "series"
        )

    def compare(
        self,
        runs: Sequence[str],
        keys: Sequence[str],
        behavior: str | None = None,
        points: int = 300,
        common_steps: bool = True,
        **curve: Unpack[CurveOptions],
    ) -> Sequence[schemas.Series]:
        """Return metrics of several runs over time, at most 200 series, each down-sampled to at most `points`.

        With `common_steps`, entry i of every series covers the same steps, and is None in those that have no point
        there. A run that has not recorded a metric has no series of it.
        """
        parameters = without_none(
            runs=texts(runs), keys=texts(keys), behavior=behavior, points=points, common_steps=common_steps, **curve
        )
        return self._transport.read_all(schemas.Series, self._transport.document("/v1/series", parameters), "series")

    def tail(self, run: str, key: str, behavior: str | None = None, points: int = 5) -> Sequence[schemas.Series]:
        """Return the last points of a metric as recorded, 1 to 250 of them or as many as there are, for each behavior.

        Each entry of a series is one point; a value that is not a number is None. Where the run has not recorded the
        metric the result is empty.
        """
        tails = []
        for series in self.series(run, key, behavior, _THINNED * points):
            end = series
            while any(count > 1 for count in end.counts[-points:]):  # thinned: read on inside of its last entries
                first = end.steps[-points - 1] + 1
                (end,) = self.series(run, key, series.behavior, _THINNED * points, from_step=first)
            columns = ("steps", "times", "values", "minima", "maxima", "counts")
            last = {name: getattr(end, name)[-points:] for name in columns}
            tails.append(replace(end, total=len(last["steps"]), **last))
        return tails

    def frame(
        self,
        runs: Sequence[str],
        keys: Sequence[str],
        behavior: str | None = None,
        points: int = 500,
        **curve: Unpack[CurveOptions],
    ) -> Any:
        """Return metrics of several runs over time as a `pandas.DataFrame`, with a row for each entry of each series.

        The columns are those of the Parquet file (run_id, behavior, key, step, time, value), then minimum, maximum and
        count of the points behind an entry, of which each series has at most `points`, and smoothed. Raises
        ModuleNotFoundError where pandas is not installed.
        """
        try:
            import pandas as pd  # noqa: PLC0415  an optional library, so that the return type is Any
        except ModuleNotFoundError as error:
            message = "a DataFrame needs pandas: pip install pandas (`series` and `compare` need nothing)"
            raise ModuleNotFoundError(message, name=error.name) from None
        columns: dict[str, list[object]] = {name: [] for name in FRAME}
        for series in self.compare(runs, keys, behavior, points, common_steps=False, **curve):
            for name, value in (("run_id", series.run_id), ("behavior", series.behavior), ("key", series.key)):
                columns[name] += [value] * len(series.steps)
            smoothed = series.smoothed or [None] * len(series.steps)
            points_of = (
                series.steps,
                series.times,
                series.values,
                series.minima,
                series.maxima,
                series.counts,
                smoothed,
            )
            for name, values in zip(FRAME[3:], points_of, strict=True):
                columns[name] += values
        frame = pd.DataFrame(columns)
        frame["time"] = pd.to_datetime(frame["time"], utc=True)
        return frame

    def download(self, run: str, target: AnyPath) -> Path:
        """Download all metrics of a run as a Parquet file to `target` and return it; pandas and polars read it.

        It has a row for each point: run_id, attempt, behavior, key, step, time and value. The download restarts if the
        run records new points meanwhile. Those of a run that it continues are in that run's own file.
        """
        return self._transport.download(route("runs", run, "metrics.parquet"), "metrics.parquet", target)


class Presets(Resource):
    """Requests about presets."""

    def list(self) -> Sequence[schemas.PresetSummary]:
        """Return all presets, by name."""
        return [*self._pages(schemas.PresetSummary, "/v1/presets")]

    def get(self, name: str) -> schemas.Preset:
        """Return one preset. Its `source` is a configuration for `runs.create`."""
        return self._get(schemas.Preset, route("presets", name))


class Queues(Resource):
    """Requests about the queue."""

    def get(self, demand: str | None = None, pool: str | None = None) -> schemas.Queue:
        """Return the runs of all projects that wait for a worker; only those of a demand (`1;a100`) or a pool."""
        return self._get(schemas.Queue, "/v1/queue", without_none(demand=demand, pool=pool))


class Simulators(Resource):
    """Requests about simulators, and simulators on this machine."""

    def start(
        self,
        run: str,
        game: str,
        *,
        gateway: str | None = None,
        show: Callable[[str], object] | None = None,
        **options: Unpack[SimulatorOptions],
    ) -> StartedSimulators:
        """Start `ludus simulate` on this machine: `count` processes with `envs` games each, until the run's end.

        `game` is that of the command (`gymnasium:CartPole-v1`, `python:maze.py`), `arguments` are its `--env-arg`s;
        `gateway` is by default that of the client. `show` is called, on a thread, with each line that they print.
        They end with the block if they are used as a context, and with this program at the latest.
        """
        gateway = gateway or self._transport.gateway
        return StartedSimulators(game, run, gateway, self._transport.credential, show, **options)

    def list(self, run: str, state: str | None = None) -> Sequence[schemas.Simulator]:
        """Return the simulators of a run, connected and past, newest first; only those in `state` if it is given."""
        condition = "" if state is None else f'state = "{state}"'
        return [*self._pages(schemas.Simulator, route("runs", run, "simulators"), filter=condition)]

    def list_all(
        self, filter: str = "", order_by: str = "", limit: int | None = None
    ) -> Iterator[schemas.SimulatorListed]:
        """Iterate over the simulators of all runs of the project, newest first unless `order_by` says otherwise.

        `order_by="left_at desc"` has those that left.
        """
        return self._pages(schemas.SimulatorListed, "/v1/simulators", limit, filter=filter, order_by=order_by)


class Tokens(Resource):
    """Requests about tokens."""

    def create(
        self,
        name: str,
        scopes: Sequence[str],
        *,
        project: str | None = None,
        run: str | None = None,
        ladder: str | None = None,
        expires_in_seconds: float | None = None,
        idempotency_key: str | None = None,
    ) -> schemas.NewToken:
        """Create a token with scopes of `read`, `run`, `admin` and `simulate`. Only this answer has its secret.

        `project` is this client's by default (`*`: all). `run` binds a token that has only `simulate` and `read` to one
        run, `ladder` one that has only `read` to one ladder.
        """
        body = without_none(
            name=name,
            scopes=texts(scopes),
            project=project,
            run=run,
            ladder=ladder,
            expires_in_seconds=expires_in_seconds,
        )
        return self._post(schemas.NewToken, "/v1/tokens", body, idempotency_key)

    def create_for_simulators(
        self, run: str, *, name: str | None = None, expires_in_seconds: float | None = None
    ) -> schemas.NewToken:
        """Create a token with which simulators can play in one run, and do nothing else."""
        body = without_none(name=name, expires_in_seconds=expires_in_seconds)
        return self._post(schemas.NewToken, route("runs", run, "simulator_tokens"), body)

    def list(self, filter: str = "", order_by: str = "", limit: int | None = None) -> Iterator[schemas.Token]:
        """Iterate over the project's tokens, newest first, with the revoked and expired ones."""
        return self._pages(schemas.Token, "/v1/tokens", limit, filter=filter, order_by=order_by)

    def get(self, token_id: str) -> schemas.Token:
        """Return one token, without its secret."""
        return self._get(schemas.Token, route("tokens", token_id))

    def current(self) -> schemas.Identity:
        """Return the identity and the permissions that the server sees in this client's requests."""
        return self._get(schemas.Identity, "/v1/tokens/self")

    def revoke(self, token_id: str) -> None:
        """Revoke a token."""
        self._transport.delete(route("tokens", token_id))


class AuditLog(Resource):
    """Requests about the audit log."""

    def list(self, filter: str = "", order_by: str = "", limit: int | None = None) -> Iterator[schemas.AuditEntry]:
        """Iterate over the requests that changed something in the project, newest first."""
        return self._pages(schemas.AuditEntry, "/v1/audit", limit, field="entries", filter=filter, order_by=order_by)


class Webhooks(Resource):
    """Requests about webhooks."""

    def create(
        self,
        url: str,
        events: Sequence[str] = ("*",),
        *,
        description: str = "",
        run: str | None = None,
        tag: str | None = None,
        idempotency_key: str | None = None,
    ) -> schemas.WebhookWithSecret:
        """Send events to a URL from now on. Only this answer has the `secret`.

        `events` are types, in which `*` stands for any text; `run` (id or name) and `tag` select runs.
        """
        body = without_none(url=url, events=texts(events), description=description, run=run, tag=tag)
        return self._post(schemas.WebhookWithSecret, "/v1/webhooks", body, idempotency_key)

    def list(self, filter: str = "", limit: int | None = None) -> Iterator[schemas.Webhook]:
        """Iterate over webhooks, newest first."""
        return self._pages(schemas.Webhook, "/v1/webhooks", limit, filter=filter)

    def get(self, webhook: str) -> schemas.Webhook:
        """Return a webhook by its id."""
        return self._get(schemas.Webhook, route("webhooks", webhook))

    def update(
        self,
        webhook: str,
        *,
        url: str | None = None,
        events: Sequence[str] | None = None,
        description: str | None = None,
        run: str | None = None,
        tag: str | None = None,
        enabled: bool | None = None,
    ) -> schemas.Webhook:
        """Change a webhook. None leaves a field unchanged; an empty `run` or `tag` selects all runs."""
        types = None if events is None else texts(events)
        body = without_none(url=url, events=types, description=description, enabled=enabled)
        body |= {name: value or None for name, value in (("run", run), ("tag", tag)) if value is not None}
        return self._transport.patch(schemas.Webhook, route("webhooks", webhook), body)

    def delete(self, webhook: str) -> None:
        """Delete a webhook with the log of its deliveries."""
        self._transport.delete(route("webhooks", webhook))

    def rotate_secret(self, webhook: str, overlap_seconds: float = 86400.0) -> schemas.WebhookWithSecret:
        """Give a webhook a new `secret`; messages are signed with the old one, too, for `overlap_seconds`."""
        return self._post(
            schemas.WebhookWithSecret, route("webhooks", webhook) + ":rotate", {"overlap_seconds": overlap_seconds}
        )

    def test(self, webhook: str) -> schemas.DeliveryWithPayload:
        """Send a test message now, and return the delivery with the receiver's answer in its `log`."""
        return self._post(schemas.DeliveryWithPayload, route("webhooks", webhook) + ":test")

    def list_deliveries(self, webhook: str, filter: str = "", limit: int | None = None) -> Iterator[schemas.Delivery]:
        """Iterate over the deliveries to a webhook, newest first, without the payloads."""
        path = route("webhooks", webhook, "deliveries")
        return self._pages(schemas.Delivery, path, limit, filter=filter)

    def get_delivery(self, webhook: str, delivery: str) -> schemas.DeliveryWithPayload:
        """Return a delivery with its attempts and its payload."""
        return self._get(schemas.DeliveryWithPayload, route("webhooks", webhook, "deliveries", delivery))

    def redeliver(self, webhook: str, delivery: str) -> schemas.DeliveryWithPayload:
        """Send a message again, with all its retries, whether it was delivered or not."""
        return self._post(
            schemas.DeliveryWithPayload, route("webhooks", webhook, "deliveries", delivery) + ":redeliver"
        )


class Workers(Resource):
    """Requests about workers."""

    def list(self, filter: str = "", limit: int | None = None) -> Sequence[schemas.Worker]:
        """Return the slots of all worker hosts, newest first; `filter` as in `host = box-1`."""
        return [*self._pages(schemas.Worker, "/v1/workers", limit, filter=filter)]

    def cordon(self, worker: str) -> Sequence[schemas.Worker]:
        """Keep runs away from a slot (`host/pid/start`), or from a host with all of its slots; return the slots."""
        return self._verb(worker, "cordon")

    def uncordon(self, worker: str) -> Sequence[schemas.Worker]:
        """Lift the cordon of a slot, or of a host with all of its slots; return the slots."""
        return self._verb(worker, "uncordon")

    def drain(self, worker: str) -> Sequence[schemas.Worker]:
        """Cordon a slot or a host, and have its runs save a checkpoint and go to other slots; return the slots.

        It is done when none of the slots has a `run_id`: `selected` returns them again.
        """
        return self._verb(worker, "drain")

    def selected(self, worker: str) -> Sequence[schemas.Worker]:
        """Return the slot with this id, or the slots of this host, as they are now."""
        return self.list(f'{"id" if "/" in worker else "host"} = "{worker}"')

    def _verb(self, worker: str, verb: str) -> Sequence[schemas.Worker]:
        return self._post(schemas.SelectedWorkers, f"{route('workers', worker)}:{verb}").workers


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
        self.experiments = Experiments(self._transport)
        self.ladders = Ladders(self._transport)
        self.logs = Logs(self._transport)
        self.metrics = Metrics(self._transport)
        self.presets = Presets(self._transport)
        self.runs = Runs(self._transport)
        self.recordings = Recordings(self._transport)
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
