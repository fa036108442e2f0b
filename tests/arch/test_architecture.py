"""The house rules that a script can check (DESIGN §§1, 2, 6)."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "coterie"
SOURCES = sorted(PACKAGE.rglob("*.py"))
NAMES = [str(p.relative_to(PACKAGE)) for p in SOURCES]
PURE = ("core", "algos", "rewards", "data")
INFRASTRUCTURE = ("ray", "vllm", "torch.distributed", "coterie.engines", "coterie.runtime", "coterie.learners")
EXCEPTION_BORDERS = {"rewards/border.py", "rewards/worker_main.py", "sandbox/server.py"}
FORBIDDEN_WORDS = ("manager", "utils", "helper", "experience", "proto")


def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(name, parents):
    return any(name == parent or name.startswith(parent + ".") for parent in parents)


@pytest.mark.parametrize("path", SOURCES, ids=NAMES)
def test_files_and_functions_are_small(path):
    assert path.read_text(encoding="utf-8").count("\n") <= 400, "a file over 400 lines has two jobs"
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = node.end_lineno - node.lineno + 1
            assert size <= 80, f"{node.name} has {size} lines"


@pytest.mark.parametrize("path", [p for p in SOURCES if p.relative_to(PACKAGE).parts[0] in PURE], ids=str)
def test_mathematics_imports_no_infrastructure(path):
    bad = [name for name in imported(parse(path)) if within(name, INFRASTRUCTURE)]
    assert not bad


def test_only_the_ray_runtime_imports_ray():
    users = [n for n, p in zip(NAMES, SOURCES, strict=True) if any(within(m, ("ray",)) for m in imported(parse(p)))]
    assert set(users) <= {"runtime/ray.py"}


@pytest.mark.parametrize("path", SOURCES, ids=NAMES)
def test_broad_excepts_stand_at_the_borders_only(path):
    if str(path.relative_to(PACKAGE)) in EXCEPTION_BORDERS:
        return
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.ExceptHandler):
            names = {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)} if node.type else {"bare"}
            assert not names & {"bare", "Exception", "BaseException"}, f"line {node.lineno}"


@pytest.mark.parametrize("path", SOURCES, ids=NAMES)
def test_no_module_state_and_nothing_unfinished(path):
    for node in ast.walk(parse(path)):
        assert not isinstance(node, ast.Global), f"line {node.lineno}: module state"
        if isinstance(node, ast.Raise):
            assert "NotImplementedError" not in ast.dump(node), f"line {node.lineno}: not implemented"


@pytest.mark.parametrize("path", SOURCES, ids=NAMES)
def test_names_are_the_field_s(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    assert not [p for p in parts if any(word == w for w in p.split("_") for word in FORBIDDEN_WORDS)]


def test_every_public_function_and_class_has_a_docstring():
    missing = []
    for name, path in zip(NAMES, SOURCES, strict=True):
        tree = parse(path)
        if not ast.get_docstring(tree) and path.name != "__init__.py":
            missing.append(name)
        for node in tree.body:
            named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if named and not node.name.startswith("_") and not ast.get_docstring(node):
                missing.append(f"{name}:{node.name}")
    assert not missing


def test_the_package_imports_without_heavy_libraries():
    code = (
        "import sys, coterie; print([m for m in ('torch', 'transformers', 'ray', 'vllm', 'hydra') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_algos_need_torch_numpy_and_jaxtyping_alone():
    code = (
        "import sys; before = set(sys.modules); import torch, numpy, jaxtyping; known = set(sys.modules)\n"
        "import coterie.algos as a; [getattr(a, n) for n in a.__all__]\n"
        "new = {m.split('.')[0] for m in set(sys.modules) - known} - set(sys.stdlib_module_names)\n"
        "print(sorted(m for m in new if not m.startswith('_')))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(ast.literal_eval(result.stdout.strip())) <= {
        "coterie",
        "torch",
        "numpy",
        "jaxtyping",
        "typing_extensions",
    }


def test_unit_tests_mirror_the_package():
    """Every unit test file is named after a source file or folder of the same part."""
    strays = []
    for test in (ROOT / "tests" / "unit").rglob("test_*.py"):
        part = test.relative_to(ROOT / "tests" / "unit").parent
        stem = test.stem.removeprefix("test_")
        folder = PACKAGE / part
        known = {p.stem for p in folder.glob("*.py")} | {p.name for p in folder.iterdir() if p.is_dir()}
        if not any(stem == k or stem.startswith(k + "_") for k in known):
            strays.append(str(test.relative_to(ROOT)))
    assert not strays


def test_public_names_are_these():
    import coterie

    assert sorted(coterie.__all__) == coterie.__all__
    assert all(getattr(coterie, name) is not None for name in coterie.__all__)
