import math
import pickle
from dataclasses import dataclass, replace

import pytest
import torch

from coterie.algos import ActionTokens, PolicyLoss, PPOClip
from coterie.algos.policy_loss import top_share
from coterie.core.batch import Outputs
from coterie.core.metrics import merge, values
from coterie.core.protocols import HasPrepass

LOGPROBS = [-1.0, -0.5, -2.0, -0.7]


def current(grad=True):
    return torch.tensor(LOGPROBS, dtype=torch.float64, requires_grad=grad)


def batch_of(flat_batch, **streams):
    return flat_batch([2, 1, 1], [0, 0, 1], [1.0, 0.0, math.nan], [1.0, -2.0, 0.5, 3.0], **streams)


def test_on_policy_the_ratio_is_1_and_the_gradient_the_policy_gradient(flat_batch):
    """Without an old_logprobs stream."""
    x = current()
    out = PPOClip()(Outputs(x), batch_of(flat_batch))
    out.loss.backward()
    torch.testing.assert_close(x.grad, -batch_of(flat_batch).advantages / 4)
    shown = values(out.metrics)
    assert shown["policy/ratio_mean"] == shown["policy/ratio_max"] == 1.0
    assert shown["kl/policy_k1"] == shown["kl/policy_k3"] == shown["policy/clip_frac"] == 0.0


def test_metrics_of_the_move_since_the_update_began(flat_batch):
    old = [-1.2, -0.5, -1.0, -0.7]
    shown = values(PPOClip()(Outputs(current()), batch_of(flat_batch, old_logprobs=old)).metrics)
    d = [0.2, 0.0, -1.0, 0.0]
    assert shown["policy/ratio_mean"] == pytest.approx(sum(map(math.exp, d)) / 4)
    assert shown["policy/ratio_max"] == pytest.approx(math.exp(0.2))
    assert shown["kl/policy_k1"] == pytest.approx(0.8 / 4)
    assert shown["kl/policy_k3"] == pytest.approx(sum(math.exp(x) - 1 - x for x in d) / 4)


def test_kl_and_entropy_terms(flat_batch):
    ref = [-1.0, -1.0, -1.0, -1.0]
    batch = batch_of(flat_batch, ref_logprobs=ref)
    entropy = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64, requires_grad=True)
    loss = PPOClip(kl="k2", kl_coef=0.5, entropy_coef=0.2)
    assert loss.needs == {"ref_logprobs"}
    assert loss.wants == {"entropy"}
    out = loss(Outputs(current(), entropy), batch)
    out.loss.backward()
    shown = values(out.metrics)
    assert shown["policy/kl_loss"] == pytest.approx(0.5 * (0.25 + 1.0 + 0.09) / 2 / 4)
    assert shown["policy/entropy_loss"] == pytest.approx(-0.2 * 0.25)
    assert shown["policy/entropy"] == pytest.approx(0.25)
    assert shown["kl/ref_k1"] == pytest.approx((0.5 - 1.0 + 0.3) / 4)
    parts = ("policy/policy_loss", "policy/kl_loss", "policy/entropy_loss")
    assert out.loss.item() == pytest.approx(sum(shown[p] for p in parts))
    torch.testing.assert_close(entropy.grad, torch.full((4,), -0.05, dtype=torch.float64))


def test_controllers_set_coefficients_through_the_batch(flat_batch):
    loss = PPOClip(kl="k1", controlled=("entropy_coef", "kl_coef"))
    assert loss.wants == {"entropy"}
    batch = batch_of(flat_batch, ref_logprobs=[-1.0] * 4)
    entropy = torch.full((4,), 0.3, dtype=torch.float64)
    plain = loss(Outputs(current(), entropy), batch).loss.item()
    steered = replace(batch, scalars={"entropy_coef": 0.1, "kl_coef": 2.0})
    moved = loss(Outputs(current(), entropy), steered).loss.item()
    assert moved - plain == pytest.approx(-0.1 * 0.3 + 2.0 * (0.5 - 1.0 + 0.3) / 4)
    held = PPOClip(kl="k1", kl_coef=0.7, entropy_coef=0.4)
    assert held(
        Outputs(current(), entropy), replace(batch, scalars={"entropy_coef": 0.0, "kl_coef": 0.0})
    ).loss.item() == (pytest.approx(plain))


def test_kl_kind_with_coefficient_0_is_only_watched(flat_batch):
    batch = batch_of(flat_batch, ref_logprobs=[-1.0] * 4)
    out = PPOClip(kl="k3")(Outputs(current()), batch)
    assert out.loss.item() == PPOClip()(Outputs(current()), batch).loss.item()
    assert values(out.metrics)["kl/ref_k3"] > 0


def test_unbiased_kl_has_the_gradient_of_kl_times_ratio(flat_batch):
    batch = flat_batch([1], advantages=[0.0], ref_logprobs=[-1.0], old_logprobs=[-2.5])
    x = torch.tensor([-2.0], dtype=torch.float64, requires_grad=True)
    PPOClip(kl="k1", kl_coef=1.0, kl_unbiased=True)(Outputs(x), batch).loss.backward()
    assert x.grad.item() == pytest.approx(math.exp(0.5) * (1 - 1.0))
    x.grad = None
    PPOClip(kl="k1", kl_coef=1.0)(Outputs(x), batch).loss.backward()
    assert x.grad.item() == pytest.approx(1.0)


def test_an_entropy_bonus_without_entropy_is_an_error(flat_batch):
    with pytest.raises(ValueError, match="no entropy"):
        PPOClip(entropy_coef=0.1)(Outputs(current()), batch_of(flat_batch))
    with pytest.raises(ValueError, match="entropy"):
        PPOClip(top_entropy=0.5).prepass(Outputs(current()), batch_of(flat_batch))


def test_top_entropy_keeps_the_denominator_and_the_kl(flat_batch):
    entropy = torch.tensor([0.1, 0.9, 0.5, 0.2], dtype=torch.float64)
    batch = batch_of(flat_batch, ref_logprobs=[-1.0] * 4)
    loss = PPOClip(top_entropy=0.5, kl="k1", kl_coef=1.0)
    x = current()
    ready = batch.with_streams(*loss.prepass(Outputs(x.detach(), entropy), batch))
    assert ready.streams["loss/top_entropy"].tolist() == [0, 1, 1, 0]
    loss(Outputs(x, entropy), ready).loss.backward()
    torch.testing.assert_close(x.grad * 4, torch.tensor([1.0, 3.0, 0.5, 1.0], dtype=torch.float64))


def test_top_share_is_the_interpolated_quantile():
    entries = torch.arange(11.0)
    assert top_share(entries, 0.2).tolist() == [False] * 8 + [True] * 3
    assert top_share(entries, 0.25).tolist() == [False] * 8 + [True] * 3
    assert top_share(entries, 0.3).tolist() == [False] * 7 + [True] * 4
    assert top_share(torch.ones(3), 0.1).tolist() == [True] * 3
    assert top_share(torch.zeros(0), 0.5).tolist() == []
    assert top_share(entries, 1.0).all()


def test_positive_nll_is_a_mean_over_tokens_of_right_answers(flat_batch):
    batch = batch_of(flat_batch)
    loss, x = PPOClip(positive_nll_coef=0.3), current()
    ready = batch.with_streams(*loss.prepass(Outputs(x.detach()), batch))
    out = loss(Outputs(x), ready)
    assert values(out.metrics)["policy/positive_nll_loss"] == pytest.approx(0.3 * 1.5 / 2)
    no_right = replace(batch, rewards=torch.tensor([0.0, -1.0, math.nan], dtype=torch.float64))
    ready = no_right.with_streams(*loss.prepass(Outputs(x.detach()), no_right))
    assert values(loss(Outputs(x), ready).metrics)["policy/positive_nll_loss"] == 0.0


@pytest.mark.parametrize(
    "fields",
    [
        {"top_entropy": 0.5},
        {"positive_nll_coef": 0.1},
        {"rejection": "m2po"},
        {"rejection": "token", "denominator": "kept"},
        {"correction": "token_tis", "correction_normalize": True},
    ],
)
def test_statistics_of_the_whole_batch_need_the_prepass(flat_batch, fields):
    loss = PPOClip(**fields)
    assert isinstance(loss, HasPrepass)
    streams = {"sampler_logprobs": [-1.0, -1.0, -1.0, -1.0]}
    with pytest.raises(ValueError, match="prepass"):
        loss(Outputs(current(), torch.ones(4, dtype=torch.float64)), batch_of(flat_batch, **streams))


def test_losses_without_such_statistics_have_no_prepass():
    assert not isinstance(PPOClip(rejection="token", correction="token_tis", entropy_coef=0.1), HasPrepass)


def test_a_loss_with_a_prepass_is_copied_pickled_and_compared_like_any_value():
    loss = PPOClip(top_entropy=0.5)
    again = pickle.loads(pickle.dumps(loss))
    assert again == loss
    assert isinstance(again, HasPrepass)
    assert not isinstance(replace(loss, top_entropy=1.0), HasPrepass)
    assert isinstance(replace(PPOClip(), top_entropy=0.5), HasPrepass)


def test_rejected_tokens_leave_by_index(flat_batch):
    """NaN in anything a rejected token holds reaches neither value nor gradient."""
    nan = math.nan
    streams = {
        "sampler_logprobs": [-1.0, nan, -2.0, -0.7],
        "old_logprobs": [-1.0, nan, -2.0, -0.7],
        "ref_logprobs": [-1.1, nan, -2.2, -0.5],
    }
    batch = replace(batch_of(flat_batch, **streams), advantages=torch.tensor([1.0, nan, 0.5, 3.0], dtype=torch.float64))
    x = torch.tensor([-1.0, nan, -2.0, -0.7], dtype=torch.float64, requires_grad=True)
    entropy = torch.tensor([0.1, nan, 0.3, 0.4], dtype=torch.float64, requires_grad=True)
    loss = PPOClip(rejection="token", kl="k3", kl_coef=0.1, entropy_coef=0.1, correction="token_tis")
    out = loss(Outputs(x, entropy), batch)
    out.loss.backward()
    assert math.isfinite(out.loss.item())
    assert torch.isfinite(x.grad).all()
    assert x.grad[1] == entropy.grad[1] == 0.0
    assert values(out.metrics)["mismatch/nonfinite_tokens"] == 1.0


def test_metrics_do_not_depend_on_the_split(flat_batch):
    streams = {
        "sampler_logprobs": [-1.1, -0.4, -1.5, -0.9],
        "old_logprobs": [-1.0, -0.8, -1.9, -0.6],
        "ref_logprobs": [-1.0, -0.9, -2.0, -0.2],
    }
    batch = batch_of(flat_batch, **streams)
    loss = PPOClip(kl="k3", kl_coef=0.1, entropy_coef=0.1, rejection="token", correction="token_tis")
    entropy = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    whole = loss(Outputs(current(), entropy), batch).metrics
    parts = []
    for rows, index in (([2, 0], [3, 0, 1]), ([1], [2])):
        parts.append(loss(Outputs(current()[index], entropy[index]), batch.select(rows)).metrics)
    assert values(merge(parts)) == pytest.approx(values(whole), abs=1e-12)


def test_inputs_are_left_alone(flat_batch):
    streams = {"sampler_logprobs": [-1.1, -0.4, -1.5, -0.9], "old_logprobs": [-1.0, -0.8, -1.9, -0.6]}
    batch = batch_of(flat_batch, **streams)
    before = {n: s.clone() for n, s in batch.streams.items()} | {"a": batch.advantages.clone()}
    PPOClip(rejection="token")(Outputs(current()), batch)
    assert all(torch.equal(before[n], s) for n, s in batch.streams.items())
    assert torch.equal(before["a"], batch.advantages)


@dataclass(frozen=True)
class Probe(PolicyLoss):
    """A user's own loss: a surrogate and nothing else."""

    scale: float = 2.0

    def surrogate(self, tokens: ActionTokens):
        ratio = tokens.sequence_sum(tokens.logprobs - tokens.old_logprobs).exp()[tokens.sequence_id]
        return -self.scale * ratio * tokens.advantages, {"policy/mean": tokens.sequence_mean(tokens.advantages)}


def test_a_loss_of_ones_own_is_one_method(flat_batch):
    x = current()
    out = Probe(kl="k1", kl_coef=0.1)(Outputs(x), batch_of(flat_batch, ref_logprobs=[-1.0] * 4))
    out.loss.backward()
    assert out.loss.item() == pytest.approx(-2.0 * 2.5 / 4 + 0.1 * (-0.2) / 4)
    assert values(out.metrics)["policy/mean"] == pytest.approx((-0.5 + 0.5 + 3.0) / 3)
    with pytest.raises(TypeError, match="surrogate"):
        PolicyLoss()(Outputs(current()), batch_of(flat_batch))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kl_coef": 0.1}, "kl_coef.*kl=none"),
        ({"kl_unbiased": True}, "kl_unbiased.*kl=none"),
        ({"controlled": ("kl_coef",)}, "controlled.*kl=none"),
        ({"controlled": ("lr",)}, "controlled.*can be controlled"),
        ({"kl": "k4"}, "kl='k4'"),
        ({"kl_clamp": "k1"}, "kl_clamp"),
        ({"top_entropy": 0.0}, "top_entropy"),
        ({"top_entropy": 1.5}, "top_entropy"),
        ({"denominator": "kept"}, "denominator.*nothing is rejected"),
        ({"denominator": "some", "rejection": "token"}, "denominator"),
        ({"aggregate": "mean"}, "aggregate"),
        ({"aggregate": "fixed_length"}, "fixed_length"),
    ],
)
def test_contradictions_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        PPOClip(**fields)
