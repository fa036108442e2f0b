"""Reference logprobs of a whole data set, computed once and kept in the run directory.

`reference/<key>.safetensors` holds them in the order of the data. The key is a hash of every token, of the reference's
weight files and of the forward pass's dtype, so a file is never read for other data or another reference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import try_to_load_from_cache
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from coterie.core.batch import Batch
from coterie.core.types import Group
from coterie.train.atomic import disk_errors, write_atomic

FOLDER = "reference"
CHUNK = 64
"""Groups scored at one time."""

Score = Callable[[Batch], Awaitable[Tensor]]


async def with_reference(
    groups: Sequence[Group],
    score: Score,
    *,
    folder: Path,
    key: str,
    stopping: Callable[[], bool] = lambda: False,
    note: Callable[[str], None] = lambda text: None,
) -> list[Group] | None:
    """The groups with the stream `ref_logprobs` on every rollout, from the file of `key` or from `score`.

    Args:
        groups: of all data.
        score: `ref_logprobs` of a batch, one number an action token.
        folder: the run directory.
        key: what `cache_key` made of groups and reference.
        stopping: asked between chunks; then nothing is written.
        note: told what happens.

    Returns:
        None when a stop was requested.
    """
    path = folder / FOLDER / f"{key}.safetensors"
    count = sum(r.num_actions for g in groups for r in g.rollouts)
    flat = _read(path, count)
    if flat is None:
        note(f"reference logprobs of {len(groups)} rows ({count} tokens)")
        parts = []
        for start in range(0, len(groups), CHUNK):
            if stopping():
                return None
            parts.append((await score(Batch.from_groups(groups[start : start + CHUNK]))).float().cpu())
        flat = torch.cat(parts)
        with disk_errors("the reference logprobs", path, lambda: "everything but them"):
            path.parent.mkdir(exist_ok=True)
            write_atomic(path, save({"ref_logprobs": flat}))
    return _attached(groups, flat.double().numpy())


def cache_key(groups: Sequence[Group], reference: str, dtype: torch.dtype) -> str:
    """Hash of tokens, action tokens and reference.

    Args:
        groups: of all data, in order.
        reference: folder or hub id of the reference model.
        dtype: of the forward pass.
    """
    digest = hashlib.sha256(f"{dtype}".encode())
    _add_model(digest, reference)
    for group in groups:
        for rollout in group.rollouts:
            for array in (rollout.tokens, rollout.action_index):
                digest.update(len(array).to_bytes(8, "little"))
                digest.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
    return digest.hexdigest()[:24]


def _add_model(digest: Any, name: str) -> None:
    """Content of a folder's configuration and weights; for a hub id, its name and the snapshot in the cache."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        digest.update(f"{name} {try_to_load_from_cache(name, 'config.json')}".encode())
        return
    for file in sorted([folder / "config.json", *folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]):
        with file.open("rb") as stream:
            digest.update(file.name.encode() + hashlib.file_digest(stream, "sha256").digest())


def _read(path: Path, count: int) -> Tensor | None:
    """The numbers in the file; None when it is absent, damaged or of another length."""
    try:
        flat = load(path.read_bytes())["ref_logprobs"]
    except (FileNotFoundError, SafetensorError, KeyError):
        return None
    return flat if flat.shape == (count,) else None


def _attached(groups: Sequence[Group], flat: np.ndarray) -> list[Group]:
    found, at = [], 0
    for group in groups:
        rollouts = []
        for rollout in group.rollouts:
            rollouts.append(rollout.with_streams(ref_logprobs=flat[at : at + rollout.num_actions]))
            at += rollout.num_actions
        found.append(group.with_rollouts(rollouts))
    return found
