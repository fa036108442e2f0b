import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import FalconMambaConfig, GPT2Config, LlamaConfig, MistralConfig

from coterie.config.schema import LocalLearnerConfig
from coterie.learners.estimate import CPU_ATTENTION, TRAIN_SHARE, estimate

SIZES = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
WORK = {"rows": 8, "prompt_tokens": 20, "max_tokens": 12, "n": 4, "prompts_per_step": 3}


def found(config=None, needs_ref=False, kv_gib=0.0, gflops=None, device_kind="cpu", work=WORK, **learner):
    return estimate(
        config or LlamaConfig(**SIZES),
        LocalLearnerConfig(**learner),
        device_kind=device_kind,
        needs_ref=needs_ref,
        kv_gib=kv_gib,
        gflops=gflops,
        **work,
    )


def test_weights_gradients_and_moments_are_counted_exactly(lab):
    model = lab.build("llama")  # tied: the head is no weight of its own
    size = 4 * sum(p.numel() for p in model.parameters())
    parts = found(model.config).parts
    assert parts["weights"] == parts["gradients"] == size
    assert parts["optimizer"] == 2 * size and parts["reference"] == 0
    assert found(model.config, needs_ref=True).parts["reference"] == size


def test_arithmetic_is_that_of_a_real_step(lab):
    batch = lab.batch(groups=3, n=4, longest=1, prompt=20)
    learner = lab.learner(lab.build("llama"))
    with FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION) as counter:
        lab.run(learner.forward_backward(batch, lab.Weighted()))
    whole = found(learner.module.config, work={**WORK, "max_tokens": 1})
    # A forward pass is a third of training; sampling computes the 3 prompts once and 12 tokens: 72 of 240 positions.
    assert whole.flops_per_step == pytest.approx(counter.get_total_flops() * (1 + 72 / 240 / 3), rel=0.05)


def test_the_peak_is_the_larger_of_training_and_sampling():
    e = found()
    always = sum(e.parts[name] for name in ("process", "weights", "optimizer", "reference"))
    training = sum(e.parts[name] for name in ("gradients", "activations", "logits", "workspace", "fragmentation"))
    assert e.peak_bytes == always + training > always + e.parts["kv_cache"] + e.parts["sampling"]


def test_the_cache_is_that_of_the_rows_and_bounded():
    assert found().parts["kv_cache"] == 2 * 4 * 3 * 2 * 16 * 8 * 32  # both, fp32, layers, heads, dim, rows, tokens
    assert found(kv_gib=1e-4).parts["kv_cache"] == int(1e-4 * 2**30)


def test_what_saves_memory_is_seen_to_save_it():
    work = {**WORK, "prompt_tokens": 60, "n": 8}
    plain = found(work=work).parts["activations"]
    assert found(work=work, share_prefix=True).parts["activations"] < 0.5 * plain
    assert found(work=work, gradient_checkpointing=True).parts["activations"] < 0.5 * plain
    assert found(work=work, micro_batch_tokens=200).parts["activations"] < 0.5 * plain
    chunked = found(work=work, head_chunk=8).parts
    assert chunked["logits"] < found(work=work).parts["logits"]


def test_activations_of_a_real_pass_are_those_estimated(lab):
    """What autograd keeps, counted with hooks on a real model, is what the storage-free run says."""
    model = lab.build("llama")
    learner, batch = lab.learner(model), lab.batch(groups=3, n=4, longest=1, prompt=20)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), learner.forward.running():
        [(part, layout)] = learner.forward.micro_batches(batch)
        outputs = learner.forward.outputs(part, layout)
        total = sum(size for place, size in kept.items() if place not in weights)
    assert outputs.logprobs.requires_grad
    parts = found(model.config, work={**WORK, "max_tokens": 1}).parts
    assert parts["activations"] + parts["logits"] == pytest.approx(total, rel=0.25)


@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(vocab_size=300, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2),
        MistralConfig(**SIZES, sliding_window=8),
        FalconMambaConfig(vocab_size=300, hidden_size=32, num_hidden_layers=2, state_size=4),
    ],
    ids=lambda c: c.model_type,
)
def test_other_architectures_are_estimated_too(config):
    assert found(config, work={**WORK, "prompt_tokens": 6, "max_tokens": 4}).parts["activations"] > 0


def test_half_precision_takes_less_and_a_gpu_needs_none_here():
    assert found(dtype="bfloat16").parts["activations"] < found().parts["activations"]
    e = found(device_kind="cuda", micro_batch_tokens=128)
    assert e.parts["process"] == 0 and e.parts["activations"] > 0


def test_time_follows_from_the_speed_of_the_machine():
    assert found().seconds_per_step is None
    slow, fast = found(gflops=10.0).seconds_per_step, found(gflops=100.0).seconds_per_step
    assert slow == pytest.approx(10 * fast)
    assert slow > found().flops_per_step / 1e10 / TRAIN_SHARE
