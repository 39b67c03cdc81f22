"""Recordings of sessions as demonstrations: the episodes that were played, with their actions and rewards."""

from pathlib import Path

from ludus.demonstrations.recorded import EpisodeLog
from ludus.paths import AnyPath
from ludus.play.recordings.file import Direction, Recording
from ludus.play.recordings.reading import Interpreter, Message
from ludus.protocol.batches import Ints
from ludus.sdk.steps import Actions


def write_episodes(recording: AnyPath, output: AnyPath) -> list[Path]:
    """Write what was played in a recording as demonstrations; return the files, one of each behavior.

    Episodes that the recording cuts are kept without their last action, whose outcome is unknown. A message that cannot
    be read ends it: what came before is written. Raise `BadRecording` where the file is no recording.
    """
    log = EpisodeLog(output)
    asked: dict[tuple[int | None, str], Ints] = {}
    """The agents that wait for an action, by step and behavior: an answer has their actions in this order."""
    with Path(recording).open("rb") as file:
        opened = Recording(file)
        interpreter = Interpreter(opened.header.carrier)
        for frame in opened.frames():
            message = interpreter.read(frame)
            if frame.direction & Direction.BEFORE:
                log.from_start = False
            if message.problem:
                break
            if message.kind == "reset":
                log.cut()
                asked.clear()
                log.from_start = True
            if message.batches:
                asked |= {
                    (message.step, batch.behavior): batch.decisions.agent_ids
                    for batch in message.batches
                    if batch.decisions is not None
                }
                log.look(message.batches, interpreter.specs)
                log.from_start = True
            log.act(_actions(message, asked))
    log.close()
    return log.files


def _actions(message: Message, asked: dict[tuple[int | None, str], Ints]) -> Actions:
    """Return the actions of a message with their agents."""
    batches = []
    for batch in message.actions:
        agents = asked.pop((message.step, batch.behavior), None) if batch.agent_ids is None else batch.agent_ids
        if agents is not None and len(agents) == len(batch.continuous):
            batches.append(batch._replace(agent_ids=agents))
    return Actions(batches)
