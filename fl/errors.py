"""What goes wrong on a client: bad data, or training that cannot be."""

from __future__ import annotations


class FLError(ValueError):
    """Base of this package's errors, which a user can correct; the message says how.

    `parameter` is the name of the parameter to change, or None if no single one is to blame.
    """

    def __init__(self, message: str = "", *, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class DataError(FLError):
    """Data that is missing, damaged, or not what training needs."""


class TrainingError(FLError):
    """Settings, or a model, that nothing can be trained with."""
