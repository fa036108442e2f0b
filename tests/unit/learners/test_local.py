import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from coterie.config.schema import OptimConfig
from coterie.core.metrics import mean
from coterie.core.protocols import Learner, LossOutput, WeightsRef
from coterie.errors import ConfigError, RunDirectoryError
from coterie.learners.tiny import tiny_tokenizer


def weights(learner):
    return {name: p.detach().clone() for name, p in learner.module.named_parameters()}


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def steps(lab, learner, seeds, loss=None):
    losses = []
    for seed in seeds:
        metrics = lab.run(learner.forward_backward(lab.batch(seed=seed), loss or lab.Weighted({"entropy"})))
        metrics |= lab.run(learner.step())
        losses.append((metrics["policy/loss"].value, metrics["optim/grad_norm"].value))
    return losses


def test_the_loss_falls_and_weights_move(lab):
    learner = lab.learner(lab.build())
    before, batch = weights(learner), lab.batch()
    first = lab.run(learner.forward_backward(batch, lab.Weighted()))["policy/loss"].value
    assert same(before, weights(learner))
    lab.run(learner.step())
    assert not same(before, weights(learner))
    assert lab.run(learner.forward_backward(batch, lab.Weighted()))["policy/loss"].value < first


def test_it_is_a_learner_and_counts_versions(lab):
    learner = lab.learner(lab.build())
    verbs = [name for name in vars(Learner) if not name.startswith("_")]
    assert all(callable(getattr(learner, verb)) for verb in verbs)
    assert lab.run(learner.publish()) == WeightsRef(0)
    steps(lab, learner, [0])
    assert lab.run(learner.publish()) == WeightsRef(1) and learner.version == 1


def test_a_skipped_step_leaves_the_version(lab):
    class Broken(lab.Weighted):
        def __call__(self, outputs, batch):
            return LossOutput(super().__call__(outputs, batch).loss * float("nan"))

    learner = lab.learner(lab.build())
    before = weights(learner)
    lab.run(learner.forward_backward(lab.batch(), Broken()))
    metrics = lab.run(learner.step())
    assert metrics["optim/skipped_steps"].value == 1 and learner.version == 0
    assert same(before, weights(learner))
    steps(lab, learner, [0])
    assert all(torch.isfinite(w).all() for w in weights(learner).values())


def test_metrics_of_a_loss_merge_over_micro_batches(lab):
    class Counting(lab.Weighted):
        def __call__(self, outputs, batch):
            out = super().__call__(outputs, batch)
            total = float(outputs.logprobs.detach().double().sum())
            return replace(out, metrics={"policy/mean_logprob": mean(total, batch.num_actions)})

    batch = lab.batch()
    learner = lab.learner(lab.build(), micro_batch_tokens=16)
    metrics = lab.run(learner.forward_backward(batch, Counting()))
    want = lab.learner(lab.build()).forward.score(batch).logprobs.double().mean()
    assert metrics["policy/mean_logprob"].weight == batch.num_actions
    assert metrics["policy/mean_logprob"].value == pytest.approx(float(want), abs=1e-5)
    assert metrics["throughput/padding_share"].value == 0.0


def test_missing_streams_and_unknown_outputs_are_named(lab):
    learner, loss = lab.learner(lab.build()), lab.Weighted()
    loss.needs = frozenset({"old_logprobs"})
    with pytest.raises(ConfigError, match=r"Weighted needs the stream old_logprobs.*sampler_logprobs"):
        lab.run(learner.forward_backward(lab.batch(streams=["sampler_logprobs"]), loss))
    with pytest.raises(ConfigError, match="values"):
        lab.run(learner.forward_backward(lab.batch(), lab.Weighted({"values"})))
    with pytest.raises(ConfigError, match="values"):
        lab.run(learner.score(lab.batch(), ["values"]))


def test_old_logprobs_are_those_of_the_current_weights(lab):
    learner, batch = lab.learner(lab.build()), lab.batch()
    first = lab.run(learner.score(batch, ["old_logprobs"]))["old_logprobs"]
    steps(lab, learner, [0, 1])
    second = lab.run(learner.score(batch, ["old_logprobs"]))["old_logprobs"]
    assert first.shape == (batch.num_actions,) and not first.requires_grad
    assert not torch.allclose(first, second)


def test_the_reference_is_loaded_once_when_asked_for_and_never_moves(lab):
    loads = []

    def load():
        loads.append(1)
        return lab.build()

    learner, batch = lab.learner(lab.build(), load_reference=load), lab.batch()
    steps(lab, learner, [0])
    assert not loads
    streams = lab.run(learner.score(batch, ["ref_logprobs", "old_logprobs"]))
    steps(lab, learner, [1])
    again = lab.run(learner.score(batch, ["ref_logprobs"]))["ref_logprobs"]
    assert len(loads) == 1
    assert torch.equal(streams["ref_logprobs"], again)
    assert not torch.allclose(streams["ref_logprobs"], streams["old_logprobs"])


def test_no_reference_is_an_error_that_says_what_to_do(lab):
    with pytest.raises(ConfigError, match=r"learner\.ref_model"):
        lab.run(lab.learner(lab.build()).score(lab.batch(), ["ref_logprobs"]))


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_loaded_learner_goes_on_bit_for_bit(lab, tmp_path, kind):
    optim = OptimConfig(lr=1e-2, schedule="cosine", warmup_steps=2, weight_decay=0.1)
    learner = lab.learner(lab.build(kind), optim)
    steps(lab, learner, [0, 1])
    torch.manual_seed(123)
    learner.save(tmp_path)
    want_losses, drawn, want = steps(lab, learner, [2, 3, 4]), torch.rand(3), weights(learner)
    other = lab.learner(lab.build(kind), optim)
    steps(lab, other, [7])  # a past of its own
    other.load(tmp_path)
    assert other.version == 2
    assert steps(lab, other, [2, 3, 4]) == want_losses
    assert same(want, weights(other)) and other.version == 5
    assert torch.equal(torch.rand(3), drawn)


RESUME = """
import sys, types, importlib.util
from pathlib import Path
spec = importlib.util.spec_from_file_location("lab", sys.argv[1]); lab = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lab)
import asyncio, torch
torch.set_num_threads(1)
learner = lab.learner(lab.build())
learner.load(Path(sys.argv[2]))
asyncio.run(learner.forward_backward(lab.batch(seed=5), lab.Weighted()))
asyncio.run(learner.step())
Path(sys.argv[3]).mkdir()
learner.save(Path(sys.argv[3]))
"""


def test_another_process_goes_on_bit_for_bit(lab, tmp_path):
    (tmp_path / "a").mkdir()
    learner = lab.learner(lab.build())
    steps(lab, learner, [0, 1])
    learner.save(tmp_path / "a")
    lab.run(learner.forward_backward(lab.batch(seed=5), lab.Weighted()))
    lab.run(learner.step())
    conftest = Path(__file__).with_name("conftest.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RESUME, str(conftest), str(tmp_path / "a"), str(tmp_path / "b")]
    subprocess.run(command, check=True, env=environment)
    other = lab.learner(lab.build())
    other.load(tmp_path / "b")
    assert same(weights(learner), weights(other))


def test_weights_are_loaded_in_place(lab, tmp_path):
    learner = lab.learner(lab.build())
    learner.save(tmp_path)
    shared = next(learner.module.parameters())
    place = shared.data_ptr()
    steps(lab, learner, [0])
    learner.load(tmp_path)
    assert next(learner.module.parameters()) is shared and shared.data_ptr() == place


def test_the_model_folder_is_a_plain_one(lab, tmp_path):
    tokenizer = tiny_tokenizer()
    learner = lab.learner(lab.build("llama"), tokenizer=tokenizer)
    steps(lab, learner, [0])
    learner.save(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert same(weights(learner), dict(model.named_parameters()))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert AutoTokenizer.from_pretrained(tmp_path / "model")("1+2").input_ids == tokenizer("1+2").input_ids
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("broken", ["state/learner.pt", "model/model.safetensors", "model/config.json"])
def test_a_damaged_checkpoint_is_named(lab, tmp_path, broken):
    learner = lab.learner(lab.build())
    learner.save(tmp_path)
    (tmp_path / broken).write_bytes((tmp_path / broken).read_bytes()[:40])
    with pytest.raises(RunDirectoryError, match=str(tmp_path)):
        learner.load(tmp_path)


def test_a_missing_state_is_named(lab, tmp_path):
    with pytest.raises(RunDirectoryError, match="learner.pt"):
        lab.learner(lab.build()).load(tmp_path)


def test_half_precision_weights_become_fp32_masters(lab):
    model = lab.build().bfloat16()
    learner = lab.learner(model, dtype="bfloat16")
    assert all(p.dtype == torch.float32 for p in model.parameters())
    before = weights(learner)
    lab.run(learner.forward_backward(lab.batch(), lab.Weighted()))
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())
    lab.run(learner.step())
    assert not same(before, weights(learner))


def test_mixed_precision_resumes_bit_for_bit_too(lab, tmp_path):
    learner = lab.learner(lab.build(), dtype="bfloat16")
    steps(lab, learner, [0, 1])
    learner.save(tmp_path)
    want = steps(lab, learner, [2, 3])
    other = lab.learner(lab.build(), dtype="bfloat16")
    other.load(tmp_path)
    assert steps(lab, other, [2, 3]) == want


def test_fp16_is_refused_on_a_cpu_with_the_reason(lab):
    with pytest.raises(ConfigError, match=r"learner\.dtype=float16.*float32"):
        lab.learner(lab.build(), dtype="float16")


def test_an_attention_that_isn_t_there_is_refused(lab):
    with pytest.raises(ConfigError, match=r"learner\.attention=flash_attention_2"):
        lab.learner(lab.build(), attention="flash_attention_2")


def test_temperature_must_be_positive(lab):
    with pytest.raises(ConfigError, match="temperature"):
        lab.learner(lab.build(), temperature=0.0)


def test_checkpointing_gives_the_same_gradient_and_really_recomputes(lab):
    plain, careful = lab.learner(lab.build()), lab.learner(lab.build(), gradient_checkpointing=True)
    calls = []
    careful.module.model.layers[0].input_layernorm.register_forward_hook(lambda *a: calls.append(1))
    batch = lab.batch()
    for learner in (plain, careful):
        lab.run(learner.forward_backward(batch, lab.Weighted({"entropy"})))
    assert len(calls) == 2 * len(careful.forward.micro_batches(batch))
    for a, b in zip(plain.module.parameters(), careful.module.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_a_batch_without_gradient_is_no_error(lab):
    class Nothing(lab.Weighted):
        def __call__(self, outputs, batch):
            return LossOutput(torch.zeros(()))

    learner = lab.learner(lab.build())
    before = weights(learner)
    metrics = lab.run(learner.forward_backward(lab.batch(), Nothing()))
    lab.run(learner.step())
    assert metrics["policy/loss"].value == 0.0 and same(before, weights(learner))
