"""Processes beside the learner that share its updates (`torch_settings.processes`), each on a GPU of its own.

The learner is number 0. The others run `main`; each builds the same algorithm and waits for what number 0 broadcasts:
load a state, learn from a rollout, end. All do exactly the same, except for their shares of the minibatches
(`worker.learning.data_parallel`). After each update the processes compare their states: where one of them had to take
an update back, the others take over its state; where weights differ, the run ends rather than go on with two policies.

The group meets through a file, on this host, over loopback: gloo on CPUs, NCCL between GPUs. Messages are pickled,
so that no other program may join: the file lies in the attempt's scratch folder.

PPO's and POCA's updates are large. SAC's are small and many, and each round is broadcast, each gradient step averaged:
sharing them pays for large batches and networks only. Every process holds the whole replay buffer.
"""

import copyreg
import gc
import io
import os
import pickle
import sys
import tempfile
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, assert_never

import structlog
import torch
import torch.distributed as dist
from torch import Tensor

from ludus.child_process import ChildProcess
from ludus.config.trainer import ReinforcementConfig
from ludus.protocol.spec import BehaviorSpec
from worker.experience.rollout import Rollout
from worker.experience.state import State
from worker.learning.algorithms.algorithm import Algorithm
from worker.learning.algorithms.numeric_check import Diverged
from worker.learning.build import Demonstrations, build_algorithm
from worker.learning.data_parallel import all_gather, process_group
from worker.trainer.compilation import bf16_pictures

log = structlog.get_logger()

FOREVER = timedelta(days=365)
"""How long a process waits for the next update: a paused game may take its time."""
END_SECONDS = 5.0
PROGRAM = "import sys; from worker.trainer.parallel import main; main(sys.argv[1:])"
"""Not `-m`: orders are pickled, and their classes must be those of this module by its name."""


class ProcessesDisagree(RuntimeError):
    """The processes of a learner have different weights after an update: none of them can be trusted."""


class Load(NamedTuple):
    """Go on from a state."""

    behavior: str
    state: State


class Learn(NamedTuple):
    """Learn from a round."""

    behavior: str
    rollout: Rollout
    step: int


class Build(NamedTuple):
    """Build a behavior's algorithm."""

    config: ReinforcementConfig
    spec: BehaviorSpec
    seed: int
    demonstrations: dict[str, str]


class Reconfigure(NamedTuple):
    """Go on with another configuration."""

    behavior: str
    config: ReinforcementConfig


class End(NamedTuple):
    """End the process."""


Order = Build | Load | Learn | Reconfigure | End


class ParallelAlgorithm(Algorithm):
    """An algorithm whose updates several processes share. Looks like any other."""

    def __init__(self, algorithm: Algorithm, behavior: str) -> None:
        self._algorithm = algorithm
        self._behavior = behavior
        self.actor, self.version = algorithm.actor, algorithm.version

    def round_steps(self) -> int:
        """Return how many agent steps one round of collection has."""
        return self._algorithm.round_steps()

    def update(self, rollout: Rollout, step: int) -> Mapping[str, float] | None:
        """Learn from one round, all processes together. The metrics are those of process 0, or the mean of all."""
        _send(Learn(self._behavior, rollout, step))
        measured = learn_together(self._algorithm, rollout, step)
        self.version = self._algorithm.version
        return measured

    def reconfigure(self, config: ReinforcementConfig) -> None:
        """Go on with another configuration from the next update on, in all processes."""
        _send(Reconfigure(self._behavior, config))
        self._algorithm.reconfigure(config)

    def state_dict(self) -> State:
        """Return everything that the next update depends on; it is the same in all processes."""
        return self._algorithm.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Go on exactly where `state_dict` was taken, in all processes."""
        _send(Load(self._behavior, state))
        self._algorithm.load_state_dict(state)
        self.version = self._algorithm.version


class Group:
    """The processes of a learner, seen from number 0. They end with `close`, or when this process does."""

    def __init__(self, processes: int, device: torch.device, scratch: Path, *, bf16: bool = False) -> None:
        """Start the others and wait for them. `bf16`: they encode pictures in bfloat16."""
        self._folder = tempfile.TemporaryDirectory(dir=scratch, prefix="group-")
        file = Path(self._folder.name) / "meeting"
        command = [sys.executable, "-c", PROGRAM, str(file), str(processes), str(device), str(int(bf16))]
        self._others = [ChildProcess([*command, str(rank)], environment=_environment()) for rank in range(1, processes)]
        os.environ.update(_environment())
        try:
            join(file, 0, processes, device)
        except BaseException:
            self._end(0.0)
            raise

    def share(self, algorithm: Algorithm, build: Build) -> ParallelAlgorithm:
        """Build the same algorithm in the other processes; return one that all of them share."""
        _send(build)
        return ParallelAlgorithm(algorithm, build.spec.behavior)

    def close(self) -> None:
        """End the other processes."""
        if all(process.exit_code() is None for process in self._others):
            _send(End())
        dist.destroy_process_group()
        self._end(END_SECONDS)

    def _end(self, seconds: float) -> None:
        for process in self._others:
            process.end(seconds)
        self._folder.cleanup()


def learn_together(algorithm: Algorithm, rollout: Rollout, step: int) -> Mapping[str, float] | None:
    """Update as the others do: all have the same weights then, or raise `Diverged`, or else `ProcessesDisagree`."""
    measured: Mapping[str, float] | None = None
    diverged: Diverged | None = None
    try:
        with process_group():
            measured = algorithm.update(rollout, step)
    except Diverged as error:
        diverged = error
    flags = all_gather(torch.tensor([diverged is not None]).int()).flatten()
    if flags.any() and not flags.all():
        source = int(flags.nonzero()[0])
        finding = None
        if diverged is not None and dist.get_rank() == source:
            finding = (diverged.tensor, diverged.minibatch, diverged.grown, algorithm.state_dict())
        tensor, minibatch, grown, state = _broadcast(finding, source)
        if diverged is None:
            algorithm.load_state_dict(state)
            diverged = Diverged(tensor, minibatch, grown=grown, process=source)
    weights = torch.from_numpy(algorithm.flat_weights()).double()
    prints = all_gather(torch.stack([weights.sum(), weights.square().sum()]))
    if not (prints == prints[0]).all():
        raise ProcessesDisagree(f"the processes' weights differ after the update at step {step}: {prints.tolist()}")
    if diverged is not None:
        raise diverged
    return measured


def join(file: Path, rank: int, processes: int, device: torch.device) -> torch.device:
    """Enter the group as number `rank`; return the device to compute on: `cuda:N` plus the number, or the CPU."""
    backend = "gloo"
    if device.type == "cuda":
        backend = "cpu:gloo,cuda:nccl"
        device = torch.device("cuda", (device.index or 0) + rank)
        torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method=f"file://{file}", rank=rank, world_size=processes, timeout=FOREVER)
    return device


def serve(device: torch.device) -> None:
    """Carry out the orders that number 0 broadcasts, until `End`."""
    algorithms: dict[str, Algorithm] = {}
    while True:
        order: Order = _broadcast(None, 0)
        match order:
            case Build(config, spec, seed, paths):
                algorithms[spec.behavior] = build_algorithm(config, spec, device, seed, Demonstrations(paths))
            case Load(behavior, state):
                algorithms[behavior].load_state_dict(state)
            case Learn(behavior, rollout, step):
                try:
                    learn_together(algorithms[behavior], rollout, step)
                except Diverged as error:
                    log.warning("update_rolled_back", reason=str(error))
            case Reconfigure(behavior, config):
                algorithms[behavior].reconfigure(config)
            case End():
                return
            case _:
                assert_never(order)


def _send(order: Order) -> None:
    _broadcast(order, 0)


def _broadcast(value: Any, source: int) -> Any:
    """Return the `value` of process `source`; tensors of the others are on the CPU."""
    sends, data = dist.get_rank() == source, torch.empty(0, dtype=torch.uint8)
    if sends:
        data = torch.frombuffer(pickled(value), dtype=torch.uint8)
    size = torch.tensor(len(data))
    dist.broadcast(size, source)
    if not sends:
        data = torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(data, source)
    return value if sends else pickle.loads(data.numpy().data)  # noqa: S301  (from this group, see above)


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
    return {**os.environ, "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}


def main(arguments: list[str]) -> None:
    """Serve as one of the other processes."""
    file, processes, device, bf16, rank = arguments
    device_here = join(Path(file), int(rank), int(processes), torch.device(device))
    torch.set_num_threads(max(1, torch.get_num_threads() // int(processes)))
    with bf16_pictures(bool(int(bf16))):
        serve(device_here)
    dist.destroy_process_group()
    gc.freeze()  # number 0 waits for the end: what is left, the kernel frees at once
