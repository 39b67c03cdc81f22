import pytest

from ludus.mlagents.results.console import ELO, GROUP_REWARD, REWARD, REWARD_STD, Summary, hyperparameters, summary_line
from tests.ludus.mlagents.results.reading import PPO, events_in


@pytest.mark.parametrize(
    ("values", "training", "end"),
    [
        ({REWARD: 1.9, REWARD_STD: 0.0}, True, "Mean Reward: 1.900. Std of Reward: 0.000. Training."),
        ({REWARD: 1.9, REWARD_STD: 0.25}, False, "Mean Reward: 1.900. Std of Reward: 0.250. Not Training."),
        (
            {REWARD: 0.5, REWARD_STD: 1, GROUP_REWARD: -2},
            True,
            "Mean Reward: 0.500. Mean Group Reward: -2.000. Training.",
        ),
        (
            {REWARD: 1, REWARD_STD: 0, ELO: 1202.5141},
            True,
            "Mean Reward: 1.000. Std of Reward: 0.000. Training. ELO: 1202.514.",
        ),
        ({}, True, "No episode was completed since last summary. Training."),
    ],
)
def test_summaries_read_as_those_of_mlagents(values: dict[str, float], training: bool, end: str) -> None:
    line = summary_line(Summary("A", 200, 1.3888, values, training=training))

    assert line == f"[INFO] A. Step: 200. Time Elapsed: 1.389 s. {end}"


def test_hyperparameters_read_as_those_of_mlagents() -> None:
    (real,) = [
        value.tensor.string_val[0].decode()
        for event in events_in(PPO)
        for value in event.summary.value
        if value.tag == "Hyperparameters/text_summary"
    ]
    settings = {
        "trainer_type": "ppo",
        "hyperparameters": {"batch_size": 32, "shared_critic": False},
        "network_settings": {"memory": {"sequence_length": 8}},
        "init_path": None,
    }

    lines = hyperparameters(settings).splitlines()

    assert len(lines) == 8
    assert [line for line in lines if line not in real.splitlines()] == []
