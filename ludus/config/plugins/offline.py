"""Configurations of offline reinforcement learning (`worker.learning.plugins.offline` learns): `offline` from
demonstrations alone, `finetune` on from there with simulators.
"""

from collections.abc import Mapping
from typing import ClassVar, Final, Literal

from pydantic import Field, ValidationInfo, field_validator

from ludus.config.hyperparameters import MAX_BUFFER, MAX_STEPS, Hyperparameters, OffPolicyHyperparameters
from ludus.config.imitation import BehavioralCloningConfig, FromDemonstrations
from ludus.config.rewards import ExtrinsicConfig, RewardSignals
from ludus.config.trainer import RATE, SECTION, DemonstratedConfig, MemorylessConfig, OffPolicyConfig, amendable
from ludus.config.values import Flag, Own, Real, Whole, config_error

Algorithm = Literal["iql", "rebrac"]
_KEYS: Final[Mapping[Algorithm, tuple[str, ...]]] = {
    "iql": ("expectile", "temperature", "advantage_clip"),
    "rebrac": ("beta1", "beta2", "policy_delay", "target_noise", "target_noise_clip", "critic_layer_norm"),
}
"""The hyperparameters that one of the algorithms alone has."""
_AMENDABLE: Final = ("tau", *_KEYS["iql"], *(key for key in _KEYS["rebrac"] if key != "critic_layer_norm"))


class OfflineHyperparameters(Hyperparameters):
    """Offline reinforcement learning: implicit Q-learning (IQL, Kostrikov et al. 2021) or ReBRAC (Tarasov et al. 2023).

    The defaults are the papers' for locomotion, those of IQL where both have a key.
    """

    batch_size: Whole = Field(default=256, ge=1, le=MAX_BUFFER)
    """Demonstrated steps per gradient step. The papers' are 256 (IQL) and 1,024 (ReBRAC). Typical: 256 to 1,024."""
    learning_rate: Real = Field(default=3.0e-4, gt=0, le=1)
    """Adam's step size. The papers' are 3e-4 (IQL) and 1e-3 (ReBRAC). Typical: 1e-4 to 1e-3."""
    learning_rate_schedule: Literal["linear", "constant"] = "constant"
    """How `learning_rate` changes; linear ends at 1e-10 (IQL's paper lowers the policy's, by a cosine)."""
    tau: Real = Field(default=0.005, gt=0, le=1)
    """Fraction by which target networks move towards the networks per step. Typical: 0.005 to 0.01."""
    expectile: Own[Real] = Field(default=0.7, gt=0, lt=1)
    """IQL: which expectile of the values of demonstrated actions is a state's value: 0.5 is their mean, towards 1 it is
    the best of them. Typical: 0.7 to 0.9.
    """
    temperature: Own[Real] = Field(default=3.0, ge=0)
    """IQL: the inverse temperature (beta in the paper) of the weights `exp(temperature * advantage)` of demonstrated
    actions; 0 imitates all alike. Advantages are in units of the rewards: scale those by `reward_signals.extrinsic
    .strength`. Typical: 0.5 to 10.
    """
    advantage_clip: Own[Real] = Field(default=100.0, gt=0)
    """IQL: the largest of these weights. Typical: 100."""
    beta1: Own[Real] = Field(default=0.01, ge=0)
    """ReBRAC: weight of the squared distance to demonstrated actions in the policy's loss, where values are divided by
    their mean size. Larger stays closer to the demonstrations. Typical: 0.001 to 1.
    """
    beta2: Own[Real] = Field(default=0.01, ge=0)
    """ReBRAC: weight of that distance in the critics' targets, at the step that follows. Typical: 0 to 1."""
    policy_delay: Own[Whole] = Field(default=2, ge=1, le=MAX_STEPS)
    """ReBRAC: gradient steps of the critics for each one of the policy and of the target networks. Typical: 1 to 4."""
    target_noise: Own[Real] = Field(default=0.2, ge=0, le=2)
    """ReBRAC: standard deviation of the noise on the target policy's actions; 0 = none. Typical: 0.1 to 0.3."""
    target_noise_clip: Own[Real] = Field(default=0.5, gt=0, le=2)
    """ReBRAC: largest size of that noise. Typical: 0.3 to 0.5."""
    critic_layer_norm: Own[Flag] = True
    """ReBRAC: layer norms in the hidden layers of the critics, whatever `network_settings.hidden_type` is. False gives
    them the policy's kind: networks that are TD3's.
    """


class FinetuneHyperparameters(OfflineHyperparameters, OffPolicyHyperparameters):
    """Fine-tuning: the numbers of `offline`, and those of a replay buffer, which begins with the demonstrations."""

    exploration_sigma: Own[Real] = Field(default=0.1, gt=0, le=2)
    """ReBRAC: standard deviation of the noise on actions. IQL explores with the deviation that it has learned."""


class _Offline(MemorylessConfig):
    """What both trainers have in common."""

    head: ClassVar[str] = "gaussian_noise"
    hyperparameters: OfflineHyperparameters = OfflineHyperparameters()
    reward_signals: RewardSignals = RewardSignals(extrinsic=ExtrinsicConfig())
    """The reward signals: `extrinsic` alone, the recorded rewards."""
    algorithm: Own[Algorithm] = "iql"
    """The algorithm: `iql` for continuous actions and discrete branches, `rebrac` for continuous actions alone."""

    @field_validator("reward_signals")
    @classmethod
    def _recorded_rewards(cls, reward_signals: RewardSignals) -> RewardSignals:
        others = [name for name, _ in reward_signals.active() if name != "extrinsic"]
        trainer = cls.model_fields["trainer_type"].default
        if not others and reward_signals.extrinsic is not None:
            if not reward_signals.extrinsic.normalize_reward:
                return reward_signals
            raise config_error(
                "contradiction",
                f"trainer_type {trainer} learns from recorded rewards, which have one scale; remove normalize_reward, "
                "and set reward_signals.extrinsic.strength",
                at="reward_signals.extrinsic.normalize_reward",
            )
        raise config_error(
            "contradiction",
            f"trainer_type {trainer} learns from recorded rewards; give it reward_signals.extrinsic"
            + (f", and remove {', '.join(others)}" if others else ""),
        )

    @field_validator("algorithm")
    @classmethod
    def _own_numbers(cls, algorithm: Algorithm, info: ValidationInfo) -> Algorithm:
        numbers = info.data.get("hyperparameters")
        for other, keys in _KEYS.items():
            for key in keys if other != algorithm and numbers is not None else ():
                default = OfflineHyperparameters.model_fields[key].default
                if getattr(numbers, key) != default:
                    raise config_error(
                        "contradiction",
                        f"belongs to algorithm {other}, and the algorithm is {algorithm}; remove it, or set algorithm: "
                        f"{other}",
                        at=f"hyperparameters.{key}",
                    )
        return algorithm


class OfflineConfig(_Offline, DemonstratedConfig):
    """One behavior that learns from the rewards in demonstrations, good or bad ones (Ludus' own): simulators are not
    needed, but evaluate it.
    """

    implementation: ClassVar[str] = "worker.learning.plugins.offline.build:build_offline"
    amendable: ClassVar[frozenset[str]] = SECTION | {f"hyperparameters.{key}" for key in {*RATE, *_AMENDABLE}}
    trainer_type: Own[Literal["offline"]] = "offline"


class FinetuneConfig(_Offline, FromDemonstrations, OffPolicyConfig):
    """One behavior that learns on with simulators, from a replay buffer that begins with demonstrations (Ludus' own).
    `initialize_from` names the checkpoint of a run with `trainer_type: offline`.
    """

    implementation: ClassVar[str] = "worker.learning.plugins.offline.build:build_finetune"
    amendable: ClassVar[frozenset[str]] = amendable("exploration_sigma", *_AMENDABLE)
    trainer_type: Own[Literal["finetune"]] = "finetune"
    hyperparameters: FinetuneHyperparameters = FinetuneHyperparameters()

    @field_validator("behavioral_cloning")
    @classmethod
    def _no_cloning(cls, behavioral_cloning: BehavioralCloningConfig | None) -> BehavioralCloningConfig | None:
        if behavioral_cloning is None:
            return None
        raise config_error(
            "contradiction", "trainer_type finetune has no behavioral_cloning; its own losses stay near demonstrations"
        )

    @classmethod
    def of(cls, config: OfflineConfig, steps: int) -> "FinetuneConfig":
        """Return the section of a run that would go on from `config`, whose buffer holds so many steps."""
        numbers = config.hyperparameters.model_dump()
        return cls(
            demonstrations=config.demonstrations,
            demo_path=config.demo_path,
            network_settings=config.network_settings,
            reward_signals=config.reward_signals,
            algorithm=config.algorithm,
            hyperparameters=FinetuneHyperparameters(
                **numbers, buffer_size=max(steps, config.hyperparameters.batch_size)
            ),
        )
