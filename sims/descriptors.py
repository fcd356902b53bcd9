"""Room for open files: every connection and every worker takes some."""

from __future__ import annotations

import resource

from secagg.errors import ParameterError


def make_room(wanted: int) -> None:
    """Have the system allow so many open files, or say that it does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY in (soft, hard) or wanted <= soft:
        return
    if wanted > hard:
        raise ParameterError(
            f"this takes about {wanted} open files, and the system allows {hard}; raise the limit (ulimit -n)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
