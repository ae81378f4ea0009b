"""What every door shares: foreign settings read by name, with an account of those not used."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seer.errors import UsageError

ALIKE = 0.9
"""Names that share this much (difflib) differ in a letter or two: one may be a typo of another."""

MAX_TOLD = 40
"""Unused settings that are named in a note; more are counted."""


@dataclass(frozen=True)
class Foreign:
    """A configuration of another tool as a job that may lack what that tool does not say.

    Attributes
    ----------
    kind : str
        "Megatron-LM flags", ...
    job : dict
        The keys of a job spec that follow; cluster, and often gpus, are missing.
    notes : tuple of str
        What was assumed, and which settings had no effect.
    unshipped : str
        The model that the tool names, where no shipped one goes by that name.
    """

    kind: str
    job: dict[str, Any]
    notes: tuple[str, ...] = ()
    unshipped: str = ""


def unused_note(names: Sequence[str]) -> str:
    """One sentence for the settings that had no effect on the forecast; empty for none."""
    if not names:
        return ""
    told = ", ".join(names[:MAX_TOLD])
    more = f" and {len(names) - MAX_TOLD} more" if len(names) > MAX_TOLD else ""
    return f"settings without effect on the forecast: {told}{more}"


@dataclass
class Arguments:
    """Foreign settings by name.

    `spelled` says how the tool writes a name, for messages. A value may be a number, a text, a
    list of texts (the words behind a flag) or True.
    """

    values: Mapping[str, Any]
    where: str
    spelled: Callable[[str], str] = str
    used: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)

    def get(self, *names: str) -> Any:
        """The first of `names` that is set, or None; a list of one word is that word."""
        found = None
        self.asked.update(names)
        for name in names:
            if name in self.values:
                self.used.add(name)
                if found is None:
                    found = self.values[name]
        if isinstance(found, list) and len(found) == 1 and not isinstance(found[0], (list, dict)):
            return found[0]
        return found

    def switch(self, *names: str) -> bool:
        """Whether a switch is on."""
        value = self.get(*names)
        return value not in (None, False, [], "", 0, "false", "False", "0")

    def text(self, *names: str) -> str:
        """A word, or nothing."""
        value = self.get(*names)
        return "" if value is None or isinstance(value, (bool, list, dict)) else str(value)

    def count(self, *names: str, default: int | None = None, least: int = 0) -> int | None:
        """A whole number; raises UsageError for anything else."""
        value = self.get(*names)
        if value is None:
            return default
        if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,15}\s*", value):
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # 5e8 in JSON
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 10**9:
            raise self.fault(names, value, f"a whole number from {least} is expected")
        return value

    def whole(self, *names: str, default: int, least: int = 0) -> int:
        """A whole number with a default."""
        value = self.count(*names, least=least)
        return default if value is None else value

    def needed(self, *names: str, least: int = 1) -> int:
        """A whole number that must be there."""
        value = self.count(*names, least=least)
        if value is None:
            what = f"{self.spelled(names[0])} is missing"
            close = difflib.get_close_matches(names[0], self.values, n=1, cutoff=ALIKE)
            hint = "a job needs it; see `seer list models`"
            if close:
                hint = f"is '{self.spelled(close[0])}' meant for it?"
            raise UsageError(what, where=self.where, hint=hint)
        return value

    def words(self, *names: str) -> list[str]:
        """A list of words: `a b`, `[a, b]` or "a,b"."""
        value = self.get(*names)
        if value is None or isinstance(value, (bool, dict)):
            return []
        items = value if isinstance(value, list) else str(value).strip("[]() ").split(",")
        return [str(item).strip() for item in items if str(item).strip()]

    def fault(self, names: Sequence[str], value: Any, why: str) -> UsageError:
        """The error of a setting whose value cannot be meant."""
        shown = json.dumps(value, default=str)[:80]
        name = self.spelled(next((n for n in names if n in self.values), names[0]))
        empty = value in ([], True, "")
        what = f"{name} has no value" if empty else f"{name} cannot be {shown}"
        hint = "a variable that the script does not set is empty"
        hint = f"{hint}; write the arguments of a script into it: set -- 8 bf16" if empty else ""
        return UsageError(what, where=self.where, why=why, hint=hint)

    def unused(self) -> list[str]:
        """The settings that nobody asked for, as the tool spells them; likely typos are said."""
        return sorted(self._doubted(name) for name in self.values if name not in self.used)

    def _doubted(self, name: str) -> str:
        open_names = self.asked - self.used
        close = difflib.get_close_matches(name, open_names, n=1, cutoff=ALIKE)
        shown = self.spelled(name)
        # `--no-x` beside `--x` is a switch of its own
        if close and not (name.endswith(close[0]) or close[0].endswith(name)):
            shown += f" (is {self.spelled(close[0])} meant?)"
        return shown
