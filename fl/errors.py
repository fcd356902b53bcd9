"""Errors of local training: invalid data and invalid settings."""

from __future__ import annotations


class FLError(ValueError):
    """Base class of the errors of `fl`. The message says how the user can correct the error. `parameter` is
    the name of the parameter that the user should change, or None if there is no single such parameter."""

    def __init__(self, message: str = "", *, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class DataError(FLError):
    """Data are missing, damaged, or unusable for training, or a parameter that describes data is invalid."""


class TrainingError(FLError):
    """The settings or the model cannot be used for training."""
