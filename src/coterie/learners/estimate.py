"""Memory, arithmetic and time of a training step, before anything is loaded.

The model is built without storage (fake tensors), one micro-batch runs forward and backward through the learner's own
code, and the storages that live at each moment are added up: what is estimated is what will run.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from transformers import AutoModelForCausalLM

from coterie.config.schema import LocalLearnerConfig
from coterie.core.batch import Batch, Counts
from coterie.learners.attention import PACKED, register
from coterie.learners.head import LogitMap, action_logprobs, head_of
from coterie.learners.local import compute_dtype, gpu_memory
from coterie.learners.logprobs import attention_of, plan_of, run_body
from coterie.learners.packing import Shape, choose_shape, lay_out, split
from coterie.learners.prefix import packing_obstacle

PROCESS_BYTES = 440 << 20
"""Resident memory of a process with torch, transformers and a data set, before any model (measured)."""

TRAIN_SHARE, SAMPLE_SHARE = 0.75, 0.4
"""Shares of the matrix-multiply ceiling that training and sampling reach (measured, `docs/performance.md`)."""

FRAGMENTED_ONE, FRAGMENTED_MANY = 0.1, 0.4
"""Bytes that a CPU's heap holds in gaps, for each byte of gradients, activations and logits: with one micro-batch and
with more. (Fitted to `benchmarks/memory.py` with glibc 2.36; `mallinfo2` shows the gaps.)"""

_ABSENT_GPU_BYTES = 80 << 30


@dataclass(frozen=True)
class Estimate:
    """What a training step takes.

    Attributes:
        peak_bytes: largest memory held at one time: resident memory on a CPU, allocated memory on a GPU.
        parts: bytes by what they are for. `process`, `weights`, `optimizer` and `reference` are there all the time;
            `gradients`, `activations`, `logits`, `workspace` and `fragmentation` while training; `kv_cache` and
            `sampling` while sampling.
        flops_per_step: floating-point operations of sampling, scoring and training.
        seconds_per_step: their time, given the machine's matrix-multiply speed; rewards and tools are not in it.
        shape: micro-batch and chunk sizes in force.
    """

    peak_bytes: int
    parts: dict[str, int]
    flops_per_step: float
    seconds_per_step: float | None
    shape: Shape


@dataclass(frozen=True)
class Workload:
    """One step's sequences, all of full length.

    Attributes:
        prompts: prompts a step.
        n: completions a prompt.
        prompt_tokens: tokens of a prompt.
        max_tokens: tokens of a completion.
    """

    prompts: int
    n: int
    prompt_tokens: int
    max_tokens: int


def estimate(
    model_config: Any,
    learner: LocalLearnerConfig,
    *,
    device_kind: Literal["cpu", "cuda"],
    rows: int,
    prompt_tokens: int,
    max_tokens: int,
    n: int,
    prompts_per_step: int,
    needs_ref: bool,
    kv_gib: float,
    gflops: float | None = None,
) -> Estimate:
    """Estimate a step of `prompts_per_step * n` completions of full length.

    Args:
        model_config: transformers configuration of the policy.
        learner: the `learner` section.
        device_kind: "cpu" or "cuda" (a GPU that is not there is taken to have 80 GiB).
        rows: completions decoded together (`engine.max_rows`).
        prompt_tokens: tokens of a prompt.
        max_tokens: tokens of a completion.
        n: completions a prompt.
        prompts_per_step: prompts a step.
        needs_ref: whether a reference model is kept beside the policy.
        kv_gib: bound on the key-value cache in GiB; 0 for none.
        gflops: matrix-multiply speed of the machine, 10^9 operations a second; without it no time is estimated.
    """
    work = Workload(prompts_per_step, n, prompt_tokens, max_tokens)
    dtype = compute_dtype(learner, torch.device(device_kind))
    memory = None
    if device_kind == "cuda":
        memory = gpu_memory(torch.device("cuda")) if torch.cuda.is_available() else _ABSENT_GPU_BYTES
    shape = choose_shape(model_config, learner, memory)
    run = _simulate(model_config, learner, work, shape, dtype)
    width = torch.empty((), dtype=dtype).element_size()
    kv, sampling = _sampling(model_config, work, rows, kv_gib, width)
    gaps = 0.0 if device_kind == "cuda" else FRAGMENTED_ONE if run.scale == 1 else FRAGMENTED_MANY
    parts = {
        "process": PROCESS_BYTES if device_kind == "cpu" else 0,
        "weights": run.weights,
        "optimizer": 2 * run.weights,
        "reference": run.weights if needs_ref else 0,
        "gradients": run.weights,
        "activations": run.activations,
        "logits": run.logits,
        "workspace": run.workspace,
        "fragmentation": int(gaps * (run.weights + run.activations + run.logits)),
        "kv_cache": kv,
        "sampling": sampling,
    }
    always = sum(parts[name] for name in ("process", "weights", "optimizer", "reference"))
    training = sum(parts[name] for name in ("gradients", "activations", "logits", "workspace", "fragmentation"))
    sampled = work.prompts * (work.prompt_tokens + work.n * work.max_tokens) / run.positions * run.forward_flops
    scored = run.forward_flops * run.scale if needs_ref else 0.0
    trained = run.flops * run.scale
    seconds = None
    if gflops:
        seconds = ((trained + scored) / TRAIN_SHARE + sampled / SAMPLE_SHARE) / (gflops * 1e9)
    return Estimate(always + max(training, kv + sampling), parts, sampled + scored + trained, seconds, shape)


@dataclass(frozen=True)
class _Run:
    """Of the largest micro-batch; `scale` is how many of it the whole step makes, by positions."""

    weights: int
    activations: int
    logits: int
    workspace: int
    forward_flops: float
    flops: float
    positions: int
    scale: float


def _simulate(model_config: Any, learner: LocalLearnerConfig, work: Workload, shape: Shape, dtype: torch.dtype) -> _Run:
    register()
    with FakeTensorMode() as fake:
        module = AutoModelForCausalLM.from_config(model_config, dtype=torch.float32).eval()
        if learner.attention != "auto":
            module.config._attn_implementation = learner.attention
    packed = packing_obstacle(module, learner) is None
    share = learner.share_prefix and packed
    batch = _batch(work)
    plan = plan_of(batch, share)
    layouts = [lay_out(plan, part, packed) for part in split(plan, shape.micro_batch_tokens, packed)]
    sizes = [layout.input_ids.numel() for layout in layouts]
    largest = max(range(len(layouts)), key=sizes.__getitem__)
    part = batch.select(split(plan, shape.micro_batch_tokens, packed)[largest])
    if learner.gradient_checkpointing:
        module.gradient_checkpointing_enable({"use_reentrant": False})
        for layer in module.modules():
            layer.training = bool(getattr(layer, "gradient_checkpointing", False))
    with fake, attention_of(module, PACKED if packed else None):
        for parameter in module.parameters():
            parameter.grad = torch.empty_like(parameter)
        layout = layouts[largest].map(fake.from_tensor)
        with _Live() as live, FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION) as flops:
            for parameter in module.parameters():
                live.see(parameter)
                live.see(parameter.grad)
            start = live.now
            hidden = run_body(module.get_decoder(), layout, None if dtype == torch.float32 else dtype)
            body = live.now - start
            weight, bias = head_of(module)
            chosen = hidden.flatten(0, 1)[: part.num_actions].to(dtype)
            targets = torch.zeros(part.num_actions, dtype=torch.int64)
            head = action_logprobs(chosen, weight, bias, targets, logits=LogitMap(), chunk=shape.head_chunk)
            whole = live.now - start
            forward = float(flops.get_total_flops())
            head.logprobs.sum().backward()
            total = float(flops.get_total_flops())
    weights = sum({id(p): p.numel() * p.element_size() for p in module.parameters()}.values())
    workspace = max(0, live.peak - start - whole)
    return _Run(weights, body, whole - body, workspace, forward, total, sizes[largest], sum(sizes) / sizes[largest])


def _batch(work: Workload) -> Batch:
    """Full-length sequences with nothing in them."""
    length, count = work.prompt_tokens + work.max_tokens, work.prompts * work.n
    actions = torch.arange(count)[:, None] * length + torch.arange(work.prompt_tokens, length)
    sequences, tokens = torch.arange(count), torch.full((count * work.max_tokens,), 0.0)
    groups = sequences // work.n
    return Batch(
        tokens=torch.zeros(count * length, dtype=torch.int64),
        cu_seqlens=torch.arange(count + 1) * length,
        action_index=actions.flatten(),
        sequence_id=sequences.repeat_interleave(work.max_tokens),
        advantages=tokens,
        streams={},
        group_id=groups,
        prefix_length=torch.full((count,), work.prompt_tokens),
        group_sequences=torch.full((count,), work.n),
        group_tokens=torch.full((count,), work.n * work.max_tokens),
        rewards=torch.zeros(count),
        bootstrap_values=torch.zeros(count),
        counts=Counts(count * work.max_tokens, count, work.prompts),
    )


def _sampling(model_config: Any, work: Workload, rows: int, kv_gib: float, width: int) -> tuple[int, int]:
    """Bytes of the key-value cache, and of a decoding step's logits and the prompts' forward pass."""
    text = model_config.get_text_config()
    queries = getattr(text, "num_attention_heads", 0)  # without attention there are no keys and values
    heads = getattr(text, "num_key_value_heads", None) or queries
    size = getattr(text, "head_dim", None) or text.hidden_size // max(1, queries)
    together = min(rows, work.prompts * work.n)
    cache = 2 * width * text.num_hidden_layers * heads * size * together * (work.prompt_tokens + work.max_tokens)
    if kv_gib:
        cache = min(cache, int(kv_gib * (1 << 30)))
    inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    logits = 3 * 4 * together * text.vocab_size
    prefill = width * min(8192, work.prompts * work.prompt_tokens) * (4 * text.hidden_size + 3 * inner)
    return cache, max(logits, prefill)


class _Live(TorchDispatchMode):
    """Bytes of the storages that are alive, now and at most."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            self.see(leaf)
        return out

    def see(self, tensor: Any) -> None:
        """Count a tensor's storage until it dies."""
        if not isinstance(tensor, Tensor):
            return
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        if key in self._known:
            return

        def gone(_: Any) -> None:
            self.now -= size
            del self._known[key]

        self._known[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)


def _attention_flops(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def _attention_backward_flops(grad: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> int:
    return int(sdpa_backward_flop_count(grad, query, key, value))


CPU_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
}
"""How torch's counter is to count the attention of a CPU, which it doesn't know by itself."""
