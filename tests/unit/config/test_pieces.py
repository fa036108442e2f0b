import pickle
import shutil
import subprocess
import sys

import pytest

from coterie.config.pieces import CHOICE, FunctionPiece, absolute_choice, find_piece, is_file_choice
from coterie.config.slots import SLOTS
from coterie.errors import ConfigError

ADVANTAGE, FILTERS, REWARD, LOSS = (SLOTS[n] for n in ("advantage", "filters", "reward", "loss"))


def test_a_short_name_and_a_convention():
    assert find_piece(ADVANTAGE, "grpo").node()["eps"] == 1e-6
    piece = find_piece(ADVANTAGE, "grpo@trl")
    assert piece.node() | {"eps": 0} == find_piece(ADVANTAGE, "grpo").node() | {"eps": 0, CHOICE: "grpo@trl"}
    assert piece.node()["eps"] == 1e-4


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("dr_gpro", "did you mean dr_grpo"),
        ("grpo@tlr", "did you mean trl"),
        ("grpo@", "unknown convention"),
        ("nowhere/pieces.py:X", "no such file"),
    ],
)
def test_unknown_choices(choice, message):
    with pytest.raises(ConfigError, match=message):
        find_piece(ADVANTAGE, choice)


def test_a_dataclass_from_a_file(pieces):
    piece = find_piece(ADVANTAGE, f"{pieces}:Advantage")
    assert piece.node() == {CHOICE: f"{pieces}:Advantage", "strength": 1.0, "names": []}
    built = piece.build({"strength": 2.0})
    assert (built.strength, built.needs) == (2.0, frozenset({"score:reward"}))
    with pytest.raises(ValueError, match="must be > 0"):
        piece.build({"strength": 0.0})


def test_a_plain_class_from_a_file(pieces):
    piece = find_piece(FILTERS, f"{pieces}:Plain")
    assert piece.node() == {CHOICE: f"{pieces}:Plain", "size": "???", "mode": "a"}
    built = piece.build({"size": 2})
    assert (built.size, built.mode, built.needs, built([1, 2, 3])) == (2, "a", frozenset(), [1, 2])


def test_a_function_from_a_file(pieces):
    piece = find_piece(FILTERS, f"{pieces}:keep")
    assert ([s.name for s in piece.settings], piece.open, piece.name) == (["count"], True, "keep")
    built = piece.build({"count": 1})
    assert (built([1, 2]), built.needs) == ([1], frozenset())
    assert built == FunctionPiece(built.function, {"count": 1})
    with pytest.raises(AttributeError):
        _ = built.nothing


def test_the_settings_of_a_reward_come_after_its_arguments(pieces):
    assert [s.name for s in find_piece(REWARD, f"{pieces}:reward").settings] == ["scale"]


@pytest.mark.parametrize(
    ("slot", "name", "message"),
    [
        ("advantage", "Advantge", "did you mean Advantage"),
        ("advantage", "number", "is a int"),
        ("advantage", "NotCallable", "no __call__"),
        ("loss", "keep", r"called with \(outputs, batch\), but takes 1"),
        ("entropy_control", "keep", "is a function"),
        ("entropy_control", "Advantage", "lacks init, update, value"),
        ("learner", "Advantage", "takes one of local"),
    ],
)
def test_pieces_that_break_the_contract(pieces, slot, name, message):
    with pytest.raises(ConfigError, match=message):
        find_piece(SLOTS[slot], f"{pieces}:{name}")


def test_a_controller_from_a_file(pieces):
    assert find_piece(SLOTS["kl_control"], f"{pieces}:Controller").build({}).value({}) == 0.0


def test_a_file_that_fails_names_its_line(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("a = 1\nb = a / 0\n")
    with pytest.raises(ConfigError, match=r"broken.py:2 fails .* ZeroDivisionError"):
        find_piece(ADVANTAGE, f"{path}:X")


VERL = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, *, bonus=0.5):
    return bonus
def short(solution_str, **others):
    return 1.0
def wrong(answer):
    return 1.0
"""


def test_a_reward_in_verl_s_form(tmp_path):
    path = tmp_path / "verl_reward.py"
    path.write_text(VERL)
    piece = find_piece(REWARD, f"{path}:compute_score")
    assert piece.node() == {CHOICE: f"{path}:compute_score", "bonus": 0.5}
    built = piece.build({"bonus": 1.0})
    assert (type(built).__name__, built.path, built.name, built.kwargs) == (
        "FunctionReward",
        str(path),
        "compute_score",
        {"bonus": 1.0},
    )
    assert built == find_piece(REWARD, f"{path}:compute_score").build({"bonus": 1.0})
    assert find_piece(REWARD, f"{path}:short").open
    with pytest.raises(ConfigError, match="requires answer"):
        find_piece(REWARD, f"{path}:wrong").build({})


def test_content_decides_the_module_not_the_place(pieces, tmp_path):
    copy = tmp_path / "elsewhere.py"
    shutil.copy(pieces, copy)
    first, second = find_piece(ADVANTAGE, f"{pieces}:Advantage"), find_piece(ADVANTAGE, f"{copy}:Advantage")
    assert first.target is second.target
    assert first.build({}) == second.build({})
    copy.write_text(copy.read_text() + "\n# edited\n")
    edited = find_piece(ADVANTAGE, f"{copy}:Advantage")
    assert edited.target is not first.target
    assert edited.digest != first.digest


def test_another_process_loads_equal_pieces(pieces, tmp_path):
    built = find_piece(ADVANTAGE, f"{pieces}:Advantage").build({"strength": 3.0})
    stored = tmp_path / "piece.pickle"
    stored.write_bytes(pickle.dumps(built))
    code = (
        "import pathlib, pickle, sys\n"
        "from coterie.config.pieces import find_piece\nfrom coterie.config.slots import SLOTS\n"
        "own = find_piece(SLOTS['advantage'], f'{sys.argv[1]}:Advantage').build({'strength': 3.0})\n"
        "assert pickle.loads(pathlib.Path(sys.argv[2]).read_bytes()) == own\n"
    )
    subprocess.run([sys.executable, "-c", code, pieces, stored], check=True)


def test_what_counts_as_a_file(tmp_path):
    assert is_file_choice("a/b.py:Name")
    assert not any(map(is_file_choice, ["grpo", "grpo@trl", "a/b.py", "a/b.py:", "a/b.txt:Name", "a.py:1x"]))
    assert absolute_choice("b.py:Name", tmp_path) == f"{tmp_path}/b.py:Name"
    assert absolute_choice("grpo", tmp_path) == "grpo"
