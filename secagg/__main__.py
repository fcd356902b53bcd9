"""The command ``secagg`` and ``python -m secagg``.

Before it imports the other packages of this project, it checks that no foreign package has taken their names.
It is not part of ``sims``, because a foreign package may have taken this name, too.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_CHECK = Path(__file__).resolve().parents[1] / "sims" / "cli" / "package_conflicts.py"
_USER_ERROR = 2


def main() -> int:
    """Run the command and return its exit status. If foreign packages hide ours, print which and stop."""
    complaint = _complaint()
    if complaint is not None:
        print(complaint, file=sys.stderr)
        return _USER_ERROR
    from sims.cli import main as run

    return run()


def _complaint() -> str | None:
    """Return the text about foreign packages, or None. Load the check by its path, not by its name."""
    spec = spec_from_file_location("_secagg_package_conflicts", _CHECK)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    found: str | None = module.complaint()
    return found


if __name__ == "__main__":
    sys.exit(main())
