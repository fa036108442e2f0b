import pytest
import torch

from coterie.algos import ClipCov, KLCov, PPOClip
from coterie.algos.covariance_losses import covariances, token_draws
from coterie.core.batch import Outputs
from coterie.core.metrics import values
from coterie.core.protocols import HasPrepass

LOGS = [-0.1, -2.0, -1.0, -3.0, -0.5, -1.4]
ADVANTAGES = [2.0, 1.0, -0.5, -2.0, 0.5, 0.0]


def run(loss, batch, logprobs=LOGS):
    x = torch.tensor(logprobs, dtype=torch.float64, requires_grad=True)
    ready = batch.with_streams(*loss.prepass(Outputs(x.detach()), batch))
    out = loss(Outputs(x), ready)
    out.loss.backward()
    return ready, values(out.metrics), x.grad


def test_covariances():
    x, a = torch.tensor([1.0, 3.0]), torch.tensor([2.0, 6.0])
    assert covariances(x.requires_grad_(), a).tolist() == [2.0, 2.0]
    assert not covariances(x, a).requires_grad


@pytest.mark.parametrize("cls", [ClipCov, KLCov])
def test_both_need_the_whole_batch(flat_batch, cls):
    assert isinstance(cls(), HasPrepass)
    with pytest.raises(ValueError, match="prepass"):
        cls()(Outputs(torch.tensor(LOGS, dtype=torch.float64)), flat_batch([4, 2], advantages=ADVANTAGES))
    for fields in cls.conventions.values():
        assert cls(**fields) is not None


def test_kl_cov_penalises_the_top_share(flat_batch):
    old = [x - 0.3 for x in LOGS]
    batch = flat_batch([4, 2], advantages=ADVANTAGES, old_logprobs=old)
    ready, shown, grad = run(KLCov(share=0.34, penalty=0.5), batch)
    assert ready.streams["loss/kl_cov"].tolist() == [1.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    assert shown["policy/kl_cov_frac"] == pytest.approx(1 / 3)
    ratio = torch.tensor(0.3, dtype=torch.float64).exp()
    expected = -ratio * torch.tensor(ADVANTAGES, dtype=torch.float64) / 6
    expected[[0, 3]] += 0.5 / 6
    torch.testing.assert_close(grad, expected)


def test_trap_9_at_least_one_token_is_chosen_and_conventions_are_1000_apart(flat_batch):
    batch = flat_batch([4, 2], advantages=ADVANTAGES)
    ready, _, _ = run(KLCov(), batch)
    assert ready.streams["loss/kl_cov"].sum() == 1
    assert KLCov.conventions["skyrl"]["share"] / KLCov.conventions["verl"]["share"] == pytest.approx(1000)


def test_clip_cov_takes_candidates_out(flat_batch):
    batch = flat_batch([4, 2], advantages=ADVANTAGES)
    loss = ClipCov(share=1.0, cov_low=1.0, cov_high=3.0)
    cov = covariances(torch.tensor(LOGS), torch.tensor(ADVANTAGES))
    inside = ((cov > 1.0) & (cov < 3.0)).tolist()
    assert 0 < sum(inside) < 6
    ready, shown, grad = run(loss, batch)
    assert ready.streams["loss/clip_cov"].bool().tolist() == inside
    assert shown["policy/clip_cov_frac"] == pytest.approx(sum(inside) / 6)
    expected = -torch.tensor(ADVANTAGES, dtype=torch.float64) / 6
    expected[torch.tensor(inside)] = 0.0
    torch.testing.assert_close(grad, expected)


def test_clip_cov_leaves_tokens_that_ppo_clipped(flat_batch):
    old = [LOGS[0] - 1.0, *LOGS[1:]]
    batch = flat_batch([4, 2], advantages=ADVANTAGES, old_logprobs=old)
    ready, _, _ = run(ClipCov(share=1.0, cov_low=1.0, cov_high=3.0), batch)
    assert ready.streams["loss/clip_cov"][0] == 0.0


def test_clip_cov_without_candidates_is_ppo_clip(flat_batch):
    batch = flat_batch([4, 2], advantages=ADVANTAGES)
    _, _, grad = run(ClipCov(cov_low=90.0, cov_high=91.0), batch)
    x = torch.tensor(LOGS, dtype=torch.float64, requires_grad=True)
    PPOClip()(Outputs(x), batch).loss.backward()
    torch.testing.assert_close(grad, x.grad)


def test_the_draw_belongs_to_the_sequence_not_to_its_place(flat_batch):
    batch = flat_batch([4, 2, 3])
    draws = token_draws(batch, 0, 5)
    assert draws.shape == (9,)
    moved = token_draws(batch.select([2, 0]), 0, 5)
    assert torch.equal(moved, torch.cat([draws[6:], draws[:4]]))
    assert not torch.equal(draws, token_draws(batch, 1, 5))
    assert not torch.equal(draws, token_draws(batch, 0, 6))


def test_the_draw_decides_among_candidates(flat_batch):
    batch = flat_batch([4, 2], advantages=ADVANTAGES)
    draws = token_draws(batch, 3, 0)
    cov = covariances(torch.tensor(LOGS), torch.tensor(ADVANTAGES))
    candidates = torch.nonzero((cov > 0.1) & (cov < 9.0)).flatten()
    assert len(candidates) >= 3
    ready, _, _ = run(ClipCov(share=0.2, cov_low=0.1, cov_high=9.0, seed=3), batch)
    chosen = torch.nonzero(ready.streams["loss/clip_cov"]).flatten().tolist()
    assert chosen == [int(candidates[draws[candidates].argmin()])]


def test_rejected_tokens_are_neither_ranked_nor_drawn(flat_batch):
    sampler = [LOGS[0] - 9.0, *LOGS[1:]]
    batch = flat_batch([4, 2], advantages=ADVANTAGES, old_logprobs=LOGS, sampler_logprobs=sampler)
    ready, _, _ = run(KLCov(share=0.2, rejection="token"), batch)
    assert ready.streams["loss/keep"].tolist() == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert ready.streams["loss/kl_cov"].tolist() == [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    ready, _, _ = run(ClipCov(share=1.0, cov_low=0.1, cov_high=9.0, rejection="token"), batch)
    assert ready.streams["loss/clip_cov"][0] == 0.0


@pytest.mark.parametrize(
    ("cls", "fields", "words"),
    [
        (ClipCov, {"share": 1.1}, "share"),
        (ClipCov, {"cov_low": 5.0}, "cov_high"),
        (KLCov, {"share": -0.1}, "share"),
        (KLCov, {"penalty": -1.0}, "penalty"),
    ],
)
def test_values_out_of_range_are_refused(cls, fields, words):
    with pytest.raises(ValueError, match=words):
        cls(**fields)
