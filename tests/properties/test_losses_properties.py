"""What must hold for every loss and every batch."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie.algos as algos
from coterie.algos import padded
from coterie.algos.corrections import kept_by
from coterie.algos.kl import KL_KINDS
from coterie.core.batch import Outputs
from coterie.core.metrics import merge, values
from coterie.core.protocols import HasPrepass

FEW = settings(max_examples=15, deadline=None)
STREAMS = ("old_logprobs", "sampler_logprobs", "ref_logprobs")
EVERYTHING = {"kl": "k3", "kl_coef": 0.1, "entropy_coef": 0.01}
LOSSES = [
    algos.PPOClip(),
    algos.PPOClip(**EVERYTHING, dual_clip=1.5, delta=1.4),
    algos.PPOClip(**EVERYTHING, aggregate="sequence_mean", correction="token_tis", correction_normalize=True),
    algos.PPOClip(**EVERYTHING, aggregate="prompt_mean", correction="sequence_mis"),
    algos.PPOClip(**EVERYTHING, aggregate="fixed_length", fixed_length=9, rejection="geometric", rejection_high=1.5),
    algos.PPOClip(**EVERYTHING, aggregate="sequence_sum", rejection="token", denominator="kept"),
    algos.PPOClip(aggregate="token_sum", rejection="m2po", rejection_high=0.2),
    algos.PPOClip(top_entropy=0.3, positive_nll_coef=0.1),
    algos.PPOClip(veto=0.5, opsm_delta=0.2, rejection="sequence_max_k3", rejection_high=0.5),
    algos.PPOClip(bypass=True, kl="k1+", kl_coef=0.1, kl_unbiased=True),
    algos.Reinforce(bypass=True, correction="token_tis"),
    algos.ImportanceSampling(),
    algos.CISPO(),
    algos.SAPO(),
    algos.DPPO(),
    algos.DPPO(divergence="kl", drift_coef=0.1),
    algos.TOPR(),
    algos.DRO(),
    algos.GSPO(clip_low=0.1, clip_high=0.1),
    algos.GSPO(clip_low=0.1, clip_high=0.1, form="token", rejection="token"),
    algos.LUSPO(clip_low=0.1, clip_high=0.1),
    algos.GMPO(correction="token_tis"),
    algos.VESPO(),
    algos.ClipCov(share=0.3, cov_low=0.0, cov_high=9.0),
    algos.KLCov(share=0.3),
    algos.SFTLoss(),
    algos.DFTLoss(aggregate="sequence_mean"),
]
RATIO_LOSSES = [
    algos.PPOClip(dual_clip=1.5, delta=1.4),
    algos.ImportanceSampling(),
    algos.Reinforce(),
    algos.GPGLoss(),
    algos.CISPO(),
    algos.SAPO(),
    algos.DPPO(),
    algos.DPPO(divergence="kl"),
    algos.TOPR(),
    algos.DRO(),
    algos.KLCov(),
    algos.VESPO(),
]
PAIR_LOSSES = [
    algos.DPO(),
    algos.RobustDPO(),
    algos.HingeDPO(),
    algos.IPO(),
    algos.EXO(),
    algos.DiscoPOP(),
    algos.NCA(),
    algos.BCO(),
    algos.SPPO(),
    algos.APOZero(),
    algos.APODown(),
    algos.ORPO(),
    algos.CPO(),
    algos.SimPO(),
    algos.AlphaPO(),
    algos.AOT(),
    algos.AOTUnpaired(),
]


def names(losses):
    return [f"{type(x).__name__}-{i}" for i, x in enumerate(losses)]


shapes = st.lists(st.integers(1, 5), min_size=2, max_size=6)
seeds = st.integers(0, 2**31)


def draw_batch(flat_batch, seed, lengths, groups=None, rewards=None):
    """A batch with streams near each other, its current logprobs and entropies."""
    random = torch.Generator().manual_seed(seed)
    total = sum(lengths)

    def normal(width):
        return width * torch.randn(total, generator=random, dtype=torch.float64)

    logprobs = -3 * torch.rand(total, generator=random, dtype=torch.float64) - 0.01
    groups = [i // 2 for i in range(len(lengths))] if groups is None else groups
    rewards = [float(i % 3 - 1) for i in range(len(lengths))] if rewards is None else rewards
    streams = {name: logprobs + normal(0.4) for name in STREAMS}
    batch = flat_batch(lengths, groups, rewards, normal(1.0), **streams)
    return batch, logprobs, torch.rand(total, generator=random, dtype=torch.float64)


def prepared(loss, batch, logprobs, entropy=None):
    return (
        batch.with_streams(*loss.prepass(Outputs(logprobs, entropy), batch)) if isinstance(loss, HasPrepass) else batch
    )


def run(loss, batch, logprobs, entropy=None):
    """Loss, gradient and metrics of a whole batch."""
    x = logprobs.clone().requires_grad_()
    out = loss(Outputs(x, entropy), prepared(loss, batch, logprobs, entropy))
    out.loss.backward()
    return out.loss.item(), x.grad, values(out.metrics)


def token_index(batch, rows):
    return torch.cat([torch.nonzero(batch.sequence_id == r).flatten() for r in rows])


@pytest.mark.parametrize("loss", LOSSES, ids=names(LOSSES))
@FEW
@given(seed=seeds, lengths=shapes, cut=st.integers(1, 5), data=st.data())
def test_any_split_into_micro_batches_adds_up(flat_batch, loss, seed, lengths, cut, data):
    batch, logprobs, entropy = draw_batch(flat_batch, seed, lengths)
    whole, gradient, shown = run(loss, batch, logprobs, entropy)
    ready = prepared(loss, batch, logprobs, entropy)
    order = data.draw(st.permutations(range(len(lengths))))
    total, found, metrics = 0.0, torch.zeros_like(gradient), []
    for start in range(0, len(order), cut):
        rows = list(order[start : start + cut])
        index = token_index(batch, rows)
        x = logprobs[index].clone().requires_grad_()
        out = loss(Outputs(x, entropy[index]), ready.select(rows))
        out.loss.backward()
        total += out.loss.item()
        found[index] = x.grad
        metrics.append(out.metrics)
    assert total == pytest.approx(whole, abs=1e-12)
    torch.testing.assert_close(found, gradient, rtol=1e-12, atol=1e-14)
    assert values(merge(metrics)) == pytest.approx(shown, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("loss", LOSSES, ids=names(LOSSES))
@FEW
@given(seed=seeds, lengths=shapes, data=st.data())
def test_the_order_of_sequences_does_not_matter(flat_batch, loss, seed, lengths, data):
    batch, logprobs, entropy = draw_batch(flat_batch, seed, lengths)
    order = list(data.draw(st.permutations(range(len(lengths)))))
    index = token_index(batch, order)
    whole, gradient, _ = run(loss, batch, logprobs, entropy)
    moved, found, _ = run(loss, batch.select(order), logprobs[index], entropy[index])
    assert moved == pytest.approx(whole, abs=1e-12)
    torch.testing.assert_close(found, gradient[index], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loss", RATIO_LOSSES, ids=names(RATIO_LOSSES))
@FEW
@given(seed=seeds, lengths=shapes, explicit=st.booleans())
def test_at_ratio_1_the_gradient_is_the_policy_gradient_and_nothing_is_clipped(
    flat_batch, loss, seed, lengths, explicit
):
    batch, logprobs, _ = draw_batch(flat_batch, seed, lengths)
    streams = {"old_logprobs": logprobs} if explicit else {}
    _, gradient, shown = run(loss, replace(batch, streams=streams), logprobs)
    torch.testing.assert_close(gradient, -batch.advantages / len(logprobs))
    assert shown["policy/ratio_mean"] == shown["policy/ratio_max"] == 1.0
    assert shown.get("policy/clip_frac", 0.0) == 0.0


@pytest.mark.parametrize("loss", LOSSES, ids=names(LOSSES))
@FEW
@given(seed=seeds, lengths=shapes)
def test_no_gradient_reaches_what_is_constant(flat_batch, loss, seed, lengths):
    batch, logprobs, entropy = draw_batch(flat_batch, seed, lengths)
    ready = prepared(loss, batch, logprobs, entropy)
    streams = {n: s.clone().requires_grad_() for n, s in ready.streams.items()}
    advantages = ready.advantages.clone().requires_grad_()
    x = logprobs.clone().requires_grad_()
    loss(Outputs(x, entropy), replace(ready, streams=streams, advantages=advantages)).loss.backward()
    assert x.grad is not None
    assert advantages.grad is None
    assert all(s.grad is None for s in streams.values())


@pytest.mark.parametrize("loss", [x for x in LOSSES if getattr(x, "rejects", False)], ids=lambda x: type(x).__name__)
@FEW
@given(seed=seeds, lengths=shapes, data=st.data())
def test_a_nan_in_a_rejected_token_leaks_nowhere(flat_batch, loss, seed, lengths, data):
    batch, logprobs, entropy = draw_batch(flat_batch, seed, lengths)
    bad = data.draw(st.integers(0, len(logprobs) - 1))

    def spoiled(values):
        return values.clone().index_fill(0, torch.tensor([bad]), math.nan)

    streams = {name: spoiled(s) for name, s in batch.streams.items()}
    spoilt = replace(batch, streams=streams, advantages=spoiled(batch.advantages))
    value, gradient, shown = run(loss, spoilt, spoiled(logprobs), spoiled(entropy))
    assert math.isfinite(value)
    assert torch.isfinite(gradient).all()
    assert gradient[bad] == 0
    assert shown["mismatch/nonfinite_tokens"] == 1
    assert shown["mismatch/rejected_frac"] > 0


@pytest.mark.parametrize("loss", LOSSES, ids=names(LOSSES))
@FEW
@given(seed=seeds, lengths=shapes)
def test_inputs_are_not_written_to(flat_batch, loss, seed, lengths):
    batch, logprobs, entropy = draw_batch(flat_batch, seed, lengths)
    before = [t.clone() for t in (logprobs, entropy, batch.advantages, *batch.streams.values())]
    run(loss, batch, logprobs, entropy)
    after = (logprobs, entropy, batch.advantages, *batch.streams.values())
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("mode", ["token_mean", "sequence_mean", "sequence_sum", "prompt_mean"])
@FEW
@given(seed=seeds, lengths=shapes)
def test_a_batch_twice_over_has_the_same_mean(flat_batch, mode, seed, lengths):
    batch, logprobs, entropy = draw_batch(flat_batch, seed, lengths)
    loss = algos.PPOClip(**EVERYTHING, aggregate=mode)
    twice = batch.select([*range(len(lengths)), *range(len(lengths))])
    groups = torch.cat([batch.group_id, batch.group_id + 100])
    twice = replace(twice, group_id=groups).with_own_counts()
    once, _, _ = run(loss, batch, logprobs, entropy)
    again, _, _ = run(loss, twice, logprobs.repeat(2), entropy.repeat(2))
    assert again == pytest.approx(once, abs=1e-12)


@pytest.mark.parametrize("mode", ["token_mean", "sequence_mean", "prompt_mean"])
@FEW
@given(lengths=shapes, value=st.floats(-3, 3))
def test_a_constant_is_its_own_mean(flat_batch, mode, lengths, value):
    batch = flat_batch(lengths, [i // 2 for i in range(len(lengths))])
    assert float((value * algos.token_weights(batch, mode)).sum()) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    "cls", [algos.PPOClip, algos.CISPO, algos.SAPO, algos.DPPO, algos.GSPO, algos.GMPO, algos.VESPO]
)
@FEW
@given(seed=seeds, lengths=shapes, scale=st.floats(0.1, 10))
def test_losses_scale_with_the_advantage(flat_batch, cls, seed, lengths, scale):
    batch, logprobs, _ = draw_batch(flat_batch, seed, lengths)
    once, gradient, _ = run(cls(), batch, logprobs)
    more, found, _ = run(cls(), replace(batch, advantages=scale * batch.advantages), logprobs)
    assert more == pytest.approx(scale * once, rel=1e-9, abs=1e-12)
    torch.testing.assert_close(found, scale * gradient)


@FEW
@given(seed=seeds, lengths=shapes)
def test_gspo_forms_agree_for_advantages_constant_over_sequences(flat_batch, seed, lengths):
    batch, logprobs, _ = draw_batch(flat_batch, seed, lengths)
    batch = replace(batch, advantages=batch.segment_mean(batch.advantages)[batch.sequence_id])
    results = [
        run(algos.GSPO(clip_low=0.1, clip_high=0.1, form=form), batch, logprobs) for form in ("sequence", "token")
    ]
    assert results[0][0] == pytest.approx(results[1][0], abs=1e-12)
    torch.testing.assert_close(results[0][1], results[1][1])


@FEW
@given(seed=seeds, lengths=shapes)
def test_the_padded_form_agrees_with_the_flat_one(flat_batch, seed, lengths):
    batch, logprobs, _ = draw_batch(flat_batch, seed, lengths)
    _, gradient, _ = run(algos.PPOClip(aggregate="sequence_mean", log_ratio_bound=0.0), batch, logprobs)
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]

    def pad(flat):
        return torch.zeros(mask.shape, dtype=flat.dtype).masked_scatter(mask, flat)

    x = pad(logprobs).requires_grad_()
    arguments = (None, pad(batch.advantages), pad(batch.streams["old_logprobs"]), 0.2)
    padded.grpo_microbatch_train_step(x, mask, 1, "grpo_clip", *arguments)
    torch.testing.assert_close(x.grad[mask], gradient)


# --- KL and corrections


@given(st.lists(st.tuples(st.floats(-15, 0), st.floats(-15, 0)), min_size=1, max_size=20))
def test_k2_k3_and_abs_are_never_negative_and_k3_bounds_k1(pairs):
    new, ref = torch.tensor(pairs, dtype=torch.float64).T
    for kind in ("k2", "k3", "abs", "k3+"):
        assert (algos.kl_estimate(new, ref, kind) >= -1e-12).all()
    assert (algos.kl_estimate(new, ref, "k3") >= algos.kl_estimate(new, ref, "k1") - 1 - 1e-9).all()
    for kind in KL_KINDS:
        assert (algos.kl_estimate(ref, ref, kind) == 0).all()


@given(seed=seeds)
def test_k1_and_k3_have_the_divergence_as_their_mean(seed):
    """Exactly: the expectation over the policy's own distribution."""
    random = torch.Generator().manual_seed(seed)
    p, q = torch.log_softmax(torch.randn(2, 6, generator=random, dtype=torch.float64), -1)
    divergence = (p.exp() * (p - q)).sum()
    for kind in ("k1", "k3"):
        torch.testing.assert_close((p.exp() * algos.kl_estimate(p, q, kind)).sum(), divergence)


@given(seed=seeds)
def test_which_estimators_have_the_right_gradient_on_policy(seed):
    """d KL / d theta = E[score * slope of k2]; k1 as a loss has expected gradient 0 (peers.md §2.1)."""
    random = torch.Generator().manual_seed(seed)
    logits = torch.randn(6, generator=random, dtype=torch.float64, requires_grad=True)
    q = torch.log_softmax(torch.randn(6, generator=random, dtype=torch.float64), -1)

    def gradient_of(estimate):
        logits.grad = None
        p = torch.log_softmax(logits, -1)
        (p.detach().exp() * estimate(p)).sum().backward()
        return logits.grad.clone()

    p = torch.log_softmax(logits, -1)
    (true,) = torch.autograd.grad((p.exp() * (p - q)).sum(), logits)
    for kind in ("k2", "k1+", "k3+"):
        torch.testing.assert_close(gradient_of(lambda p, kind=kind: algos.kl_estimate(p, q, kind)), true)
    torch.testing.assert_close(gradient_of(lambda p: algos.kl_estimate(p, q, "k1")), torch.zeros_like(true))
    unbiased = gradient_of(lambda p: algos.kl_estimate(p, q, "k3") * (p - p.detach()).exp())
    torch.testing.assert_close(unbiased, true)


REJECTIONS = (
    "token sequence geometric outlier token_k2 token_k3 sequence_sum_k2 sequence_mean_k3 sequence_max_k2 kpop m2po"
)


@pytest.mark.parametrize("name", REJECTIONS.split())
@FEW
@given(seed=seeds, lengths=shapes)
def test_without_a_mismatch_nothing_is_rejected_and_all_weights_are_1(flat_batch, name, seed, lengths):
    batch, logprobs, _ = draw_batch(flat_batch, seed, lengths)
    assert kept_by(name, logprobs, logprobs, batch.sequence_id, len(lengths)).all()
    exact = replace(batch, streams={"sampler_logprobs": logprobs})
    plain, gradient, _ = run(algos.PPOClip(), exact, logprobs)
    corrected = algos.PPOClip(correction="sequence_mis", correction_normalize=True, rejection=name)
    value, found, shown = run(corrected, exact, logprobs)
    assert value == pytest.approx(plain, abs=1e-12)
    torch.testing.assert_close(found, gradient)
    assert shown["mismatch/correction_mean"] == pytest.approx(1.0)


@FEW
@given(seed=seeds, lengths=shapes, level=st.sampled_from(["token", "sequence", "geometric"]), high=st.floats(0.5, 3))
def test_truncated_weights_stay_below_their_bound_and_ess_in_its_range(flat_batch, seed, lengths, level, high):
    batch, _, _ = draw_batch(flat_batch, seed, lengths)
    logs = batch.streams["old_logprobs"] - batch.streams["sampler_logprobs"]
    weights = algos.importance_weights(logs, batch.sequence_id, len(lengths), level)
    assert 0 < algos.effective_sample_size(weights) <= 1 + 1e-12
    loss = algos.PPOClip(correction=f"{level}_tis", correction_high=high)
    assert (loss.raw_weights(batch, batch.streams["old_logprobs"], None) <= high).all()


# --- preference losses


def draw_pairs(flat_batch, seed, pairs):
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 5, (2 * pairs,), generator=random).tolist()
    rewards = [float((i + i // 2) % 2) for i in range(2 * pairs)]
    return draw_batch(flat_batch, seed, lengths, [i // 2 for i in range(2 * pairs)], rewards)


@pytest.mark.parametrize("loss", PAIR_LOSSES, ids=names(PAIR_LOSSES))
@FEW
@given(seed=seeds, pairs=st.integers(1, 5), data=st.data())
def test_pairs_may_be_split_by_groups_and_reordered(flat_batch, loss, seed, pairs, data):
    batch, logprobs, _ = draw_pairs(flat_batch, seed, pairs)
    whole, gradient, shown = run(loss, batch, logprobs)
    ready = prepared(loss, batch, logprobs)
    found, total, metrics = torch.zeros_like(gradient), 0.0, []
    for group in data.draw(st.permutations(range(pairs))):
        rows = data.draw(st.permutations([2 * group, 2 * group + 1]))
        index = token_index(batch, rows)
        x = logprobs[index].clone().requires_grad_()
        out = loss(Outputs(x), ready.select(list(rows)))
        out.loss.backward()
        total += out.loss.item()
        found[index] = x.grad
        metrics.append(out.metrics)
    assert total == pytest.approx(whole, abs=1e-12)
    torch.testing.assert_close(found, gradient, rtol=1e-12, atol=1e-14)
    assert values(merge(metrics)) == pytest.approx(shown, rel=1e-9, abs=1e-9)


@given(st.floats(-20, 20), st.floats(-20, 20), st.floats(0.01, 2))
def test_dpo_antisymmetry(chosen, rejected, beta):
    """Swapping the answers adds exactly beta times the margin."""
    c, r = torch.tensor([chosen], dtype=torch.float64), torch.tensor([rejected], dtype=torch.float64)
    difference = algos.dpo(r, c, beta) - algos.dpo(c, r, beta)
    assert difference.item() == pytest.approx(beta * (chosen - rejected), abs=1e-9)


MARGIN_LOSSES = [*PAIR_LOSSES[:3], algos.IPO(length_normalize=False), *PAIR_LOSSES[4:6]]


@pytest.mark.parametrize("loss", MARGIN_LOSSES, ids=names(MARGIN_LOSSES))
@FEW
@given(seed=seeds, pairs=st.integers(1, 4), shift=st.floats(-3, 3))
def test_margin_losses_see_differences_only(flat_batch, loss, seed, pairs, shift):
    """The same shift of both answers of a pair (their common prompt, say) cancels."""
    batch, logprobs, _ = draw_pairs(flat_batch, seed, pairs)
    per_token = (shift / batch.action_lengths.to(torch.float64))[batch.sequence_id]
    assert run(loss, batch, logprobs + per_token)[0] == pytest.approx(run(loss, batch, logprobs)[0], abs=1e-9)


@pytest.mark.parametrize("loss", [*PAIR_LOSSES[:11], algos.AOTUnpaired()], ids=lambda x: type(x).__name__)
@FEW
@given(seed=seeds, pairs=st.integers(1, 4))
def test_only_the_ratio_to_the_reference_counts(flat_batch, loss, seed, pairs):
    batch, logprobs, _ = draw_pairs(flat_batch, seed, pairs)
    moved = replace(batch, streams={"ref_logprobs": batch.streams["ref_logprobs"] - 0.3})
    assert run(loss, moved, logprobs - 0.3)[0] == pytest.approx(run(loss, batch, logprobs)[0], abs=1e-9)


@pytest.mark.parametrize("loss", PAIR_LOSSES, ids=names(PAIR_LOSSES))
@FEW
@given(seed=seeds, pairs=st.integers(1, 4))
def test_every_pair_loss_prefers_the_chosen_answer(flat_batch, loss, seed, pairs):
    """A step down the gradient raises the margin (where there is a gradient)."""
    batch, logprobs, _ = draw_pairs(flat_batch, seed, pairs)
    _, gradient, shown = run(loss, batch, logprobs)
    step = -1e-4 * gradient / gradient.norm().clamp(min=1e-12)
    after = run(loss, prepared(loss, batch, logprobs), logprobs + step)[2]
    assert after["preference/loss"] <= shown["preference/loss"] + 1e-9
