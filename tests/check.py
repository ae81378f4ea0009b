"""Everything that must hold before a change is done: lint, format, types, tests.

Run it with an interpreter that has the `test` extra: `.venv/bin/python tests/check.py`. Arguments
are passed on to pytest.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

STEPS = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
    ("pytest",),
)


def main(arguments: list[str]) -> int:
    """Run the steps in order; the exit code of the first that fails, else 0."""
    for module, *options in STEPS:
        extra = arguments if module == "pytest" else []
        print("$", module, *options, *extra, flush=True)
        done = subprocess.run([sys.executable, "-m", module, *options, *extra], cwd=ROOT)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
