"""Load an object from a user's Python file: `load_object("path/to/file.py:Name")`.

The module gets a name made of the file's content, so that driver and workers agree on it and an edited file is
another module.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from coterie.errors import ConfigError

_LOAD_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    SystemExit,
    TypeError,
    ValueError,
)


def load_object(spec: str) -> Any:
    """The object `Name` of the file in `path/to/file.py:Name`.

    Raises:
        ConfigError: when the text has another form, the file is missing or fails while it is loaded (with the line), or
            has no such name (with the nearest ones).
    """
    path, colon, name = spec.rpartition(":")
    if not colon or not name.isidentifier() or not path:
        raise ConfigError(f"{spec!r} is not of the form path/to/file.py:Name")
    module = load_module(Path(path).expanduser())
    if not hasattr(module, name):
        own = [n for n, v in vars(module).items() if getattr(v, "__module__", None) == module.__name__]
        near = difflib.get_close_matches(name, own, n=3, cutoff=0.5) or sorted(own)[:8]
        hint = f"nearest: {', '.join(near)}" if near else "it defines no function or class"
        raise ConfigError(f"{path} has no {name!r}; {hint}")
    return getattr(module, name)


def load_module(path: Path) -> ModuleType:
    """The module in a file, loaded once for each content; files next to it can be imported while it loads.

    Raises:
        ConfigError: when the file is missing or fails while it is loaded.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file (current folder: {Path.cwd()})")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    name = f"coterie_file_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file (its name must end in .py)")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    sys.modules[name] = module
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except _LOAD_ERRORS as error:
        del sys.modules[name]
        line = _line(error, path)
        raise ConfigError(f"{path}{line} fails while it is loaded: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(folder)
    return module


def _line(error: BaseException, path: Path) -> str:
    """`:12` for the user's own line in which it went wrong."""
    if isinstance(error, SyntaxError) and error.filename == str(path) and error.lineno:
        return f":{error.lineno}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return f":{lines[-1]}" if lines else ""
