"""The state that the parts of one attempt share."""

from dataclasses import dataclass, field, fields
from typing import Any

import structlog

from ludus.collector.settings import CollectorSettings
from ludus.config.run import RunConfig
from ludus.protocol.codes import CloseCode
from ludus.protocol.side_channels import EngineConfiguration
from ludus.protocol.spec import BehaviorSpec
from worker.collectors.pool import CollectorPool
from worker.trainer.base_learner import Learner
from worker.trainer.checkpoint import behavior_states
from worker.trainer.messages import EventRecord, Job, Level
from worker.trainer.simulators import ConnectedSimulators
from worker.trainer.supervisor_port import SupervisorPort

log = structlog.get_logger()


@dataclass
class Attempt:
    """One attempt of a run. Only the trainer's main thread uses it."""

    job: Job
    config: RunConfig
    """The present configuration; `Amendments` replaces it when a user changes it."""
    supervisor: SupervisorPort
    pool: CollectorPool
    restored: dict[str, Any]
    """The checkpoint's states of behaviors that no simulator has announced yet, by behavior."""
    learners: dict[str, Learner] = field(default_factory=dict)
    """By behavior, in the order in which the behaviors were announced."""
    simulators: ConnectedSimulators = field(default_factory=ConnectedSimulators)
    refusals: dict[str, str] = field(default_factory=dict)
    """Why behaviors were refused that simulators have announced in this attempt, by behavior."""

    def report(self, name: str, message: str, /, level: Level = "info", **data: object) -> None:
        """Report an event of the run: its name for programs, a sentence for people, and the facts in the sentence."""
        self.report_event(EventRecord(name=name, level=level, message=message, data=data))

    def report_event(self, event: EventRecord) -> None:
        """Report an event to the supervisor, and in the attempt's log."""
        getattr(log, event.level)(event.name, message=event.message)
        self.supervisor.post(event)

    def refuse(self, spec: BehaviorSpec, code: CloseCode, reason: str) -> None:
        """End the sessions that announce a behavior, and report it."""
        self.refusals[spec.behavior] = reason
        self.pool.refuse(spec.behavior, code, reason)
        self.report("behavior_refused", reason, level="error", behavior=spec.name, code=code)

    @property
    def is_inference(self) -> bool:
        """Whether the run plays without learning (`checkpoint_settings.inference`)."""
        return self.config.checkpoint_settings.inference

    def unfinished(self) -> list[str]:
        """Return the behaviors that have not reached their `max_steps`, sorted; a word where none has a name yet.

        A behavior that no simulator has announced in this attempt is finished if its checkpoint is, and if that has the
        spec by which `BehaviorRegistry.register_finished` builds it.
        """
        saved = behavior_states(self.restored)
        names = sorted({*self.config.behaviors, *saved, *self.learners})
        found = [] if names else ["any behavior"]
        for name in names:
            config = self.config.behavior(name)
            if config is None:
                continue  # the checkpoint of another configuration has it
            if name in self.learners:
                done = self.learners[name].done
            else:
                has_spec = not self.is_inference and name in saved and "spec" in saved[name]
                done = has_spec and saved[name]["progress"]["step"] >= config.max_steps
            if not done:
                found.append(name)
        return found

    @property
    def step(self) -> int:
        """Agent steps of all behaviors, including those that are not announced yet."""
        restored = sum(int(state["progress"]["step"]) for state in behavior_states(self.restored).values())
        return restored + sum(learner.step for learner in self.learners.values())


def collector_settings(job: Job, config: RunConfig) -> CollectorSettings:
    """Return the settings of the collectors, without environment parameters: the pool sends those."""
    simulators = config.simulators
    places = simulators.collectors
    local = job.collectors if places.local is None else places.local
    shared = Job.model_fields.keys() & {each.name for each in fields(CollectorSettings)} - {"ticket_key"}
    return CollectorSettings(
        **job.model_dump(include=set(shared)),
        count=local + places.edge,
        edge_places=places.edge,
        ticket_key=None if job.ticket_key is None else bytes.fromhex(job.ticket_key),
        step_timeout=simulators.step_timeout_seconds,
        startup_timeout=simulators.startup_timeout_seconds,
        engine=EngineConfiguration(
            **config.engine_settings.model_dump(include=set(EngineConfiguration.__dataclass_fields__))
        ),
        num_areas=config.env_settings.num_areas,
        unity_port=simulators.unity_port,
    )
