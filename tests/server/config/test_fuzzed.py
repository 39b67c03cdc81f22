"""Whatever the document, it resolves or is refused with problems that point at it; nothing else happens."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.config.problems import CODES
from ludus.config.run import RunConfig
from server.config.document import parse_document
from server.config.key_validation import KEYS
from server.config.reference import PATHS
from server.config.resolution import apply_overrides, resolve
from server.config.upgrade import upgrade
from server.kit.errors import InvalidConfig
from tests.examples import examples

LEGAL = {key for section in PATHS for key in section.model_fields}
FOREIGN = {key for keys in KEYS.values() for key in keys}
INNER = {"sampler_type", "sampler_parameters", "curriculum", "value", "demo_path"}
KEY = st.sampled_from(sorted(LEGAL | FOREIGN | INNER)) | st.text(max_size=4)
LEAF = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["ppo", "sac", "linear", "constant", "3e-4", "uniform", "cpu", "false", "", "nan"])
    | st.text(max_size=4)
)
VALUE = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEY, inner, max_size=5), max_leaves=15
)
SECTION = st.dictionaries(KEY, VALUE, max_size=6)
BEHAVIOR = st.fixed_dictionaries(
    {},
    optional={
        "trainer_type": VALUE,
        "hyperparameters": SECTION,
        "network_settings": SECTION,
        "reward_signals": SECTION,
        "max_steps": VALUE,
        "keep_checkpoints": LEAF,
        "even_checkpoints": LEAF,
        "self_play": VALUE,
    },
)
SAMPLER = st.fixed_dictionaries(
    {"sampler_type": st.sampled_from(["constant", "uniform", "gaussian", "multirangeuniform", "poisson"])},
    optional={"sampler_parameters": SECTION},
)
LESSON = st.fixed_dictionaries(
    {}, optional={"name": LEAF, "value": SAMPLER | LEAF, "completion_criteria": SECTION | st.none()}
)
PARAMETER = LEAF | SAMPLER | st.fixed_dictionaries({"curriculum": st.lists(LESSON | LEAF, max_size=3)})
DOCUMENT = st.dictionaries(KEY, VALUE, max_size=4) | st.fixed_dictionaries(
    {"behaviors": st.dictionaries(st.text(max_size=5), BEHAVIOR | VALUE, max_size=3)},
    optional={
        "default_settings": BEHAVIOR | VALUE,
        "environment_parameters": VALUE | st.dictionaries(st.text(max_size=3), PARAMETER, max_size=3),
        "env_settings": SECTION,
        "engine_settings": SECTION,
        "checkpoint_settings": SECTION,
    },
)

FORMER = st.sampled_from(
    [
        "trainer",
        "use_recurrent",
        "train_interval",
        "num_update",
        "reward_signal_num_update",
        "reward_signals",
        "pretraining",
        "use_curiosity",
        "curiosity_strength",
        "gamma",
        "sampler-type",
        "resampling-interval",
        "measure",
        "thresholds",
        "parameters",
    ]
)
TRAINER = st.sampled_from(["ppo", "sac", "offline_bc", "online_bc", "dqn", "td3", "tqc", "crossq"])
BLOCK = st.builds(
    lambda trainer, keys: {"trainer": trainer, **keys}, TRAINER | LEAF, st.dictionaries(FORMER | KEY, VALUE, max_size=6)
)
FLAT = st.dictionaries(st.sampled_from(["default", "A", "B"]), BLOCK | VALUE, max_size=3)
BESIDE = st.none() | st.dictionaries(
    st.just("A") | FORMER, st.dictionaries(FORMER, VALUE, max_size=4) | VALUE, max_size=2
)


@settings(deadline=None, max_examples=examples(100))
@given(FLAT | DOCUMENT, BESIDE, BESIDE)
def test_any_document_is_upgraded_or_refused(document: dict[str, Any], curriculum: Any, sampler: Any) -> None:
    problems = []
    try:
        done = upgrade(document, curriculum=curriculum, sampler=sampler)
    except InvalidConfig as error:
        problems = list(error.problems)
    else:
        assert parse_document(done.text) == done.document

    assert {problem.code for problem in problems} <= CODES.keys()


@settings(deadline=None, max_examples=examples(100))
@given(DOCUMENT, st.dictionaries(KEY | st.just("behaviors.A.max_steps"), VALUE, max_size=2))
def test_any_document_is_resolved_or_refused(document: dict[str, Any], overrides: dict[str, Any]) -> None:
    problems = []
    try:
        config = resolve(apply_overrides(document, overrides))
    except InvalidConfig as error:
        problems = list(error.problems)
    else:
        assert RunConfig.model_validate(config.model_dump(mode="json")) == config

    assert {problem.code for problem in problems} <= CODES.keys()
    assert len({(problem.path, problem.message) for problem in problems}) == len(problems)
    assert all(problem.message and len(problem.message) < 1000 for problem in problems)
