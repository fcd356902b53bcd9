"""Data sets: file formats, generators, and a registry by name (`load`, `look`, `register`)."""

from fl.data.registry import SOURCES, Source, load, look, register

__all__ = ["SOURCES", "Source", "load", "look", "register"]
