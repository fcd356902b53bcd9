"""The command ``secagg`` as it is installed, and ``python -m secagg``.

It looks at the names of its other packages before it imports them. It is not part of ``sims``, because
another package of that name may be in its place.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_CHECK = Path(__file__).resolve().parents[1] / "sims" / "cli" / "package_conflicts.py"
_USER_ERROR = 2


def main() -> int:
    """Run the command, or report packages of the same names that are not ours."""
    complaint = _complaint()
    if complaint is not None:
        print(complaint, file=sys.stderr)
        return _USER_ERROR
    from sims.cli import main as run

    return run()


def _complaint() -> str | None:
    """Report by file, whatever package the name ``sims`` leads to."""
    spec = spec_from_file_location("_secagg_package_conflicts", _CHECK)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    found: str | None = module.complaint()
    return found


if __name__ == "__main__":
    sys.exit(main())
