"""Every loss makes a table policy better: the smallest thing that can learn, so that a wrong sign can't hide."""

import pytest
import torch

import coterie.algos as algos
from coterie.core.batch import Outputs
from coterie.core.protocols import HasPrepass

CONTEXTS, ACTIONS, GROUP, LENGTH = 3, 4, 8, 2
SEEDS = (0, 1, 2)
WIDE = {"clip_low": 0.2, "clip_high": 0.2}
POLICY_LOSSES = {
    "ppo_clip": algos.PPOClip(),
    "ppo_clip verl": algos.PPOClip(**algos.PPOClip.conventions["verl"]),
    "dr_grpo": algos.PPOClip(aggregate="fixed_length", fixed_length=LENGTH),
    "ppo_clip kl": algos.PPOClip(kl="k3", kl_coef=0.01),
    "ppo_clip entropy": algos.PPOClip(entropy_coef=0.005),
    "ppo_clip corrected": algos.PPOClip(
        correction="token_tis", rejection="sequence", rejection_low=0.2, rejection_high=5.0
    ),
    "ppo_clip bypass": algos.PPOClip(bypass=True),
    "ppo_clip top entropy": algos.PPOClip(top_entropy=0.8),
    "ppo_clip positive nll": algos.PPOClip(positive_nll_coef=0.1),
    "reinforce": algos.Reinforce(),
    "reinforce bypass": algos.Reinforce(bypass=True, correction="token_tis"),
    "gpg": algos.GPGLoss(),
    "importance_sampling": algos.ImportanceSampling(),
    "cispo": algos.CISPO(),
    "sapo": algos.SAPO(),
    "dppo tv": algos.DPPO(),
    "dppo kl": algos.DPPO(divergence="kl"),
    "topr": algos.TOPR(),
    "dro": algos.DRO(),
    "gspo": algos.GSPO(**WIDE),
    "gspo token": algos.GSPO(**WIDE, form="token"),
    "luspo": algos.LUSPO(**WIDE),
    "gmpo": algos.GMPO(),
    "vespo": algos.VESPO(),
    "clip_cov": algos.ClipCov(share=0.05, cov_low=0.1),
    "kl_cov": algos.KLCov(share=0.05),
}
PAIR_LOSSES = {
    "dpo": algos.DPO(beta=0.5),
    "cdpo": algos.DPO(beta=0.5, label_smoothing=0.1),
    "dpo length_normalize": algos.DPO(beta=0.5, length_normalize=True),
    "robust_dpo": algos.RobustDPO(beta=0.5),
    "hinge_dpo": algos.HingeDPO(beta=0.5),
    "ipo": algos.IPO(beta=0.1),
    "exo": algos.EXO(beta=0.5),
    "discopop": algos.DiscoPOP(beta=0.5, tau=1.0),
    "nca": algos.NCA(beta=0.5),
    "bco": algos.BCO(beta=0.5),
    "sppo": algos.SPPO(beta=0.1),
    "apo_zero": algos.APOZero(beta=0.5),
    "apo_down": algos.APODown(beta=0.5),
    "aot": algos.AOT(beta=0.5),
    "aot_unpaired": algos.AOTUnpaired(beta=0.5),
    "orpo": algos.ORPO(),
    "cpo": algos.CPO(),
    "simpo": algos.SimPO(),
    "alphapo": algos.AlphaPO(),
}


class Table:
    """Logits for every context and position; the right action is the context's own number."""

    def __init__(self, seed):
        self.draw = torch.Generator().manual_seed(seed)
        self.logits = torch.zeros(CONTEXTS, LENGTH, ACTIONS, dtype=torch.float64, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.logits], lr=0.1)

    def outputs(self, contexts, actions):
        """Flat logprobs and entropies of sequences `[n, LENGTH]`."""
        logs = torch.log_softmax(self.logits, -1)[contexts]
        chosen = logs.gather(-1, actions[..., None]).flatten()
        return Outputs(chosen, -(logs.exp() * logs).sum(-1).flatten())

    def step(self, loss, contexts, actions, batch):
        if isinstance(loss, HasPrepass):
            with torch.no_grad():
                batch = batch.with_streams(*loss.prepass(self.outputs(contexts, actions), batch))
        self.optimizer.zero_grad()
        loss(self.outputs(contexts, actions), batch).loss.backward()
        self.optimizer.step()

    def right(self):
        """Mean probability of the right action."""
        probabilities = torch.softmax(self.logits.detach(), -1)
        return float(torch.stack([probabilities[c, :, c].mean() for c in range(CONTEXTS)]).mean())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_policy_losses_raise_the_reward(flat_batch, name, seed):
    loss, table = POLICY_LOSSES[name], Table(seed)
    contexts = torch.arange(CONTEXTS).repeat_interleave(GROUP)
    groups, lengths = contexts.tolist(), [LENGTH] * len(contexts)
    for _ in range(30):
        with torch.no_grad():
            policy = torch.softmax(table.logits, -1)[contexts].flatten(0, 1)
            actions = torch.multinomial(policy, 1, generator=table.draw).reshape(-1, LENGTH)
            old = table.outputs(contexts, actions).logprobs
        rewards = (actions == contexts[:, None]).double().mean(1)
        advantages = (rewards.reshape(-1, GROUP) - rewards.reshape(-1, GROUP).mean(1, keepdim=True)).flatten()
        sampler = old + 0.05 * torch.randn(len(old), generator=table.draw, dtype=torch.float64)
        streams = {"old_logprobs": old, "sampler_logprobs": sampler, "ref_logprobs": torch.full_like(old, -1.386)}
        batch = flat_batch(lengths, groups, rewards, advantages.repeat_interleave(LENGTH), **streams)
        for _ in range(2):
            table.step(loss, contexts, actions, batch)
    assert table.right() > 0.6, "it began at 0.25"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_preference_losses_raise_what_is_chosen_above_what_is_rejected(flat_batch, name, seed):
    loss, table = PAIR_LOSSES[name], Table(seed)
    for _ in range(30):
        contexts = torch.arange(CONTEXTS).repeat_interleave(2)
        wrong = (contexts + torch.randint(1, ACTIONS, contexts.shape, generator=table.draw)) % ACTIONS
        actions = torch.where(torch.arange(len(contexts)) % 2 == 0, contexts, wrong)[:, None].expand(-1, LENGTH)
        ref = torch.full((len(contexts) * LENGTH,), -1.386, dtype=torch.float64)
        batch = flat_batch([LENGTH] * len(contexts), contexts.tolist(), [1.0, 0.0] * CONTEXTS, ref_logprobs=ref)
        table.step(loss, contexts, actions, batch)
    assert table.right() > 0.6, "it began at 0.25"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("point", ["kl", "zero"])
def test_kto_learns_from_labels(flat_batch, point, seed):
    loss, table = algos.KTO(beta=0.5, reference_point=point), Table(seed)
    for _ in range(30):
        contexts = torch.arange(CONTEXTS).repeat_interleave(3)
        wrong = (contexts + torch.randint(1, ACTIONS, contexts.shape, generator=table.draw)) % ACTIONS
        place = torch.arange(len(contexts)) % 3
        actions = torch.where(place == 0, contexts, wrong)[:, None].expand(-1, LENGTH)
        labels = torch.where(place == 0, 1.0, torch.where(place == 1, 0.0, float("nan") if point == "kl" else 0.0))
        ref = torch.full((len(contexts) * LENGTH,), -1.386, dtype=torch.float64)
        batch = flat_batch([LENGTH] * len(contexts), None, labels, ref_logprobs=ref)
        table.step(loss, contexts, actions, batch)
    assert table.right() > 0.6, "it began at 0.25"


@pytest.mark.parametrize("cls", [algos.SFTLoss, algos.DFTLoss])
def test_supervised_losses_copy_the_right_action(flat_batch, cls):
    table = Table(0)
    contexts = torch.arange(CONTEXTS)
    for _ in range(30):
        table.step(cls(), contexts, contexts[:, None].expand(-1, LENGTH), flat_batch([LENGTH] * CONTEXTS))
    assert table.right() > 0.8, "it began at 0.25"
