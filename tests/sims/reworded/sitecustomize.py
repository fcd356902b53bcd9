"""Replaces every error sentence and every log text by another one; python imports it if it is on the path."""

from __future__ import annotations

from typing import Any

from secagg import errors
from secagg.net import event_log


def _sentence(error: BaseException) -> str:
    return f"sentence of {type(error).__name__}"


def _reworded(event: Any) -> Any:
    line = _render(event)
    return None if line is None else line._replace(text=f"text of {type(event).__name__}")


_render = event_log.render
event_log.render = _reworded
errors.SecaggError.__str__ = _sentence  # type: ignore[method-assign]
try:
    from fl import errors as fl_errors
except ImportError:
    pass
else:
    fl_errors.FLError.__str__ = _sentence  # type: ignore[method-assign]
