"""The errors a user can meet.

SeerError
 +- UsageError        the command line or a spec is wrong                     exit 2
 +- UnreadableError   a file cannot be read as what it should be              exit 3
 +- InfeasibleError   the plan cannot exist (memory, divisibility, deadlock)  exit 4
 +- ThresholdError    a stated threshold failed                               exit 1

Anything else that reaches the command line is a defect of ours (exit 70).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SeerError(Exception):
    """An error with everything a user needs to act: what, where, why, what to do.

    ``where`` is a file, a line, a JSON path, an operator or a rank; ``hint`` is the next step.
    """

    exit_code = 70

    def __init__(self, what: str, *, where: str = "", why: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.why = why
        self.hint = hint

    def __str__(self) -> str:
        parts = [f"{self.where}: {self.what}" if self.where else self.what]
        if self.why:
            parts.append(f"why: {self.why}")
        if self.hint:
            parts.append(f"try: {self.hint}")
        return "\n  ".join(parts)


class UsageError(SeerError):
    """The command line or a spec asks for something that does not exist or cannot be meant."""

    exit_code = 2


class UnreadableError(SeerError):
    """A file is missing, truncated, of another kind, or holds values that cannot be."""

    exit_code = 3


class InfeasibleError(SeerError):
    """The plan is well written but cannot run: divisibility, memory, a deadlocked order."""

    exit_code = 4


class ThresholdError(SeerError):
    """A threshold that the user stated was not met."""

    exit_code = 1


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint that names the closest valid names, or lists them when few.

    >>> nearest("bf61", ["bf16", "fp16"])
    "did you mean 'bf16'?"
    """
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    if len(names) <= 12:
        return "valid names: " + ", ".join(names)
    return f"{len(names)} names are valid, among them: " + ", ".join(names[:12])
