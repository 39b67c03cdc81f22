"""Training over the Unity protocol against ML-Agents, with the same player and the same YAML: agent steps/s, A B A B.

    python benchmarks/unity.py --mlagents PEER/bin/mlagents-learn [--only ppo-1x12] [--rounds 3] [--json FILE]

PEER is an environment that has ML-Agents 1.1.0 as its authors ship it, on Python 3.10 (README.md here says how to make
one). The player is `peers/ball_player.py`; its steps are counted after a warm-up. Each arm is the command of a user:
`mlagents-learn CONFIG`, and a trainer that runs alone with one collector. `echo` is a server that sends the same bytes
back without decoding them: the limit of gRPC and the player.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.alone import environment

PEERS = Path(__file__).resolve().parent / "peers"
PLAYER = PEERS / "ball_player.py"


@dataclass(frozen=True)
class Case:
    """Number and form of the players."""

    name: str
    trainer: str
    players: int
    agents: int
    """Of each player."""
    contestants: tuple[str, ...]
    learning: bool = True


CASES = (
    Case("ppo-1x12", "ppo", 1, 12, ("mlagents", "lockstep", "threaded")),
    Case("ppo-16x1", "ppo", 16, 1, ("mlagents", "lockstep", "threaded")),
    Case("sac-1x12", "sac", 1, 12, ("mlagents", "lockstep", "threaded")),
    Case("acting-1x12", "ppo", 1, 12, ("echo", "threaded"), learning=False),
    Case("acting-16x1", "ppo", 16, 1, ("echo", "threaded"), learning=False),
)


def configuration(case: Case, contestant: str) -> dict[str, Any]:
    """Return ML-Agents' 3DBall, for as long as we want."""
    document: dict[str, Any] = yaml.safe_load((PEERS / f"3dball_{case.trainer}.yaml").read_text())
    behavior = document["behaviors"]["3DBall"]
    behavior |= {"max_steps": 50_000_000, "threaded": contestant == "threaded"}
    if not case.learning:
        behavior["hyperparameters"] |= {"buffer_size": 5_000_000, "batch_size": 64}
    return document


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def ended_with_its_children(command: list[str], folder: Path, **extra: str) -> Iterator[None]:
    """Run a trainer."""
    with (folder / "trainer.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdout=log, stderr=log, env={**environment(), **extra}, start_new_session=True
        )
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run_players(ports: list[int], case: Case, seconds: float, warmup: float) -> float:
    """Connect players to these ports and return the agent steps/s of all together."""
    command = [sys.executable, str(PLAYER), "--agents", str(case.agents), f"--seconds={seconds}", f"--warmup={warmup}"]
    players = [
        subprocess.Popen([*command, "--mlagents-port", str(port)], stdout=subprocess.PIPE, text=True, env=environment())
        for port in ports
    ]
    return sum(float(json.loads(player.communicate(timeout=600)[0])["rate"]) for player in players)


def mlagents(program: Path, case: Case, folder: Path, seconds: float, warmup: float) -> float:
    """Return ML-Agents' agent steps/s. With several players it launches them itself, one port each."""
    (folder / "config.yaml").write_text(yaml.safe_dump(configuration(case, "mlagents")))
    command = [str(program), "config.yaml", "--run-id", "peer", "--force", "--torch-device", "cpu"]
    if case.players == 1:
        with ended_with_its_children(command, folder, CUDA_VISIBLE_DEVICES=""):
            return run_players([5004], case, seconds, warmup)
    results = folder / "players"
    results.mkdir()
    build = folder / "ball.x86_64"
    play = f"{sys.executable} {PLAYER} --agents {case.agents} --seconds {seconds} --warmup {warmup} --result {results}"
    build.write_text(f'#!/bin/sh\nexec {play} "$@"\n')
    build.chmod(0o755)
    command += ["--env", str(folder / "ball"), "--num-envs", str(case.players), "--base-port", "15005"]
    with ended_with_its_children(command, folder, CUDA_VISIBLE_DEVICES=""):
        deadline = time.monotonic() + 600
        while len(list(results.iterdir())) < case.players and time.monotonic() < deadline:
            time.sleep(0.5)
        return float(sum(json.loads(path.read_text())["rate"] for path in results.iterdir()))


def ludus(contestant: str, case: Case, folder: Path, seconds: float, warmup: float) -> float:
    """Return our agent steps/s."""
    port = free_port()
    (folder / "config.yaml").write_text(yaml.safe_dump({**configuration(case, contestant), "seed": 1}))
    command = [sys.executable, "-m", "worker.trainer", "config.yaml", "--scratch", "scratch", "--port", str(port)]
    with ended_with_its_children(command, folder):
        return run_players([port] * case.players, case, seconds, warmup)


def echo(case: Case, folder: Path, seconds: float, warmup: float) -> float:
    """Return the agent steps/s of a server that does nothing."""
    port = free_port()
    command = [sys.executable, __file__, "--serve-echo", str(port), "--agents", str(case.agents)]
    with ended_with_its_children(command, folder):
        return run_players([port] * case.players, case, seconds, warmup)


def serve_echo(port: int, agents: int) -> None:
    """Answer every call with the same actions, under grpc.aio and uvloop as a collector does."""
    import asyncio  # noqa: PLC0415

    import grpc  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415
    import uvloop  # noqa: PLC0415

    from ludus.collector.service import make_server  # noqa: PLC0415
    from ludus.collector.unity.encoding import ActionEncoder, step_reply  # noqa: PLC0415
    from ludus.protocol.options import EXCHANGE  # noqa: PLC0415
    from ludus.protocol.spec import ActionSpec  # noqa: PLC0415

    encoder = ActionEncoder("3DBall?team=0", ActionSpec(2))
    reply = step_reply([encoder.encode(np.zeros((agents, 2), np.float32), np.zeros((agents, 0), np.int32))])

    async def exchange(_request: bytes, _context: Any) -> bytes:
        return reply

    async def serve() -> None:
        server = make_server(64 << 20)
        service, _, method = EXCHANGE[1:].partition("/")
        handlers = {method: grpc.unary_unary_rpc_method_handler(exchange)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        await server.wait_for_termination()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


def measure(case: Case, contestant: str, options: argparse.Namespace) -> float:
    """Run one arm once."""
    seconds, warmup = options.seconds, options.warmup
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if contestant == "mlagents":
            return mlagents(options.mlagents, case, folder, seconds, warmup)
        if contestant == "echo":
            return echo(case, folder, seconds, warmup)
        return ludus(contestant, case, folder, seconds, warmup)


def main() -> None:
    """Run the cases and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mlagents", type=Path, help="PEER/bin/mlagents-learn; without it its cases are left out")
    parser.add_argument("--only", action="append", choices=[case.name for case in CASES])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--warmup", type=float, default=8.0)
    parser.add_argument("--json", type=Path, dest="file")
    parser.add_argument("--serve-echo", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--agents", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_echo:
        serve_echo(options.serve_echo, options.agents)
        return
    found: dict[str, Any] = {}
    for case in CASES:
        if (options.only and case.name not in options.only) or (
            "mlagents" in case.contestants and not options.mlagents
        ):
            continue
        rates: dict[str, list[float]] = {contestant: [] for contestant in case.contestants}
        for _ in range(options.rounds):
            for contestant in case.contestants:
                rates[contestant].append(measure(case, contestant, options))
        medians = {contestant: statistics.median(values) for contestant, values in rates.items()}
        base = medians[case.contestants[0]]
        ratios = {contestant: round(value / base, 2) for contestant, value in medians.items()}
        found[case.name] = {"medians": medians, "ratios": ratios, "rates": rates}
        print(case.name, {name: round(value) for name, value in medians.items()}, ratios, flush=True)
    if options.file is not None:
        options.file.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
