import pytest

PIECES = """
from dataclasses import dataclass


async def reward(group, context, *, scale: float = 1.0):
    return group


@dataclass(frozen=True)
class Advantage:
    strength: float = 1.0
    names: tuple[str, ...] = ()

    def __post_init__(self):
        if self.strength <= 0:
            raise ValueError(f"Advantage.strength={self.strength}: must be > 0")

    def __call__(self, groups):
        return groups


@dataclass(frozen=True)
class Loss:
    clip: float = 0.2

    def __call__(self, outputs, batch):
        return None


class Plain:
    def __init__(self, size: int, *, mode="a"):
        self.size, self.mode = size, mode

    def __call__(self, groups):
        return groups[: self.size]


def keep(groups, *, count: int = 3, **others):
    return groups[:count]


class Needy:
    needs = frozenset({"score:safety", "stream:values", "span:cot"})

    def __call__(self, groups):
        return groups


class Controller:
    def init(self):
        return {}

    def update(self, state, metrics):
        return state

    def value(self, state):
        return 0.0


async def safety(group, context):
    return group


safety.writes = frozenset({"safety", "span:cot"})


class NotCallable:
    pass


number = 3
"""


@pytest.fixture
def pieces(tmp_path):
    """A file of a user's own pieces."""
    path = tmp_path / "pieces.py"
    path.write_text(PIECES)
    return path


@pytest.fixture
def base(pieces):
    """Overrides that make `coterie train` complete."""
    return ["model=m", "data.path=rows.jsonl", f"reward={pieces}:reward", f"run.dir={pieces.parent}/run"]


@pytest.fixture
def preset(tmp_path):
    """Write a preset file; returns its override."""

    def write(text, name="preset.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return f"experiment={path}"

    return write
