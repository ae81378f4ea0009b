"""Times in the making: what a measurement file holds, and what of it is still missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seer.errors import UnreadableError, UsageError
from seer.measure.items import Item, item_from_json

SCHEMA = "seer.measurements/1"

FIXED = ("processes", "threads", "clock", "environment", "rotation_bytes")
"""Conditions that must not change within one file."""


@dataclass
class Record:
    """Everything that one folder has measured so far.

    Attributes
    ----------
    device, software : str
    conditions : mapping
        How it was measured; see `docs/guides/measure-your-machine.md`.
    times_s : mapping of Item to seconds
    skipped : mapping of Item to the reason why it cannot be measured here
    """

    device: str
    software: str
    conditions: dict[str, Any] = field(default_factory=dict)
    times_s: dict[Item, list[float]] = field(default_factory=dict)
    skipped: dict[Item, str] = field(default_factory=dict)

    def add(self, item: Item, times_s: Sequence[float]) -> None:
        """More times of one item; seconds."""
        self.times_s.setdefault(item, []).extend(times_s)

    def missing(self, item: Item, repeats: int) -> int:
        """How many times of an item are still to be taken."""
        if item in self.skipped:
            return 0
        return max(0, repeats - len(self.times_s.get(item, ())))

    def take_over(self, earlier: Record) -> None:
        """Keep the times of an earlier run into the same folder.

        Raises UsageError where the earlier times are not comparable with these.
        """
        mine: dict[str, Any] = {"device": self.device, "software": self.software}
        theirs: dict[str, Any] = {"device": earlier.device, "software": earlier.software}
        mine |= {name: self.conditions.get(name) for name in FIXED}
        theirs |= {name: earlier.conditions.get(name) for name in FIXED}
        for name, value in mine.items():
            if theirs[name] != value:
                raise UsageError(
                    "the folder holds measurements under other conditions",
                    why=f"{name}: {theirs[name]!r} there, {value!r} now",
                    hint="name another folder with -o",
                )
        self.times_s = {item: list(times) for item, times in earlier.times_s.items()}

    def to_json(self) -> dict[str, Any]:
        """The measurement file as plain data; items in a stable order."""
        return {
            "schema": SCHEMA,
            "device": self.device,
            "software": self.software,
            "source": f"seer measure, {self.software.split(',')[0]}",
            "conditions": dict(self.conditions),
            "measurements": [
                {**item.to_json(), "times_s": [float(f"{t:.6g}") for t in times]}
                for item, times in self.times_s.items()
            ],
            "skipped": [{**item.to_json(), "reason": why} for item, why in self.skipped.items()],
        }

    @staticmethod
    def from_json(data: Mapping[str, Any], where: str = "") -> Record:
        """The inverse of `to_json`, but for what was skipped: that is tried again.

        Raises UnreadableError when the data are something else.
        """
        if data.get("schema") != SCHEMA:
            raise UnreadableError(
                "this is not a file of measurements",
                where=where,
                why=f"its schema is {data.get('schema')!r}, expected {SCHEMA!r}",
            )
        record = Record(str(data.get("device")), str(data.get("software")))
        record.conditions = dict(data.get("conditions") or {})
        try:
            for entry in data["measurements"]:
                record.add(item_from_json(entry), [float(t) for t in entry["times_s"]])
        except (KeyError, TypeError, ValueError, AttributeError) as fault:
            why = f"{type(fault).__name__}: {fault}"
            raise UnreadableError(
                "the file of measurements is damaged", where=where, why=why
            ) from None
        return record
