import pickle
import sys

import pytest

from coterie.core.load_file import load_module, load_object
from coterie.errors import ConfigError


@pytest.fixture
def write(tmp_path):
    def write(text, name="piece.py"):
        file = tmp_path / name
        file.write_text(text)
        return str(file)

    return write


def test_an_object_of_a_file(write):
    path = write("class Reward:\n    pass\nlimit = 3\n")
    assert load_object(f"{path}:limit") == 3
    assert load_object(f"{path}:Reward") is load_object(f"{path}:Reward")


def test_content_names_the_module(write):
    first = load_module_of(write, "x = 1")
    again = load_module_of(write, "x = 1", name="copy.py")
    other = load_module_of(write, "x = 2")
    assert first.__name__ == again.__name__ != other.__name__
    assert other.x == 2


def load_module_of(write, text, **options):
    from pathlib import Path

    return load_module(Path(write(text, **options)))


def test_objects_can_be_pickled_in_this_process(write):
    made = load_object(write("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int = 1\n") + ":P")()
    assert pickle.loads(pickle.dumps(made)) == made


def test_files_next_to_it_can_be_imported(write):
    write("value = 41\n", name="neighbour_of_piece.py")
    assert load_object(write("import neighbour_of_piece\nx = neighbour_of_piece.value + 1\n") + ":x") == 42
    assert not any("neighbour" in entry for entry in sys.path)


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("def compute_score(): pass\n", "compute_scores", "no 'compute_scores'; nearest: compute_score"),
        ("x = 1\n", "f", "defines no function"),
        ("import no_such_package_here\n", "f", r"piece\.py:1 fails while it is loaded: ModuleNotFoundError"),
        ("x = 1\ny = 1 / 0\n", "f", r"piece\.py:2 fails while it is loaded: ZeroDivisionError"),
        ("x = 1\ndef f(:\n", "f", r"piece\.py:2 fails while it is loaded: SyntaxError"),
        ("raise SystemExit(3)\n", "f", "SystemExit: 3"),
    ],
)
def test_mistakes(write, text, name, message):
    with pytest.raises(ConfigError, match=message):
        load_object(f"{write(text)}:{name}")


def test_a_failed_module_is_not_kept(write):
    path = write("raise ValueError('no')\n")
    for _ in range(2):
        with pytest.raises(ConfigError, match="ValueError: no"):
            load_object(f"{path}:f")


@pytest.mark.parametrize("spec", ["piece.py", "piece.py:", ":f", "piece.py:a b"])
def test_form(spec):
    with pytest.raises(ConfigError, match=r"path/to/file\.py:Name"):
        load_object(spec)


def test_missing_file():
    with pytest.raises(ConfigError, match="no such file"):
        load_object("nowhere/piece.py:f")
