"""Grading of maths answers: extraction, exact comparison, and a symbolic stage behind a deadline.

`grade` for one answer, `Grader` for many. Importing this package imports no algebra system; the symbolic stage lives
in worker processes.
"""

from coterie.rewards.answers.extract import Extraction, extract
from coterie.rewards.answers.grader import Grader, grade
from coterie.rewards.answers.policy import Kind, Policy, Verdict
from coterie.rewards.answers.reward import MathReward

__all__ = ["Extraction", "Grader", "Kind", "MathReward", "Policy", "Verdict", "extract", "grade"]
