"""What a user adds to a trace: `--given KEY=VALUE` texts to `TraceOptions`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from seer.errors import UsageError, nearest
from seer.readers.traced import TraceOptions
from seer.readers.traces import TraceFormat
from seer.units import parse_bytes, parse_seconds

KEYS = (
    "model-parallel",
    "topology",
    "message-bytes",
    "group",
    "compute-unit",
    "device",
    "step",
    "patterns",
    "execution-trace",
)


ASKED: Mapping[TraceFormat, frozenset[str]] = {
    "kineto": frozenset({"message-bytes", "device", "step", "patterns", "execution-trace"}),
    "execution_trace": frozenset({"gpus", "group", "message-bytes"}),
    "chakra": frozenset({"gpus", "topology", "group", "message-bytes"}),
    "chakra_json": frozenset({"gpus", "topology", "group", "message-bytes"}),
    "simai": frozenset({"gpus", "model-parallel", "compute-unit", "message-bytes"}),
    "astra_text": frozenset({"gpus", "model-parallel", "compute-unit", "message-bytes"}),
    "aicb": frozenset({"gpus"}),
}
"""What the reader of each format asks for."""


def unasked(texts: Iterable[str], gpus: int | None, trace_format: TraceFormat) -> list[str]:
    """A sentence for each thing given that a trace of this format is never asked for.

    >>> unasked(["topology=8,4", "step=train"], None, "kineto")
    ['--given topology has no effect: a trace of the format kineto is not asked for it']
    """
    asked = ASKED.get(trace_format, frozenset())
    keys = {text.partition("=")[0].strip().partition(":")[0] for text in texts}
    options = [f"--given {key}" for key in sorted(keys - asked)]
    options += ["--gpus"] * (gpus is not None and "gpus" not in asked)
    why = f"a trace of the format {trace_format} is not asked for it"
    return [f"{option} has no effect: {why}" for option in options]


def parse_given(texts: Iterable[str], gpus: int | None = None) -> TraceOptions:
    """Options of a reader. Raises UsageError for a key or value that cannot be meant.

    >>> parse_given(["topology=8,4", "message-bytes:fc*=64 MiB"], gpus=32).topology
    (8, 4)
    """
    values: dict[str, Any] = {"gpus": gpus}
    sizes: list[tuple[str, float]] = []
    groups: list[tuple[str, tuple[int, ...]]] = []
    for text in texts:
        key, separator, value = text.partition("=")
        where = f"--given {text[:80]}"
        name, _, pattern = key.strip().partition(":")
        if not separator or name not in KEYS:
            what = f"'{name[:40]}' is nothing that a trace is asked for"
            raise UsageError(what, where=where, hint=nearest(name, KEYS))
        if name == "message-bytes":
            sizes.append((pattern or "*", _positive(parse_bytes(value.strip(), where), where)))
        elif name == "group":
            ranks = tuple(_whole(part, where, least=0) for part in value.split(","))
            if not pattern or len(set(ranks)) < max(len(ranks), 2):
                what = "a group has a name and two ranks or more, each once"
                raise UsageError(what, where=where, hint="group:1=0,1,2,3")
            groups.append((pattern, ranks))
        elif name == "compute-unit":
            unit = value.strip()
            text_s = unit if unit[:1].isdigit() else f"1 {unit}"
            values["compute_unit_s"] = _positive(parse_seconds(text_s, where), where)
        elif name in ("device", "step", "patterns", "execution-trace"):
            values[name.replace("-", "_")] = value.strip()
        elif name == "topology":
            values["topology"] = tuple(_whole(part, where) for part in value.split(","))
        else:
            values["model_parallel"] = _whole(value, where)
    return TraceOptions(**values, message_bytes=tuple(sizes), groups=tuple(groups))


def _whole(text: str, where: str, least: int = 1) -> int:
    digits = text.strip()
    if digits.isascii() and digits.isdigit() and len(digits) < 9 and int(digits) >= least:
        return int(digits)
    raise UsageError(f"'{digits[:40]}' is no number of ranks", where=where)


def _positive(value: float, where: str) -> float:
    if value > 0:
        return value
    raise UsageError("more than zero is needed", where=where)
