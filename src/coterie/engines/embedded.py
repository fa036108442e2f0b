"""The embedded engine: samples on the learner's own module, without a second copy of the weights.

Samples and trains with the same numbers: there is no weight transfer and no mismatch between two implementations of a
model beyond rounding. It is the default engine, on CPU and GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psutil
import torch

from coterie.config.schema import TransformersEngineConfig
from coterie.core.protocols import WeightsRef
from coterie.core.types import Completion, Request
from coterie.engines.attention import NAME, register
from coterie.engines.batches import Batches
from coterie.engines.borrow import borrowed
from coterie.engines.continuous import Continuous, Limits, Progress
from coterie.engines.kv_cache import NotPlainError, SlotCache, whole_blocks
from coterie.engines.probe import Nature, probe
from coterie.engines.rows import Prompt, prompts_of
from coterie.engines.sampling import check_sampling
from coterie.engines.stop import eos_ids
from coterie.errors import ConfigError, EngineError

_GIB = 1 << 30
_CPU_PREFILL = 2048  # prompt tokens a pass beyond which activations fall out of a CPU's caches and nothing is gained
_SHARED_FROM = 1024  # prompt tokens a step that need not be read again, from which sharing them pays


class TransformersEngine:
    """Samples with a transformers causal language model in place.

    Args:
        module: the model, also while it is in training mode; nothing in it is changed for longer than a call.
        tokenizer: decodes text and finds stop strings.
        config: bounds of a batch.
        device: where the module is.
        dtype: dtype of the forward pass (autocast); None for that of the parameters.
        on_progress: called after every step with rows done, rows in all and tokens sampled.

    Attributes:
        on_progress: may be set anew between calls.
        last: facts of the last call: `steps`, `tokens`, `peak_rows`.
    """

    def __init__(
        self,
        module: Any,
        tokenizer: Any,
        config: TransformersEngineConfig,
        *,
        device: torch.device | str,
        dtype: torch.dtype | None = None,
        on_progress: Progress | None = None,
    ) -> None:
        for key in ("max_rows", "prefill_tokens"):
            if getattr(config, key) < 1:
                raise ConfigError(f"engine.{key}={getattr(config, key)}: must be an integer ≥ 1")
        if config.kv_cache_gib < 0:
            raise ConfigError(f"engine.kv_cache_gib={config.kv_cache_gib}: must be ≥ 0 GiB; 0 chooses")
        self.on_progress = on_progress
        self.last: dict[str, int] = {}
        self._module, self._tokenizer, self._config = module, tokenizer, config
        self._device, self._dtype = torch.device(device), dtype
        self._nature: Nature | None = None
        self._version = 0
        self._busy = False

    async def generate(self, requests: Sequence[Request]) -> list[list[Completion]]:
        """One list of completions a request, one completion a seed; runs to the end without a switch.

        Raises:
            ConfigError: a prompt and its tokens pass the model's context, or one row passes the cache bound.
            EngineError: for a request that makes no sense, or a model that can't be sampled from.
        """
        return self.generate_sync(requests)

    def generate_sync(self, requests: Sequence[Request]) -> list[list[Completion]]:
        """`generate` as a plain call."""
        if self._busy:
            raise EngineError("the embedded engine is in a call already; it samples for one caller at a time")
        for i, request in enumerate(requests):
            self._check(i, request)
        prompts = prompts_of(requests)
        todo = [prompt for prompt in prompts if prompt.rows]
        self._busy = True
        try:
            if todo:
                self._run(todo)
        finally:
            self._busy = False
        return [[row.completion(self._tokenizer, self._version) for row in prompt.rows] for prompt in prompts]

    async def load(self, weights: WeightsRef) -> None:
        """Note the version: the weights are the learner's own and need no loading.

        Raises:
            EngineError: for weights in a folder, which would have to be put into the learner.
        """
        if weights.path is not None:
            raise EngineError(
                f"the embedded engine samples with the learner's own weights and can't load {weights.path}; "
                "load them into the learner, or use an engine of its own (engine=vllm, engine=http)"
            )
        self._version = weights.version

    async def sleep(self) -> None:
        """Nothing to free: the key-value cache lives for one call and the weights are the learner's."""

    async def wake(self) -> None:
        """Nothing to do."""

    def _run(self, prompts: list[Prompt]) -> None:
        if self._nature is None:
            register()
            self._nature = probe(self._module, self._device, self._dtype)
        nature = self._nature
        longest = max(prompt.longest for prompt in prompts)
        eos = eos_ids(self._module, self._tokenizer)
        plain = not nature.refusal and (not nature.window or longest <= nature.window)
        limits = self._limits(prompts, nature, plain)
        runner: Continuous | Batches
        if plain:
            runner = Continuous(self._module, self._tokenizer, SlotCache(), limits, eos, self._device)
        else:
            runner = Batches(self._module, self._tokenizer, limits, eos, self._device)
        try:
            with borrowed(self._module, NAME if plain else None, self._dtype):
                runner.run(prompts, self.on_progress)
        except NotPlainError as e:
            raise EngineError(f"sampling from {type(self._module).__name__} failed: {e}") from e
        self.last = {"steps": runner.steps, "tokens": runner.tokens, "peak_rows": runner.peak_rows}

    def _limits(self, prompts: list[Prompt], nature: Nature, plain: bool) -> Limits:
        """How many rows run together, from token counts and settings alone."""
        total = sum(len(p.rows) for p in prompts)
        rows = min(self._config.max_rows, total)
        prompt_length = max(len(p.tokens) for p in prompts)
        longest = max(p.longest for p in prompts)
        shared = plain and self._can_share() and _tokens_saved(prompts, rows) >= _SHARED_FROM
        own = longest
        if shared or not plain:  # apart from the prompt, or after the longest prompt of a padded batch
            own = max(row.limit for p in prompts for row in p.rows) + (0 if shared else prompt_length)
        need = whole_blocks(own) + (whole_blocks(prompt_length) if shared else 0)
        parked = whole_blocks(prompt_length) if not shared and total > len(prompts) else 0
        if nature.bytes_per_token:
            fit = (self._cache_bytes() // nature.bytes_per_token - parked) // need
            if fit < 1:
                gib = (need + parked) * nature.bytes_per_token / _GIB
                raise ConfigError(
                    f"engine.kv_cache_gib={self._config.kv_cache_gib or round(self._cache_bytes() / _GIB, 3)}: one row "
                    f"of {longest} tokens needs {gib:.3g} GiB; raise it, or lower rollout.max_tokens or "
                    "data.max_prompt_tokens"
                )
            rows = min(rows, fit)
        prefill = self._config.prefill_tokens
        if self._device.type == "cpu":
            prefill = min(prefill, _CPU_PREFILL)
        return Limits(rows, own, prompt_length, prefill, shared)

    def _can_share(self) -> bool:
        """Whether shared prompts are computed for this device and dtype."""
        return self._device.type == "cpu" and (self._dtype or self._module.dtype) == torch.float32

    def _cache_bytes(self) -> int:
        """Bound on the cache in bytes: as set, or a quarter of the memory that the device has in all."""
        if self._config.kv_cache_gib:
            return int(self._config.kv_cache_gib * _GIB)
        if self._device.type == "cuda":
            return int(torch.cuda.get_device_properties(self._device).total_memory) // 4
        return int(psutil.virtual_memory().total) // 4

    def _check(self, index: int, request: Request) -> None:
        """Refuse what can't be sampled before anything is."""
        where, config = f"request {index}", self._module.config.get_text_config()
        check_sampling(request.sampling)
        count, size = len(request.prompt_tokens), config.vocab_size
        if not count:
            raise EngineError(f"{where}: its prompt is empty; a model needs at least one token to go on from")
        if min(request.prompt_tokens) < 0 or max(request.prompt_tokens) >= size:
            raise EngineError(f"{where}: a prompt token is outside the model's vocabulary of {size}; wrong tokenizer?")
        limits = request.max_tokens or (request.sampling.max_tokens,)
        if request.max_tokens is not None and len(request.max_tokens) != len(request.seeds):
            raise EngineError(f"{where}: {len(limits)} values in max_tokens for {len(request.seeds)} seeds")
        if min(limits) < 1:
            raise EngineError(f"{where}: max_tokens={min(limits)} must be an integer ≥ 1")
        context = getattr(config, "max_position_embeddings", None)
        if context and count + max(limits) > context:
            raise ConfigError(
                f"rollout.max_tokens={max(limits)}: with a prompt of {count} tokens ({where}) it passes the model's "
                f"context of {context}; lower it, or data.max_prompt_tokens"
            )


def _tokens_saved(prompts: list[Prompt], rows: int) -> int:
    """Prompt tokens that a decoding step of `rows` rows need not read if rows of a prompt share it, on average."""
    total = sum(len(p.rows) for p in prompts)
    saved = sum((min(len(p.rows), rows) - 1) * len(p.tokens) for p in prompts)
    return saved * rows // total
