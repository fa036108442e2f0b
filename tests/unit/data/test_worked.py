import pytest

from coterie.core.types import Example
from coterie.data.worked import chain_sum, worked_solution
from coterie.errors import ConfigError


@pytest.mark.parametrize(
    ("expression", "solution"),
    [
        ("8 - 7 + 3", "8 - 7 = 1\n1 + 3 = 4\n#### 4"),
        ("-8 - -7 + 30", "-8 - -7 = -1\n-1 + 30 = 29\n#### 29"),
        ("5", "#### 5"),
    ],
)
def test_chain_sum(expression, solution):
    assert chain_sum(expression) == solution


def test_other_tasks_are_refused():
    with pytest.raises(ConfigError, match="gym:None"):
        worked_solution(Example("e", ({"role": "user", "content": "x"},)))
