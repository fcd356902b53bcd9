"""What goes wrong on a client: bad data, or training that cannot be."""

from __future__ import annotations


class FLError(ValueError):
    """Of this package, raised for what a user can put right. Its text says how."""


class DataError(FLError):
    """Data that is missing, damaged, or not what training needs."""


class TrainingError(FLError):
    """Settings, or a model, that nothing can be trained with."""
