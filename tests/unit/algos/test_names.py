"""The public names of coterie.algos: what somebody uses who has never heard of the rest."""

import ast
import importlib
from pathlib import Path

import pytest

import coterie.algos
from coterie.algos.names import HOME

FOLDER = Path(coterie.algos.__file__).parent
HELPERS = {"catalogue", "checks", "names", "__init__", "padded"}


@pytest.mark.parametrize("name", sorted(HOME))
def test_every_name_is_there_and_documented(name):
    found = getattr(coterie.algos, name)
    assert found is getattr(importlib.import_module(f"coterie.algos.{HOME[name]}"), name)
    assert found.__doc__


def test_no_name_is_also_a_module():
    """`from coterie.algos import x` would give the module once somebody imported it."""
    assert not set(HOME) & {p.stem for p in FOLDER.glob("*.py")}


def test_every_dataclass_with_a_source_is_public():
    for path in FOLDER.glob("*.py"):
        if path.stem in HELPERS:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and any(
                isinstance(b, ast.AnnAssign) and getattr(b.target, "id", "") == "conventions" for b in node.body
            ):
                assert node.name in HOME, f"{path.stem}.{node.name} is missing in names.py"


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="PPOCLip"):
        coterie.algos.PPOCLip  # noqa: B018
    assert dir(coterie.algos) == coterie.algos.__all__ == sorted(HOME)
