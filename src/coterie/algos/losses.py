"""PPO-clip, the plain policy gradients, and maximum likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from coterie.algos import surrogates
from coterie.algos.aggregate import Aggregation, check_aggregation, token_weights
from coterie.algos.checks import Overrides, require
from coterie.algos.loss_metrics import means
from coterie.algos.policy_loss import ActionTokens, PolicyLoss, TokenMetrics
from coterie.core.batch import Batch, Outputs
from coterie.core.protocols import LossOutput


@dataclass(frozen=True)
class PPOClip(PolicyLoss):
    """PPO's clipped surrogate with separate bounds; dual clip and a two-sided cap are options.

    Equation:

        loss_t = max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)),   rho = exp(logprob - old_logprob)
        delta > 0:                 loss_t = max(-A min(rho, delta), -A clip(rho, ...))
        dual_clip > 0 and A < 0:   loss_t = min(loss_t, -A dual_clip)

    Paper: PPO, arXiv 1707.06347, eq. 7; dual clip, arXiv 1912.09729; clip_high = 0.28 is DAPO's clip-higher,
    arXiv 2503.14476; delta is INTELLECT-2's, arXiv 2505.07291.

    Differences: verl has dual clip on by default (c = 3); TRL and slime don't bound the log-ratio; TRL rejects
    sequences by sampler mismatch by default; slime averages per sequence.

    Degenerate cases: on-policy rho = 1, nothing is clipped and the gradient is the policy gradient. Advantage 0 gives
    loss and gradient 0.

    Attributes:
        clip_low: distance below 1 at which the ratio is clipped.
        clip_high: distance above 1 at which it is clipped.
        dual_clip: bound on the ratio where the advantage is negative, above 1; 0 for none.
        delta: cap on the ratio where the advantage is negative, above 1 + clip_high; 0 for none.
    """

    paper: ClassVar[str] = "1707.06347 eq. 7"
    conventions: ClassVar[Overrides] = {
        "verl": {"dual_clip": 3.0},
        "trl": {
            "log_ratio_bound": 0.0,
            "kl_clamp": "none",
            "correction": "sequence_mis",
            "correction_low": 0.0,
            "correction_high": 3.0,
        },
        "openrlhf": {"kl_clamp": "all"},
        "skyrl": {"kl": "k3", "kl_coef": 0.001},
        "slime": {"log_ratio_bound": 0.0, "aggregate": "sequence_mean"},
        "nemo_rl": {"kl": "k3", "kl_coef": 0.01},
        "areal": {},
    }

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 0.0
    delta: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "clip_low", self.clip_low >= 0, "must be >= 0")
        require(self, "clip_high", self.clip_high >= 0, "must be >= 0")
        require(self, "dual_clip", self.dual_clip == 0 or self.dual_clip > 1, "must be above 1, or 0 for none")
        rule = "must be above 1 + clip_high, or 0 for none"
        require(self, "delta", self.delta == 0 or self.delta > 1 + self.clip_high, rule)

    def surrogate(self, tokens: ActionTokens) -> tuple[Float[Tensor, "A"], TokenMetrics]:
        ratio = surrogates.log_ratio(tokens.logprobs, tokens.old_logprobs, self.log_ratio_bound).exp()
        bounds = (self.clip_low, self.clip_high)
        loss = surrogates.clipped(ratio, tokens.advantages, *bounds, dual_clip=self.dual_clip, delta=self.delta)
        shown = clip_metrics(ratio, tokens.advantages, *bounds)
        if self.dual_clip:
            shown = {**shown, "policy/dual_clip_frac": (ratio > self.dual_clip) & (tokens.advantages < 0)}
        return loss, shown


@dataclass(frozen=True)
class Reinforce(PolicyLoss):
    """The policy gradient without a ratio.

    Equation: `loss_t = -A logprob`; with a correction `-A sg(w) logprob`.

    Paper: Williams 1992, REINFORCE.

    Differences: verl's bypass mode with loss type "reinforce" is `bypass=true` with a correction: the weight is then
    exp(logprob - sampler_logprob), taken at every update. SkyRL's rollout_is is that with correction=token_mis.
    NeMo-RL: disable_ppo_ratio.

    Degenerate cases: several updates on one batch aren't corrected for unless a correction is on together with bypass.
    """

    paper: ClassVar[str] = "Williams 1992"
    conventions: ClassVar[Overrides] = {
        "verl_bypass": {"bypass": True, "correction": "token_tis"},
        "skyrl_rollout_is": {"bypass": True, "correction": "token_mis"},
    }
    uses_ratio: ClassVar[bool] = False

    def surrogate(self, tokens: ActionTokens) -> tuple[Float[Tensor, "A"], TokenMetrics]:
        return surrogates.reinforce(tokens.logprobs, tokens.advantages), {}


@dataclass(frozen=True)
class GPGLoss(Reinforce):
    """Group policy gradient: REINFORCE on GPG's advantages.

    Equation: `loss_t = -A logprob`, with A from `advantage=gpg`.

    Paper: GPG, arXiv 2504.02546.

    Differences: the loss is that of `Reinforce`; what is GPG's own sits in the advantage.

    Degenerate cases: as `Reinforce`.
    """

    paper: ClassVar[str] = "2504.02546"
    conventions: ClassVar[Overrides] = {"verl": {}}


@dataclass(frozen=True)
class ImportanceSampling(PolicyLoss):
    """The ratio without a clip.

    Equation: `loss_t = -A rho`; with `bypass` the ratio is to the sampler.

    Paper: CS336's GRPO-No-Clip; tinker's importance_sampling.

    Differences: tinker sums over tokens (`aggregate=token_sum`) and takes the ratio to the sampler.

    Degenerate cases: on-policy its gradient is the policy gradient; far off-policy its variance is unbounded.
    """

    paper: ClassVar[str] = "CS336 assignment 5, GRPO-No-Clip"
    conventions: ClassVar[Overrides] = {
        "tinker": {"bypass": True, "aggregate": "token_sum"},
        "skyrl": {"bypass": True, "aggregate": "token_sum"},
    }

    def surrogate(self, tokens: ActionTokens) -> tuple[Float[Tensor, "A"], TokenMetrics]:
        bound = self.log_ratio_bound
        return (
            surrogates.importance_sampling(
                tokens.logprobs, tokens.old_logprobs, tokens.advantages, log_ratio_bound=bound
            ),
            {},
        )


@dataclass(frozen=True)
class SFTLoss:
    """Maximum likelihood: the mean negative logprob of the action tokens.

    Equation: `loss = sum_t -logprob_t / (action tokens of the whole batch)`.

    Paper: none.

    Differences: the denominator is global, so gradient accumulation doesn't give short rows more weight. CS336's form
    is `aggregate=sequence_sum`.

    Degenerate cases: a row without action tokens adds nothing.

    Attributes:
        aggregate: denominator, as in the policy losses.
        fixed_length: tokens a sequence is divided by with aggregate=fixed_length; 0 otherwise.
    """

    paper: ClassVar[str] = ""
    conventions: ClassVar[Overrides] = {"cs336": {"aggregate": "sequence_sum"}}
    needs: ClassVar[frozenset[str]] = frozenset()
    wants: ClassVar[frozenset[str]] = frozenset()

    aggregate: Aggregation = "token_mean"
    fixed_length: int = 0

    def __post_init__(self) -> None:
        check_aggregation(self.aggregate, self.fixed_length)

    def __call__(self, outputs: Outputs, batch: Batch) -> LossOutput:
        weights = token_weights(batch, self.aggregate, self.fixed_length).to(outputs.logprobs.dtype)
        shown = {"sft/nll": -outputs.logprobs, "sft/token_prob": outputs.logprobs.exp()}
        if outputs.entropy is not None:
            shown["sft/entropy"] = outputs.entropy
        return LossOutput((self.token_losses(outputs.logprobs) * weights).sum(), means(shown))

    def token_losses(self, logprobs: Float[Tensor, "A"]) -> Float[Tensor, "A"]:
        """One loss an action token."""
        return -logprobs


@dataclass(frozen=True)
class DFTLoss(SFTLoss):
    """Dynamic fine-tuning: maximum likelihood with each token weighted by its own probability.

    Equation: `loss_t = -sg(exp(logprob_t)) logprob_t`.

    Paper: DFT, arXiv 2508.05629.

    Differences: none known.

    Degenerate cases: a token of probability near 0 isn't learned.
    """

    paper: ClassVar[str] = "2508.05629"
    conventions: ClassVar[Overrides] = {}

    def token_losses(self, logprobs: Float[Tensor, "A"]) -> Float[Tensor, "A"]:
        """One loss an action token."""
        return -logprobs.detach().exp() * logprobs


def clip_metrics(
    ratio: Float[Tensor, "A"], advantages: Float[Tensor, "A"], clip_low: float, clip_high: float
) -> TokenMetrics:
    """Where the clipped branch is the one that counts: below for A < 0, above for A > 0."""
    low = (ratio < 1 - clip_low) & (advantages < 0)
    high = (ratio > 1 + clip_high) & (advantages > 0)
    return {"policy/clip_frac": low | high, "policy/clip_frac_low": low, "policy/clip_frac_high": high}
