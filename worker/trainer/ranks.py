"""Ranks of one trainer that learn as one (`worker.learning.data_parallel`), each on a GPU of its own or on a CPU.

The trainer is rank 0. It starts the others, which run `main`, and sends them orders over socket pairs: build a
behavior, learn from a round, end. It alone reports, publishes weights and writes checkpoints.

Every collector belongs to one rank (`worker.collectors.behaviors.rank_of`). It writes its steps to shared memory, where
that rank gathers them: the orders name the segments, steps never pass through another process. What ranks exchange is
said in `worker.learning.data_parallel`. After each update they compare their weights: where those differ, the attempt
ends rather than go on with two policies.

They meet through a file of the attempt's scratch folder and exchange over loopback: gloo on CPUs, NCCL between GPUs.
Pickled are orders alone, which go through socket pairs that no other program has an end of.

A rank that has ended, or that neither says every second that it lives nor takes part in an exchange for
`rank_timeout_seconds`, ends the attempt by `RankLost`. The next one goes on from the last checkpoint, with as many
ranks as its worker has GPUs for: what rank 0 writes is the state of all. Only what is a rank's own (`OWN`) begins anew
in the others.
"""

import contextlib
import copyreg
import gc
import io
import os
import pickle
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Final, NamedTuple, assert_never

import numpy as np
import structlog
import torch
import torch.distributed as dist
from torch import Tensor

from ludus.child_process import ChildProcess, describe_exit, end_with_parent
from ludus.collector.arena import Arena, ArenaLayout
from ludus.collector.segments import Segments
from ludus.config.run import TorchSettings
from ludus.config.trainer import ReinforcementConfig
from worker.experience.rollout import Rollout, gather
from worker.experience.state import State
from worker.learning.algorithms.algorithm import Algorithm
from worker.learning.algorithms.numeric_check import Diverged
from worker.learning.build import Demonstrations, build_algorithm
from worker.learning.data_parallel import ExchangeFailed, all_equal, process_group
from worker.trainer.compilation import BackgroundCompilation, bf16_pictures

log = structlog.get_logger()

BEAT_SECONDS = 1.0
LOAD_SECONDS = 180.0
"""How long a process may take until it is ready to meet the others."""
END_SECONDS = 5.0
EXIT_SECONDS = 1.0
"""How long the end of a process may follow behind the failure that it makes in the others."""
EXCHANGED: Final = "Ranks/Exchanged Bytes"
"""Metric: bytes of an update that a rank puts into exchanges, gradients and statistics."""
PROGRAM = "import sys; from worker.trainer.ranks import main; main(sys.argv[1:])"
"""Not `-m`: orders are pickled, and their classes must be those of this module by its name."""
OWN: Final = frozenset(
    {"generator", "generators", "memories", "episodes", "agents", "beginnings", "replay", "priorities"}
)
"""Keys of an algorithm's state, at any depth, that are a rank's own: its randomness, and what depends on its steps."""


class RankLost(RuntimeError):
    """A rank has ended, is silent, or has other weights: the attempt can't go on. The message says which and why."""


class Build(NamedTuple):
    """Build a behavior's algorithm, and go on from a state of rank 0. The arena's descriptor follows."""

    config: ReinforcementConfig
    arena: ArenaLayout
    seed: int
    demonstrations: Mapping[str, str]
    state: State
    compiles: bool
    """Whether to compile its updates in the background."""


class Learn(NamedTuple):
    """Learn from a round: gather the segments, say so, update."""

    behavior: str
    segments: Segments
    step: int


class Reconfigure(NamedTuple):
    """Go on with another configuration."""

    behavior: str
    config: ReinforcementConfig


class End(NamedTuple):
    """End the process."""


Order = Build | Learn | Reconfigure | End


class _Peer:
    """Another rank, seen from rank 0."""

    def __init__(self, rank: int, arguments: Sequence[str], timeout: float) -> None:
        own_end, its_end = socket.socketpair()
        # A frozen rank reads nothing: what does not fit the buffer fails after the time-out.
        seconds = struct.pack("ll", int(timeout), int(timeout % 1.0 * 1e6))
        own_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
        with its_end:
            command = [sys.executable, "-c", PROGRAM, *arguments, str(rank), str(its_end.fileno())]
            self.process = ChildProcess(command, environment=_environment(), descriptors=(its_end.fileno(),), tied=True)
        self.connection = Connection(own_end.detach())
        self.rank, self.heard = rank, time.monotonic()
        self.failure: str | None = None
        """What it said before it ended."""
        self.is_frozen = self.has_left = False

    def send(self, order: Order, descriptor: int | None = None) -> None:
        """Send an order. Raises OSError if it has ended or reads nothing."""
        self.connection.send_bytes(pickled(order))
        if descriptor is not None:
            send_handle(self.connection, descriptor, self.process.pid)

    def drain(self) -> None:
        """Read everything that it has said."""
        try:
            while self.hear():
                pass
        except (EOFError, OSError):
            self.has_left = True

    def hear(self, seconds: float = 0.0) -> bool:
        """Read what it has said, for at most `seconds`; return whether it has gathered a round."""
        deadline = time.monotonic() + seconds
        while self.connection.poll(max(deadline - time.monotonic(), 0.0)):
            said = self.connection.recv_bytes()  # a beat, unless it says more
            self.heard = time.monotonic()
            if said == GATHERED:
                return True
            if said:
                self.failure = said.decode()
        return False


BEAT: Final = b""
GATHERED: Final = b"gathered"


class Ranks:
    """The ranks of a trainer, seen from number 0. They end with `close`, or when this process does."""

    def __init__(self, count: int, device: torch.device, scratch: Path, timeout: float, *, bf16: bool = False) -> None:
        """Start the others and wait for them. Raises `RankLost`. `bf16`: they encode pictures in bfloat16."""
        self.count, self._timeout = count, timeout
        self._folder = tempfile.TemporaryDirectory(dir=scratch, prefix="ranks-")
        torch.set_num_threads(max(1, torch.get_num_threads() // count))
        file = Path(self._folder.name) / "meeting"
        arguments = [str(file), str(count), str(device), str(timeout), str(int(bf16)), str(torch.get_num_threads())]
        self._peers = [_Peer(rank, arguments, timeout) for rank in range(1, count)]
        os.environ.update(_environment())
        if not all(peer.connection.poll(LOAD_SECONDS) for peer in self._peers):
            self.close()
            raise RankLost(f"a rank has not loaded torch within {LOAD_SECONDS:g} s: this machine is too busy")
        try:
            for peer in self._peers:
                peer.connection.recv_bytes()
            for peer in self._peers:
                peer.connection.send_bytes(BEAT)
            join(file, 0, count, device, timeout)
        except (RuntimeError, EOFError, OSError) as error:
            lost = self._lost(f"the ranks did not meet: {error}")
            self.close()
            raise lost from error
        for peer in self._peers:
            peer.heard = time.monotonic()

    def build(self, order: Build, arena: Arena) -> None:
        """Build a behavior in the others. Raises `RankLost`, as all methods here do."""
        for peer in self._peers:
            self._send(peer, order, arena.fd)

    def learn(self, behavior: str, parts: Sequence[Segments], step: int) -> None:
        """Let the others gather their parts of a round, rank by rank, and update; `update` must follow."""
        for peer, segments in zip(self._peers, parts, strict=True):
            self._send(peer, Learn(behavior, segments, step))

    def wait_gathered(self) -> None:
        """Wait until the others have gathered what `learn` named: its blocks may be reclaimed then."""
        for peer in self._peers:
            try:
                if not peer.hear(self._timeout):
                    raise self._lost(f"rank {peer.rank} did not gather its round within {self._timeout:g} s")
            except (EOFError, OSError) as error:
                raise self._lost(f"rank {peer.rank} has closed its connection") from error

    def update(self, algorithm: Algorithm, rollout: Rollout, step: int) -> Mapping[str, float] | None:
        """Update together with the others. Raises also `Diverged`, then in all ranks."""
        try:
            return update_together(algorithm, rollout, step)
        except ExchangeFailed as error:
            raise self._lost(f"a rank took no part in an exchange within {self._timeout:g} s: {error}") from error

    def reconfigure(self, behavior: str, config: ReinforcementConfig) -> None:
        """Go on with another configuration from the next update on."""
        for peer in self._peers:
            self._send(peer, Reconfigure(behavior, config))

    def check(self) -> None:
        """Raise `RankLost` if one has ended, or has been silent for too long. Never waits."""
        for peer in self._peers:
            try:
                peer.hear()
            except (EOFError, OSError) as error:
                raise self._lost(f"rank {peer.rank} has closed its connection") from error
            if time.monotonic() - peer.heard > self._timeout:
                raise self._lost(f"rank {peer.rank} has frozen")

    def close(self) -> None:
        """End the other ranks."""
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.send(End())
        for peer in self._peers:
            peer.process.end(0.0 if peer.is_frozen else END_SECONDS)
            peer.connection.close()
        if dist.is_initialized():
            dist.destroy_process_group()
        self._folder.cleanup()

    def _send(self, peer: _Peer, order: Order, descriptor: int | None = None) -> None:
        try:
            peer.send(order, descriptor)
        except OSError as error:
            raise self._lost(f"rank {peer.rank} took no order within {self._timeout:g} s: {error}") from error

    def _lost(self, otherwise: str) -> RankLost:
        """Return an error that names the rank that has ended or is silent; if none is to be seen, another sentence."""
        sentences = [(3, otherwise)]
        for peer in self._peers:
            peer.drain()
        deadline = time.monotonic() + 2 * BEAT_SECONDS
        for peer in self._peers:
            is_silent = not peer.connection.poll(max(deadline - time.monotonic(), 0.0))  # an end is readable, too
            peer.drain()
            code = peer.process.wait(EXIT_SECONDS if peer.has_left else 0.0)
            if code is not None:
                why = "" if peer.failure is None else f": {peer.failure}"
                # One that ended because another took no part is not the cause.
                rating = 2 if ExchangeFailed.__name__ in why else 0
                sentences.append((rating, f"rank {peer.rank} ended with {describe_exit(code)}{why}"))
            elif is_silent:
                peer.is_frozen = True
                sentences.append((1, f"rank {peer.rank} has frozen: it does not say any more that it lives"))
        return RankLost(f"{min(sentences)[1]}; the run goes on from its last checkpoint")


def available_ranks(settings: TorchSettings, device: torch.device) -> int:
    """Return how many ranks can learn: as many as asked for, but no more than there are GPUs from the first one on."""
    if device.type != "cuda":
        return settings.processes
    return max(min(settings.processes, torch.cuda.device_count() - (device.index or 0)), 1)


def update_together(algorithm: Algorithm, rollout: Rollout, step: int) -> Mapping[str, float] | None:
    """Update as the other ranks do: all have the same weights then, or raise `Diverged`, or else `RankLost`."""
    measured: Mapping[str, float] | None = None
    diverged: Diverged | None = None
    with process_group() as traffic:
        try:
            measured = algorithm.update(rollout, step)
        except Diverged as error:
            diverged = error
        if not all_equal(zlib.crc32(algorithm.flat_weights().tobytes())):
            raise RankLost(f"the ranks' weights differ after the update at step {step}; the last checkpoint is good")
    if diverged is not None:
        raise diverged
    return None if measured is None else {**measured, EXCHANGED: float(traffic.bytes)}


def join(file: Path, rank: int, ranks: int, device: torch.device, timeout: float) -> torch.device:
    """Enter the group as number `rank`; return the device to compute on: `cuda:N` plus the number, or the CPU."""
    backend = "gloo"
    if device.type == "cuda":
        backend = "cpu:gloo,cuda:nccl"
        device = torch.device("cuda", (device.index or 0) + rank)
        torch.cuda.set_device(device)
    limit = timedelta(seconds=timeout)
    dist.init_process_group(backend, init_method=f"file://{file}", rank=rank, world_size=ranks, timeout=limit)
    return device


def seed_of_rank(order: Build, rank: int) -> int:
    """Return the seed of a rank's randomness, another one at each resume."""
    return int(np.random.SeedSequence([order.seed, rank, order.state.get("version", 0)]).generate_state(1)[0])


def state_of_rank(shared: State, own: State) -> State:
    """Return the state of rank 0 with everything that is a rank's own from that of the rank."""
    return {
        key: own[key]
        if key in OWN
        else state_of_rank(value, own[key])
        if isinstance(value, dict) and isinstance(own.get(key), dict)
        else value
        for key, value in shared.items()
    }


class _Server:
    """A rank beside number 0."""

    def __init__(self, connection: Connection, rank: int, device: torch.device) -> None:
        self._connection, self._rank, self._device = connection, rank, device
        self._lock = threading.Lock()
        """Held while something is said."""
        self._algorithms: dict[str, tuple[Algorithm, Arena, BackgroundCompilation | None]] = {}
        threading.Thread(target=self._beat, name="beat", daemon=True).start()

    def say(self, what: bytes) -> None:
        """Send rank 0 a sign of life, or more."""
        with self._lock:
            self._connection.send_bytes(what)

    def _beat(self) -> None:
        with contextlib.suppress(OSError):  # rank 0 has ended, and so will this process
            while True:
                self.say(BEAT)
                time.sleep(BEAT_SECONDS)

    def serve(self) -> None:
        """Carry out the orders of rank 0, until `End`."""
        while True:
            order: Order = pickle.loads(self._connection.recv_bytes())  # noqa: S301  (from rank 0, see above)
            match order:
                case Build():
                    self._build(order, Arena(recv_handle(self._connection), order.arena))
                case Learn(behavior, segments, step):
                    algorithm, arena, compilation = self._algorithms[behavior]
                    rollout = gather(arena, segments)
                    self.say(GATHERED)
                    if compilation is not None:
                        compilation.before_update(rollout, step)
                    try:
                        update_together(algorithm, rollout, step)
                    except Diverged as error:
                        log.warning("update_rolled_back", behavior=behavior, reason=str(error))
                case Reconfigure(behavior, config):
                    self._algorithms[behavior][0].reconfigure(config)
                case End():
                    return
                case _:
                    assert_never(order)

    def _build(self, order: Build, arena: Arena) -> None:
        """Build an algorithm: that of rank 0, with randomness of its own."""
        build = partial(build_algorithm, order.config, order.arena.spec, self._device)
        demonstrations = Demonstrations(order.demonstrations)
        algorithm = build(seed_of_rank(order, self._rank), demonstrations)
        algorithm.load_state_dict(state_of_rank(order.state, algorithm.state_dict()))
        compilation = None
        if order.compiles:
            twin = partial(build, order.seed, demonstrations)
            compilation = BackgroundCompilation(algorithm, twin, lambda name, message: log.info(name, message=message))
        self._algorithms[order.arena.spec.behavior] = algorithm, arena, compilation


def pickled(value: object) -> memoryview:
    """Pickle, tensors as arrays: a tenth of the time, and of a view only what it shows, not the whole replay buffer."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = {
        **copyreg.dispatch_table,
        Tensor: lambda tensor: (torch.from_numpy, (tensor.detach().cpu().numpy(),)),
    }
    pickler.dump(value)
    return file.getbuffer()


def _environment() -> dict[str, str]:
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    # NCCL's exchanges raise an error after the time-out, as gloo's do, instead of ending the process.
    return {**os.environ, "GLOO_SOCKET_IFNAME": interface, "TORCH_NCCL_BLOCKING_WAIT": "1"}


def main(arguments: list[str]) -> None:
    """Serve as one of the other ranks."""
    file, ranks, device, timeout, bf16, threads, rank, descriptor = arguments
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for rank 0
    torch.set_num_threads(int(threads))
    connection = Connection(int(descriptor))
    try:
        connection.send_bytes(BEAT)
        connection.recv_bytes()  # all are loaded: from now on a wait counts as one for a rank that is lost
    except (EOFError, OSError):
        return  # rank 0 has ended
    own = join(Path(file), int(rank), int(ranks), torch.device(device), float(timeout))
    server = _Server(connection, int(rank), own)
    try:
        with bf16_pictures(bool(int(bf16))):
            server.serve()
    except EOFError:
        return  # rank 0 has ended
    except Exception as error:  # the edge of the process: rank 0 tells it
        with contextlib.suppress(OSError):
            server.say(f"{type(error).__name__}: {error}".encode())
        raise
    dist.destroy_process_group()
    gc.freeze()  # number 0 waits for the end: what is left, the kernel frees at once
