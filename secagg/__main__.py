"""The entry point of the command ``secagg``, and of ``python -m secagg``. It runs `sims.cli`.

The other packages of this project (`protocols`, `fl`, `sims`) have common names. Before one is imported, this
module checks that no package of another project with the same name would be imported instead.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_CHECK = Path(__file__).resolve().parents[1] / "sims" / "cli" / "package_conflicts.py"
_USER_ERROR = 2


def main() -> int:
    """Run the command; return its exit status: 2, with an error text, if a foreign package shadows ours."""
    complaint = _complaint()
    if complaint is not None:
        print(complaint, file=sys.stderr)
        return _USER_ERROR
    from sims.cli import main as run

    return run()


def _complaint() -> str | None:
    """Return an error text if a foreign package shadows one of ours, else None. Imports none of them."""
    spec = spec_from_file_location("_secagg_package_conflicts", _CHECK)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    found: str | None = module.complaint()
    return found


if __name__ == "__main__":
    sys.exit(main())
