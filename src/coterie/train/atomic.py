"""Writes that are whole or absent: temporary file beside, fsync, rename; and disk errors in plain words."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from safetensors import SafetensorError

from coterie.errors import RunDirectoryError

_LATER = "then go on with run.resume=auto"
_REASONS = MappingProxyType(
    {
        errno.ENOSPC: ("no space is left on the disk", f"Free some space, {_LATER}"),
        errno.EDQUOT: ("the disk quota is used up", f"Free some space or ask for more, {_LATER}"),
        errno.EFBIG: ("the file would pass the allowed file size", f"Raise the limit (ulimit -f), {_LATER}"),
        errno.EIO: ("the disk reports an input/output error", f"Check the disk, {_LATER}"),
        errno.EROFS: ("the file system is read-only", "Choose a run.dir that can be written"),
        errno.EACCES: ("permission is denied", "Choose a run.dir that can be written"),
        errno.EPERM: ("permission is denied", "Choose a run.dir that can be written"),
        errno.ENOTDIR: ("a part of the path is a file", "Choose another run.dir"),
        errno.EEXIST: ("a part of the path is a file", "Choose another run.dir"),
    }
)

_TEXTS = MappingProxyType(
    {
        "No space left on device": errno.ENOSPC,
        "Disk quota exceeded": errno.EDQUOT,
        "File too large": errno.EFBIG,
    }
)
_TORCH_TEXTS = ("inline_container.cc", "iostream error", "PytorchStreamWriter failed")
_NEARLY_FULL = 1 << 20


def write_all(fd: int, data: bytes) -> None:
    """Write every byte, however many calls it takes.

    Raises:
        OSError: as `os.write`; what was written before stays.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by a file with this content; after a kill there is the old or the new content, never a part.

    Raises:
        OSError: when it can't be written; the old content stays and no temporary file is left.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """`write_atomic` of indented JSON with sorted keys; NaN and infinity are refused (ValueError)."""
    write_atomic(
        path, (json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n").encode()
    )


def sync_file(path: Path) -> None:
    """Force the file's content to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(path: Path) -> None:
    """Force a folder's list of names to the disk, so that a rename in it survives a power cut."""
    sync_file(path)


@contextmanager
def disk_errors(what: str, path: Path, kept: Callable[[], str]) -> Iterator[None]:
    """Turn a failed write inside into a `RunDirectoryError` that says what failed, why, and what is safe.

    Libraries that write files (torch, safetensors) hide the error number in their own exceptions, so those are read by
    their text, and a full disk explains one that says no more. Half-written files must still be there then: clean up
    outside of this block.

    Args:
        what: what was being written, e.g. "checkpoint step_000010".
        path: where.
        kept: called on failure; says what is there, whole.
    """
    try:
        yield
    except RunDirectoryError:
        raise
    except (OSError, RuntimeError, SafetensorError) as error:
        explained = _explain(error, path)
        if explained is None:
            raise
        reason, remedy = explained
        raise RunDirectoryError(
            f"can't write {what} at {path}: {reason}. Kept: {kept()}. Nothing is half-written. {remedy}."
        ) from error


def _explain(error: Exception, path: Path) -> tuple[str, str] | None:
    """Reason and remedy; None when the error has nothing to do with the disk."""
    if isinstance(error, OSError) and error.errno is not None:
        return _REASONS.get(error.errno, (os.strerror(error.errno), f"Mend that, {_LATER}"))
    message = str(error)
    for text, number in _TEXTS.items():
        if text in message:
            return _REASONS[number]
    folder = next((p for p in (path, *path.parents) if p.is_dir()), None)
    if folder is not None and shutil.disk_usage(folder).free < _NEARLY_FULL:
        return _REASONS[errno.ENOSPC]
    if any(text in message for text in _TORCH_TEXTS):
        return "the disk is full, or the file would pass the allowed size", f"Free some space, {_LATER}"
    return None
