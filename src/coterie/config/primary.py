"""A whole run, resolved: frozen, typed, with the algorithm's pieces in their slots.

One dataclass a verb. Its fields are the top level of the configuration: sections (`config/schema.py`), slots
(`config/slots.py`), open nodes and a few scalars. Annotations are real objects but for the slots' protocols, whose
module imports torch.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from coterie.config.schema import (
    CriticConfig,
    DataConfig,
    DPOConfig,
    EvalConfig,
    LocalLearnerConfig,
    LogConfig,
    OptimConfig,
    RMConfig,
    RolloutConfig,
    RunConfig,
    SFTConfig,
    TrainConfig,
    TransformersEngineConfig,
)
from coterie.config.slots import SLOTS, Slot

if TYPE_CHECKING:
    from coterie.core.protocols import Coef, GroupFn, LossFn, RewardFn

Verb = Literal["train", "sft", "dpo", "rm", "generate"]


@dataclass(frozen=True, kw_only=True)
class RLRun:
    """`coterie train`: sample, reward, estimate, update.

    Attributes:
        model: the policy to train: a folder in Hugging Face's layout, or a hub id.
        model_kwargs: open node: passed on to `from_pretrained`.
    """

    model: str = ""
    model_kwargs: Mapping[str, Any] = field(default_factory=dict)
    run: RunConfig
    train: TrainConfig
    data: DataConfig
    rollout: RolloutConfig
    eval: EvalConfig
    optim: OptimConfig
    log: LogConfig
    learner: LocalLearnerConfig
    critic: CriticConfig
    engine: TransformersEngineConfig
    reward: "RewardFn"
    filters: Mapping[str, "GroupFn"]
    shaping: Mapping[str, "GroupFn"]
    advantage: "GroupFn"
    transforms: Mapping[str, "GroupFn"]
    loss: "LossFn"
    entropy_control: "Coef[Any] | None"
    kl_control: "Coef[Any] | None"


@dataclass(frozen=True, kw_only=True)
class SFTRun:
    """`coterie sft`: supervised fine-tuning on conversations or prompt/response pairs.

    Attributes:
        model: the model to train: a folder in Hugging Face's layout, or a hub id.
        model_kwargs: open node: passed on to `from_pretrained`.
    """

    model: str = ""
    model_kwargs: Mapping[str, Any] = field(default_factory=dict)
    run: RunConfig
    train: TrainConfig
    sft: SFTConfig
    data: DataConfig
    eval: EvalConfig
    optim: OptimConfig
    log: LogConfig
    learner: LocalLearnerConfig
    loss: "LossFn"


@dataclass(frozen=True, kw_only=True)
class DPORun:
    """`coterie dpo`: preference training on pairs of answers, or on answers with a label.

    Attributes:
        model: the model to train: a folder in Hugging Face's layout, or a hub id.
        model_kwargs: open node: passed on to `from_pretrained`.
    """

    model: str = ""
    model_kwargs: Mapping[str, Any] = field(default_factory=dict)
    run: RunConfig
    train: TrainConfig
    dpo: DPOConfig
    data: DataConfig
    eval: EvalConfig
    optim: OptimConfig
    log: LogConfig
    learner: LocalLearnerConfig
    loss: "LossFn"


@dataclass(frozen=True, kw_only=True)
class RMRun:
    """`coterie rm`: a reward model from pairs of answers.

    Attributes:
        model: the language model whose body is trained, or a reward model to go on with: a folder in Hugging Face's
            layout, or a hub id.
        model_kwargs: open node: passed on to `from_pretrained`.
    """

    model: str = ""
    model_kwargs: Mapping[str, Any] = field(default_factory=dict)
    run: RunConfig
    train: TrainConfig
    rm: RMConfig
    data: DataConfig
    eval: EvalConfig
    optim: OptimConfig
    log: LogConfig
    learner: LocalLearnerConfig
    loss: "LossFn"


@dataclass(frozen=True, kw_only=True)
class GenerateRun:
    """`coterie generate`: prompts in, completions with logprobs out.

    Attributes:
        model: the model to sample from: a folder in Hugging Face's layout, or a hub id.
        model_kwargs: open node: passed on to `from_pretrained`.
        out: file to write, .jsonl or .parquet.
        format: "jsonl", "parquet", or "auto" to tell by the name of `out`.
        force: replace `out` when it exists.
    """

    model: str = ""
    model_kwargs: Mapping[str, Any] = field(default_factory=dict)
    out: str = ""
    format: Literal["auto", "jsonl", "parquet"] = "auto"
    force: bool = False
    run: RunConfig
    data: DataConfig
    rollout: RolloutConfig
    engine: TransformersEngineConfig


@dataclass(frozen=True)
class Primary:
    """How the configuration of one verb is made.

    Attributes:
        cls: the run's dataclass.
        slots: slot name to slot.
        open_nodes: dotted keys below which any key is taken.
    """

    cls: type
    slots: Mapping[str, Slot]
    open_nodes: tuple[str, ...]

    @property
    def sections(self) -> dict[str, type]:
        """Section name to its dataclass."""
        return {f.name: f.type for f in self._fields() if isinstance(f.type, type) and dataclasses.is_dataclass(f.type)}

    @property
    def scalars(self) -> dict[str, tuple[Any, Any]]:
        """Other keys of the top level: type and default."""
        out = {}
        for f in self._fields():
            if f.name not in self.sections:
                out[f.name] = (f.type, f.default if f.default_factory is MISSING else f.default_factory())
        return out

    @property
    def order(self) -> tuple[str, ...]:
        """Every key of the top level, as it is written."""
        return tuple(f.name for f in dataclasses.fields(self.cls))

    def _fields(self) -> list["dataclasses.Field[Any]"]:
        return [f for f in dataclasses.fields(self.cls) if f.name not in self.slots]


_OPEN = ("model_kwargs", "data.options", "data.chat_template_kwargs")

PRIMARIES: Mapping[Verb, Primary] = MappingProxyType(
    {
        "train": Primary(RLRun, SLOTS, (*_OPEN, "eval.data")),
        "sft": Primary(SFTRun, {"learner": SLOTS["learner"], "loss": SLOTS["loss"]}, (*_OPEN, "eval.data")),
        "dpo": Primary(DPORun, {"learner": SLOTS["learner"], "loss": SLOTS["loss"]}, (*_OPEN, "eval.data")),
        "rm": Primary(RMRun, {"learner": SLOTS["learner"], "loss": SLOTS["loss"]}, (*_OPEN, "eval.data")),
        "generate": Primary(GenerateRun, {"engine": SLOTS["engine"]}, _OPEN),
    }
)
"""What each verb of the command line is configured by."""
