"""Errors of local training: invalid data and invalid settings."""

from __future__ import annotations


class FLError(ValueError):
    """Base class of the errors of `fl`. The message says how the user can correct the error. `parameter` is
    the name of the parameter to change, or None if no single parameter is at fault."""

    def __init__(self, message: str = "", *, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class DataError(FLError):
    """The data is missing, damaged, or not what training needs."""


class TrainingError(FLError):
    """The settings or the model cannot be used for training."""
