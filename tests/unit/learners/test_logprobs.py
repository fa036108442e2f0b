from dataclasses import replace

import pytest
import torch

from coterie.errors import ConfigError, ModelError
from coterie.learners.logprobs import check_head, check_wants, plan_of

KINDS = ["cohere", "gemma2", "gpt2", "granite", "llama", "mistral", "phi", "qwen3"]
PACKABLE = {"cohere", "gpt2", "granite", "llama", "phi", "qwen3"}


def by_definition(model, batch, temperature):
    """Log-probability and entropy of each action token from the model's own logits, sequence by sequence."""
    logprobs, entropy = [], []
    for s in range(batch.num_sequences):
        start, stop = batch.cu_seqlens[s], batch.cu_seqlens[s + 1]
        tokens = batch.tokens[start:stop]
        with torch.no_grad():
            table = (model(input_ids=tokens[None]).logits[0].double() / temperature).log_softmax(-1)
        actions = batch.action_index[batch.sequence_id == s] - start
        logprobs += [table[p - 1, tokens[p]] for p in actions]
        entropy += [-(table[p - 1].exp() * table[p - 1]).sum() for p in actions]
    return torch.stack(logprobs), torch.stack(entropy)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_the_model_itself(lab, kind, temperature):
    model, batch = lab.build(kind), lab.batch()
    want, entropy = by_definition(model, batch, temperature)
    learner = lab.learner(model, temperature=temperature, micro_batch_tokens=40)
    got = learner.forward.score(batch, frozenset({"entropy"}))
    assert learner.forward.packed is (kind in PACKABLE), learner.forward.obstacle
    torch.testing.assert_close(got.logprobs.double(), want, rtol=0, atol=2e-5)
    torch.testing.assert_close(got.entropy.double(), entropy, rtol=0, atol=2e-5)


@pytest.mark.parametrize("kind", sorted(PACKABLE))
def test_sharing_the_prompt_changes_nothing(lab, kind):
    batch = lab.batch()
    plain = lab.learner(lab.build(kind)).forward.score(batch).logprobs
    shared = lab.learner(lab.build(kind), share_prefix=True).forward.score(batch).logprobs
    torch.testing.assert_close(shared, plain, rtol=0, atol=2e-5)


@pytest.mark.parametrize("options", [{"attention": "eager"}, {"dtype": "bfloat16"}, {"compile": False}])
def test_options_change_the_way_and_not_the_numbers(lab, options):
    batch = lab.batch()
    want = lab.learner(lab.build()).forward.score(batch).logprobs
    got = lab.learner(lab.build(), **options).forward.score(batch).logprobs
    tolerance = 0.3 if "dtype" in options else 2e-5
    torch.testing.assert_close(got, want, rtol=0, atol=tolerance)
    assert ("dtype" in options) is not torch.allclose(got, want, atol=2e-5)


def test_scores_come_back_in_the_order_of_the_batch(lab):
    batch = lab.batch()
    learner = lab.learner(lab.build(), micro_batch_tokens=16)
    assert len(learner.forward.micro_batches(batch)) > 3
    whole = lab.learner(lab.build(), micro_batch_tokens=10_000).forward.score(batch).logprobs
    torch.testing.assert_close(learner.forward.score(batch).logprobs, whole, rtol=0, atol=2e-5)


def test_the_first_token_can_t_be_an_action(lab):
    batch = lab.batch()
    broken = replace(batch, action_index=torch.cat([torch.zeros(1, dtype=torch.int64), batch.action_index[1:]]))
    with pytest.raises(ValueError, match="position 0"):
        plan_of(broken, False)


def test_only_what_is_read_is_computed(lab):
    batch = lab.batch(groups=1, n=2, longest=4, prompt=5)
    plan = plan_of(batch, False)
    last = [int((batch.action_index[batch.sequence_id == s] - batch.cu_seqlens[s]).max()) for s in range(2)]
    assert list(plan.needed) == last  # the last action itself is nobody's context


def test_unknown_logit_transformations_are_refused(lab):
    model = lab.build("llama")
    forward = model.forward

    def doubled(*args, **kwargs):
        out = forward(*args, **kwargs)
        out.logits = out.logits * 2
        return out

    model.forward = doubled
    with pytest.raises(ModelError, match="logits"):
        check_head(model, model.model)


def test_a_body_that_mixes_packed_sequences_is_found_out(lab):
    model = lab.build("llama")
    inner = model.model.layers[0].forward
    # Something that attention blocks don't govern, as a convolution over the row would be.
    model.model.layers[0].forward = lambda hidden, **kw: inner(hidden + hidden.cumsum(1), **kw)
    learner = lab.learner(model)
    assert not learner.forward.packed and "packed row" in learner.forward.obstacle
    with pytest.raises(ConfigError, match="share_prefix"):
        lab.learner(model, share_prefix=True)


def test_unknown_wishes_are_refused():
    check_wants(frozenset({"entropy", "sum_probs_squared"}))
    with pytest.raises(ConfigError, match="values"):
        check_wants(frozenset({"values", "entropy"}))


def test_the_engine_finds_its_own_attention_again(lab):
    model = lab.build()
    before = model.config._attn_implementation
    learner = lab.learner(model, gradient_checkpointing=True)
    lab.run(learner.forward_backward(lab.batch(), lab.Weighted()))
    assert model.config._attn_implementation == before
    assert not any(module.training for module in model.modules())


def test_dropout_stays_off(lab):
    model = lab.build("gpt2")  # its configuration has dropout of 0.1
    learner, batch = lab.learner(model), lab.batch()
    first = learner.forward.score(batch).logprobs
    lab.run(learner.forward_backward(batch, lab.Weighted()))
    assert torch.equal(first, learner.forward.score(batch).logprobs)
    with pytest.raises(ConfigError, match="dropout"):
        lab.learner(lab.build("gpt2"), gradient_checkpointing=True)
