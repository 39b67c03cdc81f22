"""An experiment that a controller and a simulated fleet play to its end."""

from typing import Any

from server.kit.jobs import JobLoop
from server.lifecycle.experiments.rounds import ExperimentRounds
from tests.factories import RecordingWakeUp
from tests.server.app.world import World
from tests.server.lifecycle.experiments.fleet import CONFIG, LR, Fleet

TURNS = 5000


def body(name: str, **fields: Any) -> dict[str, Any]:
    """Return an experiment of 12 runs that varies the learning rate."""
    parameters = {LR: {"min": 1e-5, "max": 1e-1, "scale": "log"}}
    return {"name": name, "config": CONFIG, "parameters": parameters, "budget": {"runs": 12}, "seed": 3, **fields}


class Played:
    """An experiment that is played by a controller and a simulated fleet."""

    def __init__(self, world: World, created: dict[str, Any], **fleet: Any) -> None:
        self.world = world
        self.name = created["name"]
        services = world.services
        self.fleet = Fleet(services.database, **fleet)
        self.most = 0
        """Runs that trained at once, at most."""
        self._services = services
        self.restart()

    def restart(self) -> None:
        """Begin a new controller: the former one is gone, with all that it had in memory."""
        experiments = ExperimentRounds(self._services.database, self._services.artifacts, RecordingWakeUp())
        self.controller = JobLoop([experiments.job()], 0.0)

    def get(self) -> dict[str, Any]:
        return dict(self.world.http.get(f"/v1/experiments/{self.name}").json())

    def trials(self, order: str = "") -> list[dict[str, Any]]:
        trials: list[dict[str, Any]] = []
        token = ""
        while True:
            parameters = {"order_by": order, "page_size": 1000, "page_token": token}
            page = self.world.http.get(f"/v1/experiments/{self.name}/trials", params=parameters).json()
            trials += page["trials"]
            token = page["next_page_token"]
            if not token:
                return trials

    def turn(self) -> None:
        """A second passes: the controller has its rounds, and every run trains for a summary."""
        while self.controller.tick()["experiments"]:
            pass
        self.fleet.turn()
        self.most = max(self.most, len(self.fleet.trainers))

    def play(self, until: str = "FINISHED") -> dict[str, Any]:
        """Let time pass until the experiment is in a state."""
        for _ in range(TURNS):
            self.turn()
            experiment = self.get()
            if experiment["state"] == until:
                return experiment
        raise AssertionError(f"never {until}: {self.get()}")


def begin(world: World, request: dict[str, Any], **fleet: Any) -> Played:
    created = world.http.post("/v1/experiments", json=request)
    assert created.status_code == 201, created.text
    return Played(world, created.json(), **fleet)
