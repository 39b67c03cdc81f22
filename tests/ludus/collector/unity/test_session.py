"""Players at a real collector: what they say arrives at the learner, and what is decided there reaches them.

`converse` plays, and holds the segments and episodes that the learner was given against the player's own transcript:
every observation, mask, reward, group and ending, and every action that the player was told.
"""

import time
from collections.abc import Iterator

import pytest

from ludus.collector.messages import BehaviorAnnounced, SimulatorConnected, SimulatorStarted
from ludus.collector.segments import SegmentEnd
from ludus.protocol.environment_parameters import Constant
from ludus.protocol.mlagents import agent_pb2, unity_pb2
from ludus.protocol.options import SESSION_ID_METADATA
from ludus.protocol.spec import DimensionProperty, ObservationType
from tests.ludus.collector.stack import Learner, learner
from tests.ludus.collector.unity.players import (
    SEED,
    Conversation,
    Participant,
    collected,
    converse,
    eventually,
    left,
    number_of,
)
from tests.unity.descriptions import PACKAGES, Behavior, Package, Sensor
from tests.unity.transcripts import check_transcript

MEBI = 1 << 20


@pytest.fixture(scope="module")
def trainer() -> Iterator[Learner]:
    with learner(size=192, horizon=16, num_areas=3, max_message_bytes=8 * MEBI) as running:
        yield running


def outputs(conversation: Conversation) -> list[unity_pb2.UnityOutputProto]:
    """Return what the player said between the handshake and its goodbye."""
    return [message.unity_output for direction, message in conversation.transcript if direction == "sent"][2:-1]


def infos(conversation: Conversation, name: str) -> list[list[agent_pb2.AgentInfoProto]]:
    """Return what a behavior's agents said, message by message."""
    return [list(output.rl_output.agentInfos[name].value) for output in outputs(conversation)]


def endings(conversation: Conversation) -> set[SegmentEnd]:
    return {life.ending for lives in conversation.lives.values() for life in lives}


# The handshake -----------------------------------------------------------------------------------------------------


def test_a_player_is_welcomed_with_the_run_s_seed_and_its_own_number(trainer: Learner) -> None:
    game = [Behavior("Guest?team=0", continuous=1)]
    first, second = converse(trainer, game, 3), converse(trainer, game, 3)

    connected = trainer.wait_for(SimulatorConnected, lambda notice: notice.number == first.number)
    assert second.number == first.number + 1
    assert [each.summary.seed for each in (first, second)] == [SEED + first.number, SEED + second.number]
    assert connected.client == "Unity ML-Agents 3.0.0 (API 1.5.0)"
    assert (first.summary.num_areas, first.summary.trainer_version) == (3, "1.1.0")


@pytest.mark.parametrize("version", ["1.0.0", "1.9.9", "1.5.0-preview"])
def test_players_of_the_same_major_version_are_served(version: str, trainer: Learner) -> None:
    package = Package(communication=version)

    conversation = converse(trainer, [Behavior(f"Version{version}?team=0", continuous=1)], 3, package=package)

    assert conversation.summary.agent_steps == 3


def test_a_player_waits_for_its_first_actions_as_long_as_the_run_needs(trainer: Learner) -> None:
    trainer.held.add("Early")
    participant = Participant.at(trainer, [Behavior("Early?team=0", agents=2, continuous=1)])
    started = trainer.wait_for(SimulatorStarted, lambda notice: notice.behaviors == ("Early?team=0",))

    answered_before = participant.agent_steps
    trainer.pool.grant("Early", 0, 8)
    collected(trainer, "Early", 0)
    trainer.pool.grant_unrecorded("Early")
    participant.leave()

    assert (started.agents, answered_before) == (2, 0)


# Agents ------------------------------------------------------------------------------------------------------------


def test_behaviors_may_be_announced_at_any_time_with_their_teams(trainer: Learner) -> None:
    game = [
        Behavior("First?team=7", agents=2, continuous=2),
        Behavior("Late?team=0", agents=2, branches=(2,), appears_at=10),
        Behavior("Late?team=1", agents=3, branches=(2,), appears_at=25),
    ]

    conversation = converse(trainer, game, 60)

    announced = {
        brain.brain_name: number
        for number, output in enumerate(outputs(conversation))
        for brain in output.rl_initialization_output.brain_parameters
    }
    assert announced == {"First?team=7": 0, "Late?team=0": 10, "Late?team=1": 25}
    behaviors = [behavior for behavior, _ in conversation.lives]
    assert (behaviors.count("First"), behaviors.count("Late")) == (2, 5)
    assert conversation.delivered_steps > 250


def test_an_agent_may_end_and_begin_anew_in_one_message(trainer: Learner) -> None:
    conversation = converse(trainer, [Behavior("Phoenix?team=0", agents=3, continuous=2, episode_length=6)], 40)

    both = [
        [info.id for info in message]
        for message in infos(conversation, "Phoenix?team=0")
        if {info.id for info in message if info.done} & {info.id for info in message if not info.done}
    ]
    assert len(both) == 6
    assert [len(lives) for lives in conversation.lives.values()] == [7, 7, 7]
    assert endings(conversation) == {SegmentEnd.TERMINATED, SegmentEnd.CUT}


def test_actions_go_to_those_who_asked_in_the_order_in_which_they_did(trainer: Learner) -> None:
    name = "Hybrid?team=0"
    game = Behavior(
        name, agents=5, continuous=2, branches=(3, 2), decision_period=3, staggered=True, episode_length=12, jitter=5
    )

    conversation = converse(trainer, [game], 90)

    askers = {tuple(info.id for info in message if not info.done) for message in infos(conversation, name)}
    assert len(askers) >= 3, "different agents ask at different steps"
    assert conversation.delivered_steps > 100


def test_an_episode_that_a_limit_cuts_is_truncated_and_its_future_has_value(trainer: Learner) -> None:
    conversation = converse(
        trainer, [Behavior("Mortal?team=0", agents=4, continuous=1, episode_length=9, jitter=8, max_step=12)], 60
    )

    assert endings(conversation) == {SegmentEnd.TERMINATED, SegmentEnd.TRUNCATED, SegmentEnd.CUT}


def test_agents_that_are_disabled_give_way_to_others_with_new_ids(trainer: Learner) -> None:
    conversation = converse(
        trainer, [Behavior("Relay?team=0", agents=2, continuous=1, episode_length=5, episodes_per_life=2)], 60
    )

    assert len(conversation.lives) > 6
    assert max(len(lives) for lives in conversation.lives.values()) == 2


def test_groups_arrive_with_their_rewards_and_with_members_that_die(trainer: Learner) -> None:
    conversation = converse(
        trainer,
        [Behavior("Team?team=0", agents=6, branches=(3,), group_size=3, casualties=True, episode_length=12, jitter=3)],
        60,
    )

    lives = [life for lives in conversation.lives.values() for life in lives]
    assert {life.group for life in lives} == {1, 2}
    assert sum(step.group_reward for life in lives for step in life.steps) > 10
    dead = [rollout for rollout in trainer.delivered["Team"] if rollout.endings[0] and rollout.mates_alive[0]]
    assert dead, "some died while their mates lived on"


def test_masks_arrive_and_no_forbidden_choice_is_made(trainer: Learner) -> None:
    conversation = converse(trainer, [Behavior("Masked?team=0", agents=4, branches=(3, 2), masked=True)], 60)

    allowed = [step.allowed for lives in conversation.lives.values() for life in lives for step in life.steps]
    assert sum(all(row) for row in allowed) > 20
    assert sum(not all(row) for row in allowed) > 20
    assert conversation.summary.forbidden_choices == 0


@pytest.mark.parametrize(("continuous", "branches"), [(2, ()), (0, (3, 2))])
def test_the_oldest_packages_are_answered_in_their_own_fields(
    continuous: int, branches: tuple[int, ...], trainer: Learner
) -> None:
    game = Behavior(f"Old{continuous}?team=0", agents=4, continuous=continuous, branches=branches, masked=True)

    conversation = converse(trainer, [game], 40, package=PACKAGES["1.0.8"])

    (brain,) = outputs(conversation)[0].rl_initialization_output.brain_parameters
    assert not brain.HasField("action_spec")
    assert conversation.summary.forbidden_choices == 0
    assert conversation.delivered_steps > 100


# Observations ------------------------------------------------------------------------------------------------------


def announced(trainer: Learner, behavior: str) -> list[tuple[tuple[int, ...], str]]:
    """Return shape and type of each observation that the learner was told of."""
    notice = trainer.wait_for(BehaviorAnnounced, lambda notice: notice.spec.behavior == behavior)
    return [(observation.shape, observation.dtype) for observation in notice.spec.observations]


def test_pictures_arrive_whole_however_many_files_they_are_made_of(trainer: Learner) -> None:
    sensors = (
        Sensor("a color", "png", (3, 20, 20)),
        Sensor("b gray", "png", (1, 20, 20)),
        Sensor("c gray stack", "png", (2, 20, 20), mapping=(0, 0, 0, 1, 1, 1)),
        Sensor("d grid", "png", (4, 20, 20), mapping=(3, 0, 1, -1, 2, -1)),
        Sensor("e color stack", "png", (6, 20, 20)),
        Sensor("f plain", "visual", (2, 20, 20)),
    )

    conversation = converse(trainer, [Behavior("Watcher?team=0", agents=2, branches=(3,), sensors=sensors)], 20)

    assert announced(trainer, "Watcher") == [
        ((3, 20, 20), "uint8"),
        ((1, 20, 20), "uint8"),
        ((2, 20, 20), "uint8"),
        ((4, 20, 20), "uint8"),
        ((6, 20, 20), "uint8"),
        ((2, 20, 20), "float32"),
    ]
    assert conversation.delivered_steps >= 20


@pytest.mark.parametrize("package", ["2.3.0-exp.3", "1.0.8"])
def test_pictures_of_old_packages_are_turned_so_that_channels_come_first(package: str, trainer: Learner) -> None:
    sensors = (Sensor("a color", "png", (3, 20, 24)), Sensor("b plain", "visual", (2, 20, 24)))
    name = f"Old {package}"

    conversation = converse(
        trainer, [Behavior(f"{name}?team=0", continuous=2, sensors=sensors)], 15, package=PACKAGES[package]
    )

    assert announced(trainer, name) == [((3, 20, 24), "uint8"), ((2, 20, 24), "float32")]
    assert conversation.delivered_steps > 9


def test_entities_and_goals_are_known_as_such(trainer: Learner) -> None:
    sensors = (Sensor("entities", "buffer", (4, 3)), Sensor("goal", "vector", (3,), goal=True), Sensor("vector"))

    conversation = converse(trainer, [Behavior("Seeker?team=0", agents=2, continuous=2, sensors=sensors)], 20)

    spec = trainer.wait_for(BehaviorAnnounced, lambda notice: notice.spec.behavior == "Seeker").spec
    entities, goal, vector = spec.observations
    assert entities.dimension_properties == (DimensionProperty.VARIABLE_SIZE, DimensionProperty.NONE)
    assert [each.type for each in (goal, vector)] == [ObservationType.GOAL_SIGNAL, ObservationType.DEFAULT]
    assert conversation.delivered_steps >= 20


@pytest.mark.long
def test_messages_may_be_larger_than_grpc_allows_by_default(trainer: Learner) -> None:
    sensor = Sensor("map", shape=(20_000,))

    conversation = converse(trainer, [Behavior("Huge?team=0", agents=60, continuous=1, sensors=(sensor,))], 5)

    assert outputs(conversation)[0].ByteSize() > 4.5 * MEBI
    assert conversation.summary.agent_steps == 300


# Resets and ends ---------------------------------------------------------------------------------------------------


def test_a_reset_is_the_reply_to_the_pending_call_and_voids_what_was_under_way(trainer: Learner) -> None:
    trainer.held.add("Reset")
    participant = Participant.at(trainer, [Behavior("Reset?team=0", agents=2, continuous=1, episode_length=0)])
    trainer.wait_for(SimulatorStarted, lambda notice: notice.behaviors == ("Reset?team=0",))
    for number in range(2):
        trainer.pool.grant("Reset", number, 20)
        collected(trainer, "Reset", number)  # the eleventh call waits
        trainer.pool.send_parameters({"size": Constant(number)}, 0, reset=True)
        eventually(lambda number=number: participant.player.summary.resets == number + 1)  # type: ignore[misc]
    trainer.pool.grant_unrecorded("Reset")
    participant.leave()

    conversation = Conversation(trainer, participant.player)
    assert conversation.summary.parameters["size"] == ["constant", 1.0]
    assert [[life.void for life in lives] for lives in conversation.lives.values()] == [[True, True, False]] * 2
    assert conversation.delivered_steps == 40


def test_a_reset_reaches_a_player_that_computes_with_its_next_reply(trainer: Learner) -> None:
    thinker = Participant.at(trainer, [Behavior("Thinker?team=0", continuous=1, episode_length=0)], pace=0.3)
    trainer.held.add("Witness")
    witness = Participant.at(trainer, [Behavior("Witness?team=0", continuous=1)])
    trainer.wait_for(SimulatorStarted, lambda notice: notice.behaviors == ("Witness?team=0",))
    answered = thinker.agent_steps
    eventually(lambda: thinker.agent_steps > answered)  # it has just begun to compute

    trainer.pool.send_parameters({}, 0, reset=True)

    eventually(lambda: witness.player.summary.resets == 1)
    assert thinker.player.summary.resets == 0
    eventually(lambda: thinker.player.summary.resets == 1)
    thinker.leave()
    trainer.pool.grant_unrecorded("Witness")
    witness.leave()
    conversation = Conversation(trainer, thinker.player)
    assert [life.void for life in conversation.lives["Thinker", 0]] in ([True], [True, False])


def test_a_player_that_says_goodbye_has_left_in_good_order(trainer: Learner) -> None:
    conversation = converse(trainer, [Behavior("Polite?team=0", agents=2, continuous=1, episode_length=0)], 33)

    ended = left(trainer, conversation.number)
    assert (ended.code, ended.steps) == ("left", 64)
    trainer.until(lambda: sum(rollout.steps for rollout in trainer.delivered.get("Polite", [])) == 64)


def test_at_the_end_every_player_is_told_so_with_status_400_and_the_reason() -> None:
    with learner() as trainer:
        trainer.held.add("Waiter")
        waiting = Participant.at(trainer, [Behavior("Waiter?team=0", continuous=1)])
        computing = Participant.at(trainer, [Behavior("Worker?team=0", continuous=1)], pace=0.2)
        trainer.wait_for(SimulatorStarted, lambda notice: notice.behaviors == ("Waiter?team=0",))
        eventually(lambda: computing.agent_steps > 0)

        trainer.pool.close("run_finished", "every behavior has reached its max_steps", rejoin=False)

        for participant in (waiting, computing):
            assert participant.end().ending == "ended"
            assert participant.player.summary.close == ("run_finished", "every behavior has reached its max_steps")
            assert check_transcript(participant.player.transcript) == []


# Many --------------------------------------------------------------------------------------------------------------


def play_together(trainer: Learner, name: str, players: int, steps: int) -> list[Conversation]:
    """Let players of one agent each play at once on one port."""
    participants = [Participant.at(trainer, [Behavior(f"{name}?team=0", continuous=2)], steps) for _ in range(players)]
    summaries = [participant.end() for participant in participants]
    assert {summary.ending for summary in summaries} == {"left"}
    assert len({number_of(summary) for summary in summaries}) == players
    return [Conversation(trainer, participant.player) for participant in participants]


@pytest.mark.long
def test_64_players_play_on_one_port_at_once(trainer: Learner) -> None:
    began = time.monotonic()

    conversations = play_together(trainer, "Crowd", 64, 12)

    assert time.monotonic() - began < 20
    assert {conversation.summary.agent_steps for conversation in conversations} == {12}


@pytest.mark.slow
def test_256_players_play_on_one_port_at_once(trainer: Learner) -> None:
    conversations = play_together(trainer, "Multitude", 256, 30)

    assert {conversation.summary.agent_steps for conversation in conversations} == {30}


@pytest.mark.parametrize(
    ("own_connection", "session_ids"),
    [(True, False), (False, False), (False, True)],
    ids=["with a connection each", "sharing one", "sharing one and saying who they are"],
)
def test_four_players_of_one_process_are_told_apart(own_connection: bool, session_ids: bool, trainer: Learner) -> None:
    name = f"Twin{own_connection}{session_ids}"
    participants = [
        Participant.at(
            trainer,
            [Behavior(f"{name}?team=0", agents=1 + place, continuous=2)],
            60,
            own_connection=own_connection,
            metadata=[(SESSION_ID_METADATA, f"{name}-{place}")] if session_ids else (),
        )
        for place in range(4)
    ]
    for participant in participants:
        assert participant.end().ending == "left"

    conversations = [Conversation(trainer, participant.player) for participant in participants]
    assert [conversation.summary.agent_steps for conversation in conversations] == [60, 120, 180, 240]
    connected = [
        notice
        for notice in trainer.heard(SimulatorConnected)
        if notice.number in {conversation.number for conversation in conversations}
    ]
    assert len(connected) == 4
    assert (len({notice.peer for notice in connected}) == 4) is own_connection
    if session_ids:
        assert {notice.session_id for notice in connected} == {f"{name}-{place}" for place in range(4)}
