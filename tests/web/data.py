"""What the pages of a test show: runs in several states, a ladder, a gate, aliases, simulators, and hostile texts."""

import math
import random
from dataclasses import replace
from pathlib import Path

from ludus.play.recordings.file import End
from ludus.schemas import STEPS_PER_SECOND
from server.ladders.repository import LadderRepository
from server.runs.events.repository import Note, record
from tests.recordings import store as store_recording
from tests.server.app.world import CARTPOLE, Trainer, World
from tests.server.ladders.played import SELF_PLAY, make_match, rate_all
from tests.server.runs.test_environment_parameters import CONFIG as LESSONS

HOSTILE = "<img src=x onerror=\"alert('x')\"><script>alert(1)</script> & \u202e\x07 {{7*7}} '\""
"""Markup, control characters and quotes: it must be shown, and never be understood."""
LONG_NAME = "a" * 199 + "z"
REWARD = "Environment/Cumulative Reward"


def train(world: World, scratch: Path, name: str = "walker", *, summaries: int = 60, shift: float = 0.0) -> Trainer:
    """Create a run that has learned for a while and still does."""
    trainer = world.claim(world.create(name=name, tags=["ci", "nightly"])["id"]).start()
    noise = random.Random(name)
    trainer.measure(
        REWARD, [500 / (1 + math.exp(-(i - 20) / 5)) + shift + noise.gauss(0, 12) for i in range(summaries)]
    )
    trainer.measure("Environment/Episode Length", [float(10 * i) for i in range(summaries)])
    trainer.measure("Policy/Entropy", [0.69 - i / 200 for i in range(summaries)])
    trainer.measure(STEPS_PER_SECOND, [1200.0])
    trainer.ledger.heartbeat(60, min(100 * summaries, 9000))
    trainer.ledger.simulators.connected(
        "one", number=0, collector=0, peer="10.0.0.7:5000", label="demo", client="unity"
    )
    trainer.ledger.simulators.plays("one", ["CartPole"], 12)
    scratch.mkdir(exist_ok=True)
    trainer.save(3000, {"CartPole.onnx": b"no real model"}, scratch, score=437.5 + shift)
    store_recording(trainer, scratch, steps=200)
    trainer.write_log("trainer.log", b"".join(b"line %d\n" % number for number in range(500)), scratch)
    return trainer


def fail(world: World, scratch: Path) -> Trainer:
    """Create a run that failed, with texts of others in every place that has one."""
    trainer = world.claim(world.create(name="nightly-412")["id"]).start()
    trainer.ledger.simulators.connected(
        "bad", number=0, collector=0, peer=HOSTILE, label=HOSTILE, client=HOSTILE, behaviors=[HOSTILE[:60]]
    )
    trainer.ledger.simulators.left("bad", code="simulator_gone", reason=HOSTILE, steps=3)
    trainer.measure(HOSTILE[:60], [1.0, 2.0], behavior=HOSTILE[:40])
    with world.services.database.write() as session:
        record(session, trainer.run_id, Note("hostile_text", HOSTILE, "error"))
    scratch.mkdir(exist_ok=True)
    store_recording(trainer, scratch, end=End("error", HOSTILE[:60], HOSTILE, (HOSTILE[:60],)))
    trainer.write_log("trainer.log", HOSTILE.encode(), scratch)
    trainer.ledger.move("FAILED", reason="simulators_lost", detail=HOSTILE)  # type: ignore[arg-type]  # as in the database
    return trainer


def play(world: World) -> str:
    """Create a run that plays against itself, with rated matches; return its id."""
    trainer = world.claim(world.create(SELF_PLAY, name="striker")["id"]).start()
    matches = [make_match(number, "win" if number % 3 else "loss", number % 4) for number in range(1, 60)]
    trainer.ledger.matches.append([replace(match, at=1.7e9 + match.number) for match in matches])
    rate_all(world.services.database)
    with world.services.database.read() as session:
        assert LadderRepository(session).get(trainer.run_id).rated_through == 59
    return trainer.run_id


def judge(world: World, candidate: str, champion: str) -> str:
    """Create a gate between two checkpoints that the candidate has passed; return its run."""
    match = {"behavior": "CartPole", "candidate": candidate, "champion": champion, "elo0": 0, "elo1": 20}
    trainer = world.claim(world.create({"match": match}, name="gate")["id"]).start()
    result = {
        "kind": "match",
        "verdict": "pass",
        "behavior": "CartPole",
        "candidate": candidate,
        "champion": champion,
        "games": 812,
        "wins": 402,
        "draws": 96,
        "losses": 314,
        "max_games": 20_000,
        "score": 0.554,
        "elo": 37.7,
        "elo_low": 15.5,
        "elo_high": 60.1,
        "elo0": 0.0,
        "elo1": 20.0,
        "alpha": 0.05,
        "beta": 0.05,
        "llr": 2.97,
        "llr_lower": -2.94,
        "llr_upper": 2.94,
        "paired": True,
        "pairs": [9, 31, 180, 121, 65],
    }
    trainer.ledger.assessment.store(812, result, {})
    trainer.finish()
    return trainer.run_id


def show(world: World, scratch: Path) -> dict[str, str]:
    """Fill a world with what a team has on a good day; return the ids of its runs by name."""
    walker = train(world, scratch / "walker")
    other = train(world, scratch / "walker-2", "walker-2", shift=-50.0)
    striker = play(world)
    checkpoint = world.http.get(f"/v1/runs/{walker.run_id}/checkpoints/latest").json()["id"]
    world.http.put("/v1/aliases/champion", json={"checkpoint_id": checkpoint}).raise_for_status()
    candidate = world.http.get(f"/v1/runs/{other.run_id}/checkpoints/latest").json()["id"]
    gate = judge(world, candidate, checkpoint)
    return {"walker": walker.run_id, "walker-2": other.run_id, "striker": striker, "gate": gate}


def fill(world: World, scratch: Path) -> dict[str, str]:
    """Fill a world with that, and with what makes pages break; return the ids of its runs by name."""
    runs = show(world, scratch)
    runs["failed"] = fail(world, scratch / "failed").run_id
    runs["long"] = world.create(CARTPOLE, name=LONG_NAME, tags=["t" * 100])["id"]
    world.claim(world.create(LESSONS, name="taught")["id"]).start()
    webhook = {"url": "https://example.org/hook", "events": ["*"], "description": HOSTILE[:100]}
    world.http.post("/v1/webhooks", json=webhook).raise_for_status()
    return runs
