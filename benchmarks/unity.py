"""`ludus learn` against `mlagents-learn`: the same flags, the same YAML, the same player build; agent steps/s, A B A B.

    python benchmarks/unity.py --mlagents PEER/bin/mlagents-learn [--only ppo-1x12] [--rounds 3] [--json FILE]
    python benchmarks/unity.py --mlagents PEER/bin/mlagents-learn --rounds 1 --seconds 5 --warmup 4   # a quick look

PEER is an environment that has ML-Agents 1.1.0 as its authors ship it, on Python 3.10 (README.md here says how to make
one). The build is a script around `peers/ball_player.py`. Each arm is one command of a user in an empty folder,

    mlagents-learn config.yaml --run-id bench --env ball --num-envs N --no-graphics --torch-device cpu ...
    ludus    learn config.yaml --run-id bench --env ball --num-envs N --no-graphics --torch-device cpu ...

and the steps are those that the players count after their warm-up. `lockstep` and `threaded` are the two values of the
YAML's key `threaded`, which ML-Agents ignores for PPO. Beside the rates stands the processor time of 1,000 agent steps,
of the trainer's processes by what they are, and of the players: on a busy machine it says more than the rates.

The arms of the cases `acting-*` never learn: `echo` is a server that sends the same bytes back without decoding them,
the limit of gRPC and the player; `acting` is a trainer with one collector, without the server, which the players dial.
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.alone import LUDUS, environment

PEERS = Path(__file__).resolve().parent / "peers"
PLAYER = PEERS / "ball_player.py"
MOST_SECONDS = 300.0
"""Until the last player has its result: 16 players of ML-Agents start slowly on two cores."""
ROLES = {
    str(PLAYER): "players",
    "worker.trainer": "learner",
    "worker.collectors.edge.reader": "edge reader",
    "worker.collectors": "collector",
    "ludus.collector": "collector",
    "ludus.cli learn": "ludus learn",
    "mlagents-learn": "mlagents-learn",
    "multiprocessing": "mlagents-learn",
    str(Path(__file__)): "echo",
}
"""What a process is, by a part of its command line; the others are the server's."""


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


@dataclass(frozen=True)
class Measured:
    """One arm, run once."""

    rate: float
    """Agent steps/s of all players together."""
    processor: dict[str, float]
    """Processor seconds of 1,000 agent steps, by role."""


CASES = (
    Case("ppo-1x12", "ppo", 1, 12, ("mlagents", "lockstep", "threaded")),
    Case("ppo-16x1", "ppo", 16, 1, ("mlagents", "lockstep", "threaded")),
    Case("sac-1x12", "sac", 1, 12, ("mlagents", "lockstep", "threaded")),
    Case("acting-1x12", "ppo", 1, 12, ("echo", "acting"), learning=False),
    Case("acting-16x1", "ppo", 16, 1, ("echo", "acting"), learning=False),
)


def configuration(case: Case, contestant: str) -> dict[str, Any]:
    """Return ML-Agents' 3DBall, for as long as we want."""
    document: dict[str, Any] = yaml.safe_load((PEERS / f"3dball_{case.trainer}.yaml").read_text())
    behavior = document["behaviors"]["3DBall"]
    behavior |= {"max_steps": 50_000_000, "threaded": contestant != "lockstep"}
    if not case.learning:
        behavior["hyperparameters"] |= {"buffer_size": 5_000_000, "batch_size": 64}
    return document


def free_ports(count: int) -> int:
    """Return the first of `count` free ports in a row."""
    while True:
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            try:
                for offset in range(1, count):
                    stack.enter_context(socket.create_server(("127.0.0.1", first + offset)))
            except (OSError, OverflowError):
                continue
            return int(first)


@contextlib.contextmanager
def ended_with_its_children(command: list[str], folder: Path) -> Iterator[psutil.Popen]:
    """Run a command in a folder; end it and all that it has started, each process group of it."""
    hidden = {**environment(), "CUDA_VISIBLE_DEVICES": ""}
    with (folder / "command.log").open("ab") as log:
        process = psutil.Popen(command, cwd=folder, stdout=log, stderr=log, env=hidden, start_new_session=True)
        try:
            yield process
        finally:
            started: list[psutil.Process] = [process]
            with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):  # it may have ended by itself
                started += process.children(recursive=True)
                os.killpg(process.pid, signal.SIGKILL)
            for each in started[1:]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            psutil.wait_procs(started, timeout=10)


def processor_time(processes: Sequence[psutil.Process]) -> "Counter[str]":
    """Return the processor seconds of these processes so far, by role."""
    spent: Counter[str] = Counter()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            line = " ".join(process.cmdline())
            role = next((role for part, role in ROLES.items() if part in line), "server")
            times = process.cpu_times()
            spent[role] += times.user + times.system  # type: ignore[assignment]  # a Counter of floats
    return spent


def measure_players(command: psutil.Popen, players: list[psutil.Popen], results: Path, count: int) -> Measured:
    """Wait for the results of `count` players; measure the processor time from the last warm-up's end to then."""
    deadline = time.monotonic() + MOST_SECONDS
    before: Counter[str] = Counter()
    while len(found := list(results.glob("*.json"))) < count:
        if time.monotonic() > deadline or command.poll() is not None:
            raise SystemExit((results.parent / "command.log").read_text()[-3000:])
        time.sleep(0.1)
        if not before and len(list(results.glob("*.warm"))) == count:
            began = time.monotonic()
            before = processor_time([command, *command.children(recursive=True), *players])
    seconds = time.monotonic() - began
    after = processor_time([command, *command.children(recursive=True), *players])
    rate = sum(float(json.loads(path.read_text())["rate"]) for path in found)
    thousands = rate * seconds / 1000
    return Measured(rate, {role: round((spent - before[role]) / thousands, 3) for role, spent in after.items()})


def play(case: Case, options: argparse.Namespace, results: Path) -> list[str]:
    """Return the command of a player that writes its result there, and plays on until it is ended."""
    command = [sys.executable, str(PLAYER), "--agents", str(case.agents), "--result", str(results)]
    return [*command, f"--seconds={options.seconds}", f"--warmup={options.warmup}"]


def learn(contestant: str, case: Case, folder: Path, options: argparse.Namespace) -> Measured:
    """Run the command of a user, which starts the players."""
    results, build = folder / "players", folder / "ball.x86_64"
    results.mkdir()
    build.write_text(f'#!/bin/sh\nexec {" ".join(play(case, options, results))} "$@"\n')
    build.chmod(0o755)
    (folder / "config.yaml").write_text(yaml.safe_dump(configuration(case, contestant)))
    program = [str(options.mlagents)] if contestant == "mlagents" else [*LUDUS, "learn"]
    flags = ["--run-id", "bench", "--env", str(folder / "ball"), "--num-envs", str(case.players), "--no-graphics"]
    flags += ["--base-port", str(free_ports(case.players)), "--timeout-wait", "120", "--torch-device", "cpu"]
    with ended_with_its_children([*program, "config.yaml", *flags], folder) as command:
        return measure_players(command, [], results, case.players)


def act(contestant: str, case: Case, folder: Path, options: argparse.Namespace) -> Measured:
    """Run a server that players dial."""
    results = folder / "players"
    results.mkdir()
    port = free_ports(1)
    (folder / "config.yaml").write_text(yaml.safe_dump({**configuration(case, contestant), "seed": 1}))
    echo = [sys.executable, __file__, "--serve-echo", str(port), "--agents", str(case.agents)]
    alone = [sys.executable, "-m", "worker.trainer", "config.yaml", "--scratch", "scratch", "--port", str(port)]
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(ended_with_its_children(echo if contestant == "echo" else alone, folder))
        command = [*play(case, options, results), "--mlagents-port", str(port)]
        players = [stack.enter_context(ended_with_its_children(command, folder)) for _ in range(case.players)]
        return measure_players(server, players, results, case.players)


def serve_echo(port: int, agents: int) -> None:
    """Answer every call with the same actions, under grpc.aio and uvloop: what a server of gRPC's can do at most."""
    import asyncio  # noqa: PLC0415

    import grpc.aio  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415
    import uvloop  # noqa: PLC0415

    from ludus.collector.unity.encoding import ActionEncoder, step_reply  # noqa: PLC0415
    from ludus.protocol.options import EXCHANGE  # noqa: PLC0415
    from ludus.protocol.spec import ActionSpec  # noqa: PLC0415

    encoder = ActionEncoder("3DBall?team=0", ActionSpec(2))
    reply = step_reply([encoder.encode(np.zeros((agents, 2), np.float32), np.zeros((agents, 0), np.int32))])

    async def exchange(_request: bytes, _context: Any) -> bytes:
        return reply

    async def serve() -> None:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        service, _, method = EXCHANGE[1:].partition("/")
        handlers = {method: grpc.unary_unary_rpc_method_handler(exchange)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        await server.wait_for_termination()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


def measure(case: Case, contestant: str, options: argparse.Namespace) -> Measured:
    """Run one arm once."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        return (learn if case.learning else act)(contestant, case, Path(folder), options)


def main() -> None:
    """Run the cases and print medians, ratios and processor times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mlagents", type=Path, help="PEER/bin/mlagents-learn; without it its arms are left out")
    parser.add_argument("--only", action="append", choices=[case.name for case in CASES])
    parser.add_argument(
        "--arm", action="append", help="only these arms; the first one is what the others are divided by"
    )
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
        if options.only and case.name not in options.only:
            continue
        arms = [arm for arm in case.contestants if not options.arm or arm in options.arm]
        runs: dict[str, list[Measured]] = {arm: [] for arm in arms if arm != "mlagents" or options.mlagents}
        for _ in range(options.rounds):
            for arm, measured in runs.items():
                measured.append(measure(case, arm, options))
        medians = {arm: statistics.median(each.rate for each in measured) for arm, measured in runs.items()}
        base = next(iter(medians.values()), 1.0)
        ratios = {arm: round(median / base, 2) for arm, median in medians.items()}
        found[case.name] = {"medians": medians, "ratios": ratios}
        found[case.name]["runs"] = {arm: [asdict(each) for each in measured] for arm, measured in runs.items()}
        print(case.name, {arm: round(median) for arm, median in medians.items()}, ratios)
        for arm, measured in runs.items():
            roles = {role for each in measured for role in each.processor}
            spent = {role: statistics.median(each.processor.get(role, 0.0) for each in measured) for role in roles}
            listed = ", ".join(f"{role} {spent[role] * 1000:.0f}" for role in sorted(roles))
            print(f"  {arm}: processor time of 1,000 agent steps, ms: {listed}", flush=True)
    if options.file is not None:
        options.file.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
