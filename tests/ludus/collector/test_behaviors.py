"""Self-play in collector processes: opponents over the channel, turns, deaths, teams that come later, Unity players."""

import signal
from collections.abc import Iterator, Sequence

import numpy as np
import psutil
import pytest

from ludus.collector.arena import freeze, unfreeze
from ludus.collector.commands import OpponentAssignment
from ludus.collector.messages import MatchesEnded, SimulatorStarted, StepsPlayed
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.codec import array_to_tensor
from tests.ludus.collector.stack import Learner, Simulator, learner, pids_of
from tests.ludus.collector.unity.players import Participant
from tests.ludus.collector.world import NETWORK, spec_of, weights_of
from tests.unity.descriptions import Behavior
from tests.waiting import eventually
from worker.collectors.events import Endpoint, RoundCollected, TeamAnnounced

RED, BLUE, GREEN = "Duel?team=0", "Duel?team=1", "Duel?team=2"
POLICIES = {key: weights_of(key) for key in (-7, 0, 1, 2, 3)}


class Duel:
    """A native simulator of several teams whose agents all ask in every step."""

    def __init__(self, address: str, *names: str) -> None:
        self.names = names
        self.simulator = Simulator(address)
        assert self.simulator.hello(*map(spec_of, names)).HasField("welcome")

    def step(self, ended: Sequence[str] = (), reward: float = 1.0) -> dict[str, float]:
        """Let one agent of each team ask for an action; return ten times what each is answered."""
        self.send(ended, reward)
        return self.answers()

    def send(self, ended: Sequence[str] = (), reward: float = 1.0, reset_id: int = 0) -> None:
        self.simulator.step_id += 1
        parts = []
        seen = [array_to_tensor(np.zeros((1, 1), np.float32))]
        ids, rewards = np.zeros(1, np.int32).tobytes(), np.full(1, reward, np.float32).tobytes()
        for name in self.names:
            part = pb.BehaviorStep(
                behavior=name, decisions=pb.DecisionSteps(agent_ids=ids, rewards=rewards, observations=seen)
            )
            if name in ended:
                part.terminals.CopyFrom(
                    pb.TerminalSteps(agent_ids=ids, rewards=rewards, observations=seen, truncated=bytes(1))
                )
            parts.append(part)
        self.simulator.send(pb.Step(step_id=self.simulator.step_id, behaviors=parts, reset_id=reset_id))

    def answers(self) -> dict[str, float]:
        found: dict[str, float] = {}
        while len(found) < len(self.names):
            response = self.simulator.receive()
            assert response.HasField("actions"), response
            for part in response.actions.behaviors:
                found[part.behavior] = round(10 * float(np.frombuffer(part.continuous, np.float32)[0]), 3)
        return found


@pytest.fixture
def trainer() -> Iterator[Learner]:
    assignment = OpponentAssignment(0, {1: [1]}, [0])
    with learner(network=NETWORK, assignment=assignment, policies=POLICIES, size=20) as made:
        yield made


def learns(trainer: Learner) -> float:
    """Return what the policy that learns answers, ten times."""
    flat = trainer.weights(spec_of("Duel"))
    return round(float(np.clip(10 * _act(flat) / 3, -10, 10)), 3)


def _act(flat: np.ndarray) -> float:  # type: ignore[type-arg]  # of float32
    hidden = flat[1] / (1 + np.exp(-flat[1]))
    return float(flat[2] * hidden + flat[3])


def test_frozen_weights_come_over_whole_and_can_not_be_changed() -> None:
    weights = np.arange(5, dtype=np.float32)
    fd = freeze(weights)
    with open(f"/proc/self/fd/{fd}", "rb") as file:  # noqa: PTH123  (a descriptor)
        assert file.read() == weights.tobytes()
    with pytest.raises(OSError, match="not permitted"), open(fd, "r+b", buffering=0, closefd=False) as file:
        file.write(b"x")

    assert unfreeze(fd).tolist() == weights.tolist()


def test_teams_are_told_of_and_each_plays_what_is_drawn_for_it(trainer: Learner) -> None:
    duel = Duel(trainer.endpoints[0].address, RED, BLUE)
    for _ in range(3):
        answers = duel.step()

    assert answers == {RED: pytest.approx(learns(trainer), abs=0.01), BLUE: 1.0}
    assert {(notice.behavior, notice.team) for notice in trainer.heard(TeamAnnounced)} == {("Duel", 0), ("Duel", 1)}
    trainer.until(lambda: sum(notice.steps for notice in trainer.heard(StepsPlayed)) == 3)
    late = Duel(trainer.endpoints[0].address, BLUE, GREEN)
    assert late.step() == {BLUE: 1.0, GREEN: 0.0}
    trainer.wait_for(TeamAnnounced, lambda notice: notice.team == 2)


def test_nobody_is_answered_before_the_learner_has_said_who_learns() -> None:
    with learner(network=NETWORK, assignment=OpponentAssignment(None, {}, [0]), policies=POLICIES) as trainer:
        made = trainer.pool.assign_opponents
        trainer.pool.assign_opponents = lambda *_: None  # type: ignore[method-assign]  # the learner takes its time
        duel = Duel(trainer.endpoints[0].address, RED, BLUE)
        duel.send()
        trainer.wait_for(SimulatorStarted)

        made("Duel", OpponentAssignment(1, {0: [2]}, [0]), POLICIES)

        assert duel.answers() == {RED: 2.0, BLUE: pytest.approx(learns(trainer), abs=0.01)}


def test_an_exchange_takes_effect_where_an_episode_begins_and_only_new_weights_travel(trainer: Learner) -> None:
    duel = Duel(trainer.endpoints[0].address, RED, BLUE)
    duel.step()
    for key, played in ((-7, -7.0), (1, 1.0), (3, 3.0), (-7, -7.0)):
        before = duel.step()[BLUE]
        trainer.pool.assign_opponents("Duel", OpponentAssignment(0, {1: [key]}, [key]), POLICIES)
        answers = [duel.step()[BLUE] for _ in range(3)]
        assert set(answers) == {before}, "in the middle of an episode"

        assert duel.step(ended=[BLUE])[BLUE] == played


def test_the_end_of_a_match_is_told_with_its_opponents(trainer: Learner) -> None:
    duel = Duel(trainer.endpoints[0].address, RED, BLUE)
    for _ in range(3):
        duel.step()
    duel.step(ended=[RED, BLUE], reward=-2.0)

    (match,) = trainer.wait_for(MatchesEnded).matches
    assert (match.simulator, match.team, match.outcome, match.settled) == (0, 0, 3, True)
    assert match.opponents == (("Duel", 1, 1),)


def test_another_team_learns_after_the_change_and_what_was_under_way_is_void(trainer: Learner) -> None:
    duel = Duel(trainer.endpoints[0].address, RED, BLUE)
    for _ in range(3):
        duel.step()

    trainer.pool.assign_opponents("Duel", OpponentAssignment(1, {0: [3]}, [3]), POLICIES)
    trainer.pool.send_parameters({}, 0, reset=True)

    response = duel.simulator.receive()
    assert response.HasField("reset")
    duel.send(reset_id=response.reset.reset_id)
    assert duel.answers() == {RED: 3.0, BLUE: pytest.approx(learns(trainer), abs=0.01)}
    for _ in range(40):
        duel.send(reset_id=response.reset.reset_id)
        duel.answers()
    trainer.wait_for(RoundCollected, lambda notice: notice.round == 1)
    assert {sum(rollout.steps for rollout in trainer.rollouts[number]) for number in (0, 1)} == {20}


def test_a_collector_that_is_started_again_knows_the_opponents(trainer: Learner) -> None:
    duel = Duel(trainer.endpoints[0].address, RED, BLUE)
    duel.step()
    trainer.pool.assign_opponents("Duel", OpponentAssignment(1, {0: [2]}, [3]), POLICIES)
    (pid,) = pids_of(trainer.pool)
    psutil.Process(pid).send_signal(signal.SIGKILL)

    again = trainer.wait_for(Endpoint)

    duel = Duel(again.address, RED, BLUE, GREEN)
    assert duel.step() == {RED: 2.0, BLUE: pytest.approx(learns(trainer), abs=0.01), GREEN: 3.0}


def test_descriptors_of_policies_that_nobody_plays_any_more_are_given_back(trainer: Learner) -> None:
    duel = Duel(trainer.endpoints[0].address, RED, BLUE)
    duel.step()
    process, collector = psutil.Process(), psutil.Process(pids_of(trainer.pool)[0])
    before, theirs = process.num_fds(), collector.num_fds()
    for turn in range(50):
        key = (1, 2, 3)[turn % 3]
        trainer.pool.assign_opponents("Duel", OpponentAssignment(0, {1: [key]}, [key]), POLICIES)
        duel.step(ended=[BLUE])

    assert process.num_fds() <= before + 2
    eventually(lambda: collector.num_fds() <= theirs + 1)


def test_weights_of_another_policy_are_refused_at_once(trainer: Learner) -> None:
    Duel(trainer.endpoints[0].address, RED, BLUE).step()

    with pytest.raises(ValueError, match="policy 5 has 3 weights"):
        trainer.pool.assign_opponents("Duel", OpponentAssignment(0, {1: [5]}, [5]), {5: np.zeros(3, np.float32)})


def test_a_unity_player_of_two_teams_takes_part_and_begins_anew_with_the_turn() -> None:
    with learner(network=NETWORK, assignment=OpponentAssignment(0, {1: [1]}, [0])) as trainer:
        play_unity(trainer)


def play_unity(trainer: Learner) -> None:
    game = [
        Behavior("Duel?team=0", agents=2, continuous=1, episode_length=5),
        Behavior("Duel?team=1", agents=4, continuous=1, episode_length=5, group_size=2),
    ]
    participant = Participant.at(trainer, game)
    first = trainer.wait_for(MatchesEnded)
    assert first.matches[0].team == 0
    assert first.matches[0].opponents == (("Duel", 1, 1),)

    own = trainer.weights(trainer.arenas["Duel"].layout.spec)
    trainer.pool.assign_opponents("Duel", OpponentAssignment(1, {0: [1]}, [0]), {0: own, 1: own})
    trainer.pool.send_parameters({}, 0, reset=True)

    second = trainer.wait_for(MatchesEnded, lambda notice: notice.matches[0].team == 1)
    assert second.matches[0].opponents == (("Duel", 0, 1),)
    eventually(lambda: participant.player.summary.resets == 1)
    assert sum(notice.steps for notice in trainer.heard(StepsPlayed)) > 0
    summary = participant.leave()
    assert (summary.ending, summary.resets) == ("left", 1)
