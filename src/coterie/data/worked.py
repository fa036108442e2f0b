"""Short worked solutions of procedural tasks: what a warm start imitates before RL."""

from __future__ import annotations

from coterie.core.types import Example
from coterie.errors import ConfigError

TASKS = ("chain_sum",)
"""reasoning-gym tasks that have worked solutions."""


def worked_solution(example: Example) -> str:
    """A short solution that ends with `#### answer`.

    Raises:
        ConfigError: for a task without worked solutions.
    """
    task = example.meta.get("gym", {}).get("task")
    if task == "chain_sum":
        return chain_sum(str(example.meta["expression"]))
    raise ConfigError(f"there are no worked solutions for gym:{task} (there are for: {', '.join(TASKS)})")


def chain_sum(expression: str) -> str:
    """One line a partial sum of `8 - 7 + 3`, then the answer: `8 - 7 = 1`, `1 + 3 = 4`, `#### 4`."""
    first, *rest = expression.split()
    total, lines = int(first), []
    for operator, term in zip(rest[::2], rest[1::2], strict=True):
        value = total + int(term) if operator == "+" else total - int(term)
        lines.append(f"{total} {operator} {term} = {value}")
        total = value
    return "\n".join([*lines, f"#### {total}"])
