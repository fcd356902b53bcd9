"""Data sets: file formats, synthetic data, and a registry by name (`load`, `look`, `register`)."""

from fl.data.registry import SOURCES, Source, load, look, register

__all__ = ["SOURCES", "Source", "load", "look", "register"]
