"""Every exception that coterie raises on purpose.

    CoterieError
    ├── UserError               a mistake of the person who runs it; shown without traceback, exit code 2
    │   ├── ConfigError         key, value, rule and remedy of a setting
    │   ├── DataError           file, row and field of a data row
    │   ├── ModelError          a model or tokenizer that can't be loaded or used
    │   └── RunDirectoryError   a run directory that can't be used or resumed
    ├── RewardError             too many rewards are missing, or a reward fails its smoke test
    └── EngineError             an engine can't do what was asked of it

Exceptions cross process borders, so each can be pickled: they hold one message string only.
"""

from __future__ import annotations


class CoterieError(Exception):
    """Base class of every exception raised on purpose."""


class UserError(CoterieError):
    """A mistake that the person at the keyboard can mend; the command line prints it and exits with 2."""


class ConfigError(UserError):
    """A setting is unknown, of the wrong type, out of range, ineffective or in conflict with another."""


class DataError(UserError):
    """A data file or row can't be used; the message names file, row and field."""


class ModelError(UserError):
    """A model folder, checkpoint or tokenizer is missing, broken or unsuited."""


class RunDirectoryError(UserError):
    """A run directory belongs to another configuration, is damaged, or can't be written."""


class RewardError(CoterieError):
    """Rewards are missing above the configured rate, or fail the smoke test before step 0."""


class EngineError(CoterieError):
    """An engine was asked for something that it can't do (for example, stale rollouts on shared weights)."""
