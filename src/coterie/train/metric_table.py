"""The table behind `train.metric_specs`; rows of one stage stand together."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from coterie.core.metrics import MetricSpec as M

STAGES: Mapping[str, str] = MappingProxyType(
    {
        "data": "Where the examples of the step come from, and what was left out before.",
        "rollout": "What was sampled for training.",
        "reward": "Scores of the sampled rollouts. A missing score counts nowhere as 0.",
        "group": "What a group-relative estimator can learn from.",
        "filter": "What filters took out between reward and advantage.",
        "shaping": "What reward shaping took out or changed.",
        "transform": "What transforms of the advantages took out or changed.",
        "advantage": "Advantages over action tokens, as the loss sees them.",
        "policy": "The update. Means are over the action tokens of all optimizer steps of the training step.",
        "kl": "Distances between policies, per action token. k1 = log(p/q) and k3 = r - log r - 1 with r = q/p "
        "(Schulman, Approximating KL Divergence, 2020).",
        "mismatch": "How far the sampler's logprobs are from the learner's. w = exp(learner - sampler).",
        "control": "Coefficients that a controller sets.",
        "optim": "The optimizer.",
        "sft": "Supervised fine-tuning, over the trained tokens.",
        "preference": "Preference losses. The implicit reward is beta times the log-ratio to the reference.",
        "reward_model": "Reward models.",
        "critic": "The critic of actor-critic methods, over action tokens.",
        "eval": "Held-out problems, the same each time. Intervals are 95 % bootstrap intervals over problems.",
        "time": "Wall-clock time. Differs between equal runs.",
        "throughput": "Speed. Differs between equal runs.",
        "memory": "Peak memory. Differs between equal runs.",
        "wall": "Other facts about this process that differ between equal runs.",
    }
)

SPECS: tuple[M, ...] = (
    M("data/epoch", "Passes over the training data so far."),
    M("data/tokens", "Tokens of the step's conversations (SFT)."),
    M("data/rows_read", "Rows of the data set before filters."),
    M("data/rows_kept", "Rows left after filters."),
    M("data/dropped_<reason>", "Rows left out for that reason."),
    M("rollout/tokens_mean", "Mean sampled tokens a rollout."),
    M("rollout/tokens_max", "Longest rollout in sampled tokens."),
    M("rollout/prompt_tokens_mean", "Mean tokens that were not sampled (prompt and tool output)."),
    M(
        "rollout/truncated_frac",
        "Share of rollouts cut off by rollout.max_tokens.",
        high=0.5,
        advice="{value:.0%} of rollouts are cut off by rollout.max_tokens before they end, so they can hardly earn "
        "their reward. Raise rollout.max_tokens, or check that the model ends its answers (end-of-sequence "
        "token, rollout.stop).",
    ),
    M("reward/reward", "Mean reward over the rollouts that have one: the score that estimators read."),
    M("reward/reward/std", "Its standard deviation over rollouts."),
    M(
        "reward/missing_rate",
        "Share of rollouts whose reward is missing (it raised, hung or returned no number).",
        high=0.01,
        advice="{value:.1%} of rewards are missing; those rollouts teach nothing. The reasons are in the scores "
        "column of rollouts/step_*.parquet; the run stops above train.max_missing_reward_rate.",
    ),
    M("reward/missing/<reason>", "Rollouts whose reward is missing for that reason."),
    M("reward/<name>", "Mean of the score of that name."),
    M("reward/<name>/std", "Its standard deviation over rollouts."),
    M("reward/<name>/<key>", "Mean of a number that the score of that name reports besides its value."),
    M(
        "group/zero_variance_frac",
        "Share of groups in which every rollout has the same reward; they have advantage 0.",
        high=0.7,
        advice="{value:.0%} of groups have zero variance: all answers to their prompt earn the same reward, so they "
        "teach nothing. If the reward is high, take harder problems; if it is low, easier ones, a warm start "
        "by `coterie sft`, or a larger rollout.n; a higher rollout.temperature helps when the answers are all"
        " alike.",
    ),
    M("group/all_right_frac", "Share of groups in which every rollout is right."),
    M("group/all_wrong_frac", "Share of groups in which every rollout is wrong."),
    M("filter/<name>_groups_dropped", "Groups that this filter left out."),
    M("filter/<name>_rollouts_dropped", "Rollouts that this filter left out."),
    M("shaping/<name>_groups_dropped", "Groups that this shaping stage left out."),
    M("shaping/<name>_rollouts_dropped", "Rollouts that this shaping stage left out."),
    M("transform/<name>_groups_dropped", "Groups that this transform left out."),
    M("transform/<name>_rollouts_dropped", "Rollouts that this transform left out."),
    M("advantage/mean", "Mean advantage over action tokens."),
    M("advantage/abs_mean", "Mean size of the advantage; 0 means that the step teaches nothing."),
    M("advantage/positive_frac", "Share of action tokens with a positive advantage."),
    M(
        "policy/loss",
        "The loss that is minimised. Near 0 for a group-relative estimator on-policy: its value says nothing about "
        "progress.",
    ),
    M("policy/policy_loss", "The surrogate's part of the loss."),
    M("policy/kl_loss", "The reference KL's part of the loss."),
    M("policy/entropy_loss", "The entropy bonus's part of the loss."),
    M("policy/positive_nll_loss", "The part of the likelihood of right answers."),
    M("policy/clip_frac_low", "Share clipped from below (ratio too small, advantage negative)."),
    M("policy/clip_frac_high", "Share clipped from above (ratio too large, advantage positive)."),
    M("policy/dual_clip_frac", "Share of action tokens whose loss the dual clip bounds."),
    M("policy/clip_cov_frac", "Share of action tokens that Clip-Cov takes the gradient from."),
    M("policy/kl_cov_frac", "Share of action tokens that KL-Cov penalises."),
    M("policy/sequence_ratio_mean", "Mean of the length-normalised sequence ratio (GSPO)."),
    M("policy/taper_mean", "Mean weight of TOPR's tapering; 1 for positive samples."),
    M("policy/vespo_weight_mean", "Mean weight that VESPO gives to a token."),
    M(
        "policy/entropy",
        "Mean entropy of the distribution each action token was drawn from, in nats.",
        low=0.01,
        advice="the policy's entropy is {value:.3g} nats a token: it is all but deterministic, so the answers of a "
        "group are alike. Try a higher rollout.temperature, a higher loss.clip_high or an entropy bonus "
        "(loss.entropy_coef).",
    ),
    M(
        "policy/ratio_mean",
        "Mean of new over old probability of the action tokens; 1 when exactly on-policy.",
        low=0.8,
        high=1.25,
        advice="the mean probability ratio is {value:.3g}: the policy has moved far from the one that is being "
        "corrected for. Use fewer train.epochs or train.minibatches, or a smaller optim.lr.",
    ),
    M("policy/ratio_max", "Largest ratio."),
    M(
        "policy/clip_frac",
        "Share of action tokens whose gradient the clipping took away.",
        high=0.3,
        advice="{value:.0%} of action tokens are clipped: each update tries to go further than it may. Use fewer "
        "train.epochs or a smaller optim.lr.",
    ),
    M("kl/policy_k1", "k1 of the policy before the update against the current one; 0 when exactly on-policy."),
    M(
        "kl/policy_k3",
        "k3 of the same: how far the step's own updates moved the policy.",
        high=0.1,
        advice="the updates of one step move the policy by k3 = {value:.3g}: that is a large step. Use a smaller "
        "optim.lr or fewer train.epochs.",
    ),
    M("kl/sampler_k1", "k1 of the sampler against the learner, on the same weights about 0."),
    M(
        "kl/sampler_k3",
        "k3 of the sampler against the learner: rounding only, when engine and learner agree.",
        high=0.01,
        advice="sampler and learner disagree about the sampled tokens (k3 = {value:.3g}): the engine runs other "
        "weights, another temperature or another dtype than the learner. Check engine settings first; a "
        "correction (loss.correction) only hides it.",
    ),
    M("kl/sampler_abs_diff", "Mean absolute difference of the two logprobs."),
    M("kl/ref_k1", "k1 of the policy against the reference."),
    M(
        "kl/ref_k3",
        "k3 of the policy against the reference.",
        high=1.0,
        advice="the policy is k3 = {value:.3g} nats a token away from the reference: look at samples for text that "
        "is no longer language. Raise loss.kl_coef or lower optim.lr.",
    ),
    M(
        "mismatch/weight_mean",
        "Mean of w.",
        low=0.9,
        high=1.1,
        advice="the mean weight of sampler against learner is {value:.3g} instead of 1: their distributions differ. "
        "Check that both use the same weights, temperature and truncation.",
    ),
    M("mismatch/weight_square_mean", "Mean of w squared."),
    M("mismatch/weight_std", "Standard deviation of w."),
    M("mismatch/weight_min", "Smallest w."),
    M("mismatch/weight_max", "Largest w."),
    M(
        "mismatch/ess",
        "Effective sample size as a share of the tokens; 1 when all weights are equal.",
        low=0.8,
        advice="the weights of the mismatch correction leave an effective sample of {value:.0%}: a few tokens have "
        "most of the weight.",
    ),
    M("mismatch/chi2_token", "Chi-squared distance over tokens, mean of w squared, minus 1."),
    M("mismatch/chi2_sequence", "The same over whole sequences."),
    M(
        "mismatch/token_mult_prob_error",
        "Mean factor by which the two probabilities of a token differ; 1 when they agree.",
    ),
    M("mismatch/policy_ppl", "Perplexity of the rollouts under the learner, mean over sequences."),
    M("mismatch/sampler_ppl", "Perplexity of the rollouts under the sampler, mean over sequences."),
    M("mismatch/ppl_ratio", "Sampler's perplexity over the learner's, mean over sequences."),
    M("mismatch/log_ppl_diff_mean", "Mean difference of the two log-perplexities."),
    M("mismatch/log_ppl_diff_abs", "Mean absolute difference of the two log-perplexities."),
    M("mismatch/log_ppl_diff_max", "Largest difference of the two log-perplexities."),
    M("mismatch/log_ppl_diff_min", "Smallest difference of the two log-perplexities."),
    M(
        "mismatch/rejected_frac",
        "Share of action tokens that a rejection or mask took out of the loss.",
        high=0.2,
        advice="{value:.0%} of action tokens are rejected by the mismatch correction. Look at kl/sampler_k3: engine "
        "and learner may not agree.",
    ),
    M("mismatch/correction_mean", "Mean weight that the correction multiplies the loss with."),
    M(
        "mismatch/nonfinite_tokens",
        "Action tokens with a logprob that is not finite on either side.",
        high=0.0,
        advice="{value:.0f} action tokens have a logprob that is not finite: the sampler drew a token the learner "
        "holds for impossible, or a number overflowed. Use learner.dtype=float32 to tell which.",
    ),
    M("control/<name>", "A coefficient in force during the step, as its controller set it."),
    M("optim/lr", "Learning rate of the step."),
    M(
        "optim/grad_norm",
        "Norm of the gradient before clipping.",
        high=100.0,
        advice="the gradient norm is {value:.3g}: far above what clipping is made for. Lower optim.lr, look for an "
        "extreme reward or advantage.",
    ),
    M("optim/clipped_share", "Share of the optimizer steps whose gradient was scaled down to optim.max_grad_norm."),
    M(
        "optim/skipped_steps",
        "Optimizer steps skipped because the gradient was not finite.",
        high=0.0,
        advice="{value:.0f} optimizer steps were skipped because the gradient is not finite. Lower optim.lr, or use "
        "learner.dtype=float32.",
    ),
    M("sft/nll", "Negative log-likelihood of a trained token under the model, unweighted."),
    M("sft/token_prob", "Mean probability of a trained token."),
    M("sft/entropy", "Mean entropy of the model's distribution at trained tokens, in nats."),
    M("preference/loss", "Mean preference loss, a pair or a labelled response."),
    M("preference/accuracy", "Share of pairs whose chosen response has the higher implicit reward; 0.5 is chance."),
    M("preference/margin", "Mean difference of the implicit rewards of a pair."),
    M("preference/chosen_reward", "Mean implicit reward of chosen responses."),
    M("preference/rejected_reward", "Mean implicit reward of rejected responses."),
    M("preference/chosen_logprob", "Mean logprob of chosen responses; falls in DPO when both become unlikely."),
    M("preference/rejected_logprob", "Mean logprob of rejected responses."),
    M("preference/chosen_nll", "Negative log-likelihood a token of chosen responses."),
    M("preference/desirable_reward", "Mean implicit reward of desirable responses (KTO)."),
    M("preference/undesirable_reward", "Mean implicit reward of undesirable responses (KTO)."),
    M("preference/reference_point", "KTO's reference point, an estimate of the KL to the reference."),
    M("reward_model/loss", "Mean loss of the reward model."),
    M("reward_model/accuracy", "Share of pairs or labels that the reward model gets right; 0.5 is chance."),
    M("reward_model/margin", "Mean difference of the scores of a pair."),
    M("reward_model/score_mean", "Mean score."),
    M("critic/loss", "Mean value loss over the optimizer steps."),
    M("critic/value_mean", "Mean value that the critic predicts before an action token."),
    M("critic/return_mean", "Mean return it should predict."),
    M("critic/return_square_mean", "Mean squared return."),
    M("critic/error_mean", "Mean of return minus value."),
    M("critic/error_square_mean", "Mean squared error of the value."),
    M("critic/clip_frac", "Share of action tokens whose value loss is the clipped one."),
    M(
        "critic/explained_variance",
        "1 - var(return - value) / var(return): 1 is perfect, 0 as good as the mean return.",
    ),
    M("critic/lr", "Learning rate of the critic's last optimizer steps, averaged."),
    M("critic/grad_norm", "Norm of the critic's gradient before clipping."),
    M("critic/clipped_share", "Share of the critic's optimizer steps whose gradient was scaled down."),
    M("critic/skipped_steps", "Optimizer steps of the critic skipped because the gradient was not finite."),
    M(
        "eval/accuracy",
        "Share of completions at or above eval.threshold, mean over problems; for dpo and rm the share of held-out "
        "pairs whose chosen answer is ranked higher (a tie counts half), for KTO of answers on the right side.",
    ),
    M("eval/margin", "Mean margin of held-out pairs: implicit rewards (dpo) or scores (rm), chosen minus rejected."),
    M("eval/margin_ci95_low", "Lower end of its interval."),
    M("eval/margin_ci95_high", "Upper end of its interval."),
    M("eval/accuracy_ci95_low", "Lower end of its interval."),
    M("eval/accuracy_ci95_high", "Upper end of its interval."),
    M(
        "eval/problems",
        "Problems with at least one scored completion.",
        low=30.0,
        advice="the evaluation has {value:.0f} problems only: its interval is wide, differences between steps are "
        "mostly chance. Raise eval.max_examples or give more held-out data.",
    ),
    M("eval/pass@<k>", "Unbiased probability that at least one of k completions is right (Chen et al. 2021)."),
    M("eval/loss", "Of held-out rows: negative log-likelihood a trained token (SFT), loss a pair or answer (dpo, rm)."),
    M("eval/perplexity", "Its exponential."),
    M(
        "eval/missing_rate",
        "Share of completions whose score is missing.",
        high=0.01,
        advice="{value:.1%} of evaluation scores are missing: accuracy is over the rest.",
    ),
    M(
        "eval/truncated_frac",
        "Share of completions cut off by eval.max_tokens.",
        high=0.2,
        advice="{value:.0%} of evaluation completions are cut off: the model might score higher with a larger "
        "eval.max_tokens.",
    ),
    M("eval/missing/<reason>", "Completions whose score is missing for that reason."),
    M("eval/tokens_mean", "Mean sampled tokens a completion."),
    M("eval/tokens_max", "Longest completion in sampled tokens."),
    M("eval/prompt_tokens_mean", "Mean tokens that were not sampled."),
    M("eval/<name>", "Mean of the score of that name; `eval/reward` is the reward."),
    M("eval/<name>/std", "Its standard deviation over completions."),
    M("eval/<name>/<key>", "Mean of a number that the score of that name reports besides its value."),
    M("time/step_s", "Seconds of the training step, without evaluation and checkpoint."),
    M("time/<phase>_s", "Seconds of that phase."),
    M("throughput/rollouts_per_s", "Rollouts a second of the whole step."),
    M("throughput/sampled_tokens_per_s", "Sampled tokens a second of the sampling phase."),
    M("throughput/train_tokens_per_s", "Tokens a second of forward and backward."),
    M("throughput/computed_positions_per_s", "Token positions computed a second, padding included."),
    M(
        "throughput/padding_share",
        "Share of computed positions that are padding.",
        high=0.4,
        advice="{value:.0%} of the positions computed in training are padding. Raise learner.micro_batch_tokens so "
        "that sequences of like length meet.",
    ),
    M("memory/peak_rss_gib", "Largest resident memory of the process so far, GiB."),
    M("memory/peak_gpu_gib", "Largest GPU memory of the process so far, GiB."),
)
