"""Settings of the order in which waiting runs are taken: quotas, best fit, pools of workers."""

import math
from collections.abc import Mapping
from typing import Any

from pydantic import Field, NonNegativeInt, model_validator

from ludus.config.values import Label
from server.kit.listening import Group, Seconds

PoolName = Label
"""A pool's name has the form of a label."""


class Pool(Group):
    """Slots that an autoscaler starts on demand."""

    gpus: int = Field(default=0, ge=0, le=64)
    """GPUs of each slot."""
    labels: list[Label] = Field(default=[], max_length=8)
    """Labels of its workers (`LUDUS_WORKER__LABELS`)."""


class SchedulingSettings(Group):
    """The order in which free workers take waiting runs: one of the project with the fewest in training; of a project's
    runs the one with the highest priority, then of the token and the owner with the fewest, then the oldest.
    """

    aging_seconds: Seconds = 3600
    """A waiting run gains one step of priority each time this number of seconds passes, so no run waits for ever. A
    game that waits for its run counts as much.
    """
    runs_per_project: int | None = Field(default=None, ge=0)
    """Maximum number of runs of one project in training at once. Default: no limit."""
    project_quotas: dict[str, NonNegativeInt] = Field(default={})
    """The same for projects by name, before `runs_per_project`, as JSON: `{"bots": 4}`."""
    runs_per_token: int | None = Field(default=None, ge=0)
    """Maximum number of runs of one token in training at once. Runs that no token of the database created (the server
    demands none, or the request came with `LUDUS_API__TOKEN`) count as those of one token. Default: no limit.
    """
    token_quotas: dict[str, NonNegativeInt] = Field(default={})
    """The same for tokens by id, before `runs_per_token`, as JSON: `{"tok_01k...": 4, "": 1}`; the empty id stands for
    runs without a token.
    """
    best_fit_seconds: Seconds = 600
    """How long a slot leaves a waiting run to a slot that fits it better: to an idle one with fewer GPUs; or, if it is
    the last idle slot with GPUs and the run demands none, to one without GPUs, even a busy one.
    """
    pools: dict[PoolName, Pool] = Field(default={})
    """Pools of workers that an autoscaler starts on demand, by name, with the GPUs and labels of a slot, as JSON:
    `{"cpu": {}, "a100": {"gpus": 1, "labels": ["a100"]}}`. A run that no live worker serves, but one of a pool would,
    waits for that pool, without a warning. The same on the api and the controller.
    """
    explain_seconds: Seconds = 10
    """After this time of waiting, a run that no live worker can serve says so."""

    @model_validator(mode="before")
    @classmethod
    def _no_quotas_of_owners(cls, data: Any) -> Any:
        for former in ("runs_per_owner", "owner_quotas"):
            if isinstance(data, Mapping) and former in data:
                raise ValueError(
                    f"{former}: quotas bind projects and tokens, because users choose owners freely; set "
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
