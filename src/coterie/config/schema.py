"""What can be set: one frozen dataclass a section, one `Attributes:` line a key (the reference is generated from them).

Slots (`advantage`, `loss`, `reward`, …) are not here: their keys are the fields of the chosen algorithm's dataclass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class RunConfig:
    """Where a run lives and how it behaves as a process.

    Attributes:
        dir: run directory; everything the run leaves behind is in it.
        seed: root of every random draw.
        resume: "never" starts in an empty directory, "auto" goes on from the last whole checkpoint when there is one,
            "must" goes on or fails.
        threads: compute threads of this process; 0 chooses (1 for models under 20 M parameters, else the core count).
        debug: rewards inline, deadlines and live console off, one task at a time, so that breakpoint() works anywhere.
        device: "auto" takes a GPU when there is one, else "cpu", "cuda", "cuda:1", "mps".
    """

    dir: str = "runs/${now:%Y-%m-%d_%H-%M-%S}"
    seed: int = 0
    resume: Literal["never", "auto", "must"] = "never"
    threads: int = 0
    debug: bool = False
    device: str = "auto"


@dataclass(frozen=True)
class TrainConfig:
    """The loop.

    Attributes:
        steps: training steps (batches of prompts for RL, optimizer steps for SFT).
        prompts_per_step: prompts sampled a step.
        minibatches: optimizer steps a batch of rollouts is split into, by whole groups; must divide prompts_per_step.
        epochs: passes over each batch of rollouts.
        save_every: steps between checkpoints; 0 saves at the end only.
        keep: newest checkpoints kept; 0 keeps all. The best one (by eval.metric) is kept besides.
        reward_concurrency: groups whose rewards are computed at one time.
        max_missing_reward_rate: share of missing scores of one step above which the run stops.
        smoke_test: before step 0, score the data's own references (expected near 1) and shuffled ones (near 0);
            "off", "warn" or "error".
        smoke_test_examples: rows used for it.
        patience: evaluations without a better eval.metric after which the run stops; 0 never stops early.
        temperature_logprobs: divide the learner's logits by the sampling temperature, so that ratios start at 1.
    """

    steps: int = 100
    prompts_per_step: int = 8
    minibatches: int = 1
    epochs: int = 1
    save_every: int = 50
    keep: int = 2
    reward_concurrency: int = 8
    max_missing_reward_rate: float = 0.1
    smoke_test: Literal["off", "warn", "error"] = "warn"
    smoke_test_examples: int = 32
    patience: int = 0
    temperature_logprobs: bool = True


@dataclass(frozen=True)
class DataConfig:
    """Where examples come from.

    Attributes:
        path: a .jsonl or .parquet file (or folder of them), `hub:owner/name[:config]`, or `gym:task` for a
            reasoning-gym task.
        split: split of a hub data set.
        prompt_key: column of the prompt: text or a list of chat messages.
        reference_key: column of the gold answer; verl's `reward_model.ground_truth` is understood without it.
        response_key: column of the response (SFT, KTO); chat rows of SFT use their `messages` column.
        chosen_key: column of the better answer of a pair: text or chat messages.
        rejected_key: column of the other answer.
        label_key: column that says whether a single answer is desirable (KTO): true or false, 1 or 0.
        margin_key: column of a number above 0, by how much the chosen answer is better (reward models); empty takes 1.
        system: system message put before every prompt; empty for none.
        template: Python format string around the prompt text, e.g. "{prompt}\\nThink step by step."; fields of the row
            may be named. The default is the prompt as it is.
        chat: wrap prompts in the tokenizer's chat template; off gives the raw text to the model.
        max_prompt_tokens: longer prompts are left out and counted; 0 for no limit.
        max_examples: use only the first so many rows; 0 for all.
        shuffle: seeded order, another one each epoch.
        options: open node: fields of a reasoning-gym task's configuration, or of `datasets.load_dataset`.
        seed: seed of procedural tasks; -1 takes run.seed.
        size: number of problems generated for a procedural task.
        chat_template_kwargs: open node: variables for the chat template, e.g. enable_thinking=false.
    """

    path: str = ""
    split: str = "train"
    prompt_key: str = "prompt"
    reference_key: str = "reference"
    response_key: str = "response"
    chosen_key: str = "chosen"
    rejected_key: str = "rejected"
    label_key: str = "label"
    margin_key: str = ""
    system: str = ""
    template: str = "{prompt}"
    chat: bool = True
    max_prompt_tokens: int = 1024
    max_examples: int = 0
    shuffle: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = -1
    size: int = 10_000
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RolloutConfig:
    """How completions are sampled for training.

    Attributes:
        n: completions a prompt (the group size).
        temperature: divides the logits; 0 is greedy.
        top_p: nucleus mass kept.
        top_k: most likely tokens kept; 0 keeps all.
        min_p: tokens kept have at least this share of the largest probability.
        max_tokens: sampled tokens at most.
        stop: strings that end a completion.
    """

    n: int = 8
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class EvalConfig:
    """Validation during training and for `coterie eval`.

    Attributes:
        every: training steps between evaluations; 0 for none. With any, one runs before step 0 and one at the end.
        data: keys of the data section that differ for evaluation (an empty path means no evaluation).
        n: completions a problem; avg@n and pass@k for powers of two up to n are reported.
        temperature: 0 is greedy (then n must be 1).
        top_p: nucleus mass kept.
        max_tokens: sampled tokens at most; 0 takes rollout.max_tokens.
        max_examples: problems evaluated; 0 for all.
        metric: which evaluation metric picks the best checkpoint.
        threshold: score at or above which a completion counts as right for pass@k.
    """

    every: int = 0
    data: dict[str, Any] = field(default_factory=dict)
    n: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 0
    max_examples: int = 256
    metric: str = "eval/accuracy"
    threshold: float = 0.5


@dataclass(frozen=True)
class OptimConfig:
    """AdamW and its schedule.

    Attributes:
        lr: peak learning rate.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        eps: added to the root of the second moment.
        weight_decay: decoupled, on matrices only.
        max_grad_norm: gradients are scaled down to this norm; 0 for no clipping.
        schedule: after the warm-up: "constant", "linear" or "cosine" down to lr * min_lr_ratio at the last step.
        warmup_steps: optimizer steps of linear warm-up.
        min_lr_ratio: final learning rate as a share of lr.
    """

    lr: float = 1e-6
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    min_lr_ratio: float = 0.0


@dataclass(frozen=True)
class SFTConfig:
    """Supervised fine-tuning (`coterie sft`).

    Attributes:
        batch_size: conversations of one optimizer step.
        max_tokens: longer conversations are left out and counted.
        epochs: passes over the data; they take the place of train.steps. 0 runs train.steps steps.
    """

    batch_size: int = 16
    max_tokens: int = 2048
    epochs: float = 0.0


@dataclass(frozen=True)
class DPOConfig:
    """Preference training (`coterie dpo`).

    Attributes:
        batch_size: pairs (or labelled answers) of one optimizer step.
        max_tokens: pairs with a longer sequence, prompt included, are left out and counted.
        epochs: passes over the data; they take the place of train.steps. 0 runs train.steps steps.
        reference: "once" computes the reference's logprobs of all data before the first step and keeps them in the run
            directory, "each_step" computes those of each batch and keeps the reference model in memory.
    """

    batch_size: int = 16
    max_tokens: int = 2048
    epochs: float = 0.0
    reference: Literal["once", "each_step"] = "once"


@dataclass(frozen=True)
class RMConfig:
    """Reward models (`coterie rm`).

    Attributes:
        batch_size: pairs of one optimizer step.
        max_tokens: pairs with a longer sequence, prompt included, are left out and counted.
        epochs: passes over the data; they take the place of train.steps. 0 runs train.steps steps.
    """

    batch_size: int = 16
    max_tokens: int = 2048
    epochs: float = 0.0


@dataclass(frozen=True)
class LocalLearnerConfig:
    """`learner=local`: one process, one device.

    Attributes:
        dtype: dtype of the forward pass; weights and optimizer stay fp32 ("auto": bfloat16 on GPU, float32 on CPU).
        micro_batch_tokens: tokens of one forward-backward pass; 0 chooses from the model size and device.
        head_chunk: action positions whose logits exist at one time; 0 chooses.
        gradient_checkpointing: recompute activations in the backward pass.
        share_prefix: compute a group's common prompt once in the training forward (full attention only, without
            gradient checkpointing).
        compile: torch.compile the model body.
        attention: transformers' attention implementation; "auto" takes sdpa.
        ref_model: folder or id of the reference policy; empty takes the starting weights.
    """

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    micro_batch_tokens: int = 0
    head_chunk: int = 0
    gradient_checkpointing: bool = False
    share_prefix: bool = False
    compile: bool = False
    attention: str = "auto"
    ref_model: str = ""


@dataclass(frozen=True)
class CriticConfig:
    """The critic, there when something needs `values` (advantage=gae): a model of its own with a value head.

    Its layout, dtype and micro-batches are set by the learner section, the rest of its optimizer by the optim section.

    Attributes:
        model: folder or id of its starting weights, which must have the policy's tokenizer; empty takes the policy's.
            The value head starts at 0 (a critic's own folder brings its head along).
        lr: peak learning rate.
        warmup_steps: training steps at the beginning in which only the critic learns.
        value_clip: how far a value may move from the one before the step with profit; 0 for no clip.
        huber: threshold of Huber's loss; 0 takes the squared error.
        bootstrap: a rollout that the length limit cut off goes on with the value of its last state. Off, it ends there,
            which is right where its reward is the whole of what it earns: values would grow without bound otherwise.
    """

    model: str = ""
    lr: float = 1e-5
    warmup_steps: int = 0
    value_clip: float = 0.5
    huber: float = 0.0
    bootstrap: bool = False


@dataclass(frozen=True)
class TransformersEngineConfig:
    """`engine=transformers`: sampling on the learner's own module.

    Attributes:
        max_rows: completions decoded together.
        kv_cache_gib: bound on the key-value cache in GiB; fewer rows run together when it would be passed. 0 takes a
            quarter of the device's memory.
        prefill_tokens: prompt tokens of one prefill pass.
    """

    max_rows: int = 64
    kv_cache_gib: float = 0.0
    prefill_tokens: int = 8192


@dataclass(frozen=True)
class LogConfig:
    """What is written where.

    Attributes:
        console: "live" (progress bar and table), "plain" (a line a step), "off"; "auto" is live on a terminal.
        sinks: besides metrics.jsonl: any of "tensorboard", "wandb", "trackio".
        rollouts_every: steps between rollout files; 0 for none.
        sample_every: steps between completions shown on the console.
        project: project name for wandb and trackio.
        name: run name there; empty takes the run directory's name.
    """

    console: Literal["auto", "live", "plain", "off"] = "auto"
    sinks: tuple[str, ...] = ()
    rollouts_every: int = 1
    sample_every: int = 10
    project: str = "coterie"
    name: str = ""
