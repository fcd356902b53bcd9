"""What holds one-time secrets is neither copied nor written down."""

from __future__ import annotations

from typing import NoReturn


class OneTime:
    """Refuses `copy` and `pickle`: a copy would use its secrets a second time, a pickle would leak them."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} holds one-time secrets; it cannot be copied or pickled")
