"""Models and tokenizers by folder or hub id, with errors that say which file is missing and what to do.

`coterie.learners.model_import` turns a GGUF, a wheel, a hub id or a folder into what these functions read.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub import constants as hub_constants
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from coterie.errors import ModelError

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt")


def load_model(
    name: str,
    *,
    kwargs: Mapping[str, Any] | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | str = torch.float32,
    auto: Any = AutoModelForCausalLM,
    fresh: Collection[str] = (),
) -> PreTrainedModel:
    """The causal language model `name`, in evaluation mode.

    Args:
        name: a folder in Hugging Face's layout, or a hub id.
        kwargs: passed on to `from_pretrained` (`attn_implementation`, `trust_remote_code`, …).
        device: where its weights are put.
        dtype: of the weights; master weights are fp32, "auto" keeps what the folder holds.
        auto: the auto class that makes it; `AutoModel` gives the body without an output layer.
        fresh: tensors that the weight files may lack; they are drawn from torch's generator.

    Raises:
        ModelError: for a missing or broken folder, weights that don't fit the configuration, a hub id that can't be
            had, or a keyword the model doesn't know.
    """
    options = dict(kwargs or {})
    for key in ("dtype", "torch_dtype", "device_map", "output_loading_info", "ignore_mismatched_sizes"):
        if key in options:
            raise ModelError(f"model_kwargs.{key} can't be set: the learner's dtype and run.device decide it")
    with _model_errors(name, options), quiet_progress():
        located = _located(name, options)
        loaded: Any = auto.from_pretrained(
            located, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
    model, info = cast(tuple[PreTrainedModel, dict[str, Any]], loaded)
    _check_complete(name, sorted(set(info["missing_keys"]) - set(fresh)), sorted(info["mismatched_keys"]))
    return cast(PreTrainedModel, cast(torch.nn.Module, model).to(device))


def load_tokenizer(name: str, *, kwargs: Mapping[str, Any] | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of `name`.

    Raises:
        ModelError: for a folder without tokenizer files, a broken file, or a hub id that can't be had.
    """
    options = {key: (kwargs or {})[key] for key in ("trust_remote_code", "revision") if key in (kwargs or {})}
    with _model_errors(name, options):
        located = _located(name, options, tokenizer=True)
        tokenizer = AutoTokenizer.from_pretrained(located, **options)
    if tokenizer.eos_token_id is None:
        raise ModelError(
            f"tokenizer of {name!r} has no end-of-sequence token, so no completion could end; "
            "set eos_token in its tokenizer_config.json"
        )
    return tokenizer


def check_folder(folder: Path, *, tokenizer: bool = False) -> None:
    """Check that a folder holds what a model (or a tokenizer) needs, before a library meets it.

    Raises:
        ModelError: which names the missing or broken file.
    """
    held = sorted(entry.name for entry in folder.iterdir())
    listing = f"it holds: {', '.join(held[:12])}{', …' if len(held) > 12 else ''}" if held else "it is empty"
    if "adapter_config.json" in held and "config.json" not in held:
        raise ModelError(f"{folder} is a LoRA adapter without its base model; merge it into the base model first")
    if tokenizer:
        if not any(file in held for file in TOKENIZER_FILES):
            raise ModelError(f"{folder} has no tokenizer files ({' or '.join(TOKENIZER_FILES[:2])}); {listing}")
        _parsed(folder / "tokenizer_config.json", required=False)
        return
    if "config.json" not in held:
        hint = ""
        if any((folder / sub / "config.json").is_file() for sub in held):
            hint = f"; did you mean {next(folder / s for s in held if (folder / s / 'config.json').is_file())}?"
        elif gguf := [file for file in held if file.endswith(".gguf")]:
            hint = f"; import it first: coterie model import {folder / gguf[0]} --out FOLDER"
        raise ModelError(f"{folder} is no model folder: config.json is missing; {listing}{hint}")
    config = _parsed(folder / "config.json")
    if "model_type" not in config:
        raise ModelError(f"{folder / 'config.json'} has no 'model_type', so its architecture is unknown")
    weights = [file for file in WEIGHT_FILES if file in held]
    if not weights:
        raise ModelError(f"{folder} has no weights: {' or '.join(WEIGHT_FILES[:2])} is missing; {listing}")
    if weights[0].endswith(".index.json"):
        shards = set(_parsed(folder / weights[0]).get("weight_map", {}).values())
        if absent := sorted(shards - set(held)):
            raise ModelError(f"{folder}: {len(absent)} of {len(shards)} weight files are missing, first {absent[0]}")


@contextlib.contextmanager
def quiet_progress() -> Iterator[None]:
    """Without the library's progress bars and load reports: the run has its own, and what matters becomes an error."""
    was_on, verbosity = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if was_on:
            transformers_logging.enable_progress_bar()


def _check_complete(name: str, missing: Sequence[str], mismatched: Sequence[tuple[str, Any, Any]]) -> None:
    """Refuse weights that the library would have replaced by random ones.

    Args:
        name: of the model.
        missing: tensors that no weight file has.
        mismatched: (tensor, shape in the file, shape of the architecture).
    """
    if missing:
        raise ModelError(
            f"model {name!r}: {len(missing)} tensors of the architecture are not in the weight files (first: "
            f"{missing[0]}); they would be random. The weights belong to another config.json, or are incomplete"
        )
    if mismatched:
        tensor, held, wanted = mismatched[0]
        raise ModelError(
            f"model {name!r}: {len(mismatched)} tensors have another shape than config.json says (first: {tensor} is "
            f"{list(held)}, not {list(wanted)}); the weights belong to another config.json"
        )


def _located(name: str, options: dict[str, Any], *, tokenizer: bool = False) -> str:
    """A checked folder, or a hub id with `local_files_only` set in `options` when the hub can't be reached."""
    folder = Path(name).expanduser()
    if not name:
        raise ModelError("no model given; set model=FOLDER or model=owner/name")
    if folder.is_dir():
        check_folder(folder, tokenizer=tokenizer)
        return str(folder)
    if folder.suffix in (".gguf", ".whl"):
        raise ModelError(f"{name!r} has to be imported first: coterie model import {name} --out FOLDER")
    if folder.exists():
        raise ModelError(f"model {name!r} is a file; a folder with config.json and weights is needed")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(f"model folder {name!r} does not exist (looked at {folder.absolute()})")
    if not _hub_reachable():
        options["local_files_only"] = True
    return name


def _hub_reachable() -> bool:
    """One short request: the hub library itself would retry for a minute. Any answer counts, also a refusal."""
    if hub_constants.HF_HUB_OFFLINE:
        return False
    try:
        urllib.request.urlopen(urllib.request.Request(hub_constants.ENDPOINT, method="HEAD"), timeout=5.0).close()
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError as error:
        return isinstance(error.reason, ssl.SSLError)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _model_errors(name: str, options: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except SafetensorError as error:
        raise ModelError(
            f"model {name!r}: a weight file is damaged or cut off ({error}); fetch or write it again"
        ) from error
    except OSError as error:
        if options.get("local_files_only"):
            raise ModelError(
                f"model {name!r} is neither a folder here nor in the hub cache, and the hub can't be reached "
                "(offline, or HF_HUB_OFFLINE is set). Give a local folder, fetch it on a machine with a connection, or "
                "make one of a GGUF: coterie model import FILE.gguf --out FOLDER"
            ) from error
        raise ModelError(f"model {name!r} can't be loaded: {_first_line(error)}") from error
    except (ValueError, TypeError, KeyError, RuntimeError, ImportError) as error:
        raise ModelError(f"model {name!r} can't be loaded: {type(error).__name__}: {_first_line(error)}") from error


def _parsed(path: Path, *, required: bool = True) -> dict[str, Any]:
    if not required and not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ModelError(f"{path} can't be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds {type(value).__name__}, not a JSON object")
    return value


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) if lines else type(error).__name__
