"""Measurements as JSON: what `seer measure` writes, and the bare list that anyone can.

The whole form names its machine once::

    {"schema": "seer.measurements/1", "device": "...", "software": "...",
     "conditions": {"processes": 2, "fabric": "gloo-loopback", "nodes": 1},
     "measurements": [{"kind": "gemm", "shape": {"m": 1024, "n": 512, "k": 512}, "dtype": "fp32",
                       "train_pass": "forward", "variant": "", "times_s": [0.0051, 0.0050]}]}

The bare form is the list of `measurements` alone. The time of an entry is the median of `times_s`,
its spread their width between the 20th and the 80th percentile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from seer.calibration.collective import COLLECTIVES
from seer.calibration.measurements import Measurements
from seer.errors import UnreadableError, nearest
from seer.readers.files import parse_json
from seer.readers.measurement_checks import GEMM_DTYPES, fastest, too_fast
from seer.readers.measurement_memory import TRAFFIC_PER_ELEMENT
from seer.readers.measurement_parts import DTYPES, PASSES

SCHEMA = "seer.measurements/1"

ELEMENT_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0}

FEWEST_FOR_SPREAD = 5

LARGEST_SIZE = 1e15
"""No size is larger: a petabyte."""

_AMOUNTS = ("hbm_bytes", "message_bytes", "head_dim", "head_dim_v")
"""Sizes that may be fractions: traffic of odd types, the mean of two head sizes."""

_WIDTH = 2 * 0.8416
"""The 20th and 80th percentile of a normal distribution lie 0.8416 deviations out."""

Row = dict[str, Any]
Size = Callable[..., float]

_OPTIMIZER_BYTES = 28.0
"""Traffic per parameter of an optimizer step whose entry does not state it: fp32 weight, gradient
and two moments read (16), three written (12)."""


def is_measurements(text: str) -> bool:
    """Whether a text is either form, by its content."""
    start = text.lstrip()[:4096]
    if start[:1] == "[":
        return '"times_s"' in start
    return start[:1] == "{" and '"seer.measurements/' in start


def read_measurement_json(text: str, path: str) -> tuple[list[Measurements], list[tuple[int, str]]]:
    """Tables by kind, and (line, reason) of every entry that cannot be used.

    Raises UnreadableError when the text is not of this form or holds no usable entry.
    """
    data = parse_json(text, path)
    whole = data if isinstance(data, dict) else {"schema": SCHEMA, "measurements": data}
    if whole.get("schema") != SCHEMA or not isinstance(whole.get("measurements"), list):
        raise UnreadableError(
            "this is not a file of measurements",
            where=path,
            why=f"schema {SCHEMA!r} and a list 'measurements' are expected",
        )
    words = [whole.get(name) for name in ("device", "software")]
    source = str(whole.get("source") or ", ".join(str(w) for w in words if w) or "unknown")
    conditions = whole.get("conditions")
    shared = conditions if isinstance(conditions, Mapping) else {}
    lines = list(_lines(text, isinstance(data, dict)))
    rows: dict[str, list[Row]] = {}
    skipped: list[tuple[int, str]] = []
    for line, entry in zip(lines, whole["measurements"], strict=True):
        try:
            kind, row = _row(entry, shared, source)
        except (_Unusable, TypeError, ValueError) as reason:
            skipped.append((line, str(reason)))
            continue
        rows.setdefault(kind, []).append({**row, "line": line})
    if not rows:
        why = f"line {skipped[0][0]}: {skipped[0][1]}" if skipped else "the list is empty"
        raise UnreadableError("the file holds no usable entry", where=path, why=why)
    return [_table(kind, found, source, path) for kind, found in rows.items()], skipped


class _Unusable(Exception):
    """Why an entry cannot be used."""


def _row(entry: Any, conditions: Mapping[str, Any], source: str) -> tuple[str, Row]:
    """Kind of table and columns of one entry."""
    if not isinstance(entry, Mapping):
        raise _Unusable("the entry is not a mapping")
    shape, kind = entry.get("shape"), str(entry.get("kind"))
    if not isinstance(shape, Mapping):
        raise _Unusable("the entry has no shape")

    def size(name: str, otherwise: float | None = None) -> float:
        value = shape.get(name, otherwise)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise _Unusable(f"{name} is {value!r}, not a positive number")
        if value > LARGEST_SIZE:
            raise _Unusable(f"{name} is {value!r}, more than {LARGEST_SIZE:g}")
        if name not in _AMOUNTS and value != round(value):
            raise _Unusable(f"{name} is {value!r}, not a whole number")
        return float(value)

    dtype = str(entry.get("dtype", ""))
    train_pass = str(entry.get("train_pass", ""))
    text = {
        "dtype": DTYPES.get(dtype, dtype),
        "train_pass": PASSES.get(train_pass, train_pass) or "forward",
        "variant": str(entry.get("variant", "")),
    }
    if kind in COLLECTIVES:
        return "collective", _collective(kind, size, text, conditions) | _times(entry)
    make = _KINDS.get(kind)
    if make is None:
        if kind in TRAFFIC_PER_ELEMENT:
            raise _Unusable(f"the kind {kind!r} is a variant of the kind 'memory'")
        known = nearest(kind, (*_KINDS, *COLLECTIVES))
        raise _Unusable(f"the kind {kind!r} is not known: {known}")
    table = {"optimizer": "memory", "grouped_gemm": "gemm"}.get(kind, kind)
    row = make(size, shape, text) | _times(entry)
    if table == "gemm":
        _refuse_odd_product(row)
    return table, row


def _refuse_odd_product(row: Row) -> None:
    """Raise _Unusable for a type that nobody knows and for a rate that no device has."""
    dtype = row["dtype"]
    if dtype not in GEMM_DTYPES:
        raise _Unusable(f"dtype is '{dtype}', not a data type: {nearest(dtype, GEMM_DTYPES)}")
    rate = 2.0 * row["m"] * row["n"] * row["k"] * row["batch"] / row["time_s"]
    if rate > fastest(dtype):
        raise _Unusable(too_fast(rate))


def _gemm(size: Size, shape: Mapping[str, Any], text: Row) -> Row:
    sizes = {name: size(name) for name in ("m", "n", "k")}
    return text | sizes | {"batch": size("batch", 1), "bias": bool(shape.get("bias", False))}


def _grouped_gemm(size: Size, shape: Mapping[str, Any], text: Row) -> Row:
    """One product of every expert: a batch of equal products."""
    sizes = {name: size(name) for name in ("m", "n", "k")} | {"batch": size("groups")}
    return text | {"variant": "grouped"} | sizes | {"bias": False}


def _attention(size: Size, shape: Mapping[str, Any], text: Row) -> Row:
    heads, head_dim = size("heads"), size("head_dim")
    return {
        "dtype": text["dtype"],
        "kernel": text["variant"] or "flash",
        "train_pass": text["train_pass"],
        "batch": size("batch", 1),
        "seq_q": size("seq_q"),
        "seq_kv": size("seq_kv", shape.get("seq_q")),
        "heads": heads,
        "kv_heads": size("kv_heads", heads),
        "head_dim": head_dim,
        "head_dim_v": size("head_dim_v", head_dim),
        "causal": bool(shape.get("causal", True)),
        "window": float(shape.get("window", 0)),
    }


def _memory(size: Size, shape: Mapping[str, Any], text: Row) -> Row:
    rows, cols = size("rows"), size("cols", 1)
    ideal = TRAFFIC_PER_ELEMENT.get(text["variant"], (2, 3))[text["train_pass"] == "backward"]
    otherwise = rows * cols * ideal * ELEMENT_BYTES.get(text["dtype"], 2.0)
    return {
        **text,
        "impl": str(shape.get("impl", "eager")),
        "rows": rows,
        "cols": cols,
        "hbm_bytes": size("hbm_bytes", otherwise),
    }


def _optimizer(size: Size, shape: Mapping[str, Any], text: Row) -> Row:
    """An optimizer step streams its states: a memory-bound operator of one column."""
    parameters = size("parameters")
    return {
        "dtype": "",
        "train_pass": "forward",
        "variant": text["variant"] or "adam",
        "impl": "eager",
        "rows": parameters,
        "cols": 1.0,
        "hbm_bytes": size("hbm_bytes", parameters * _OPTIMIZER_BYTES),
    }


_KINDS: Mapping[str, Callable[[Size, Mapping[str, Any], Row], Row]] = {
    "gemm": _gemm,
    "grouped_gemm": _grouped_gemm,
    "attention": _attention,
    "memory": _memory,
    "optimizer": _optimizer,
}


def _collective(kind: str, size: Size, text: Row, conditions: Mapping[str, Any]) -> Row:
    ranks, nodes = size("ranks"), float(conditions.get("nodes", 1))
    if ranks < 2:
        raise _Unusable(f"ranks is {ranks:g}: a collective needs two")
    if not 1 <= nodes <= ranks or ranks % nodes:
        raise _Unusable(f"{ranks:g} ranks do not spread evenly over {nodes:g} nodes")
    if not str(conditions.get("fabric", "unspecified")).strip():
        raise _Unusable("fabric is empty: the network must have a name")
    return {
        "collective": kind,
        "n_ranks": ranks,
        "n_nodes": nodes,
        "ranks_per_node": ranks / nodes,
        "dtype": text["dtype"],
        "message_bytes": size("message_bytes"),
        "fabric": str(conditions.get("fabric", "unspecified")),
        "library": str(conditions.get("fabric", "unspecified")).split("-")[0],
        "series": f"{kind} {ranks:g} ranks",
    }


def _times(entry: Mapping[str, Any]) -> Row:
    """Median and spread of an entry's times."""
    given = entry.get("times_s")
    if not isinstance(given, list) or not given:
        raise _Unusable("the entry has no times_s")
    for value in given:
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise _Unusable(f"times_s holds {value!r}, not a positive number of seconds")
    times = np.array(given, np.float64)
    spread = np.nan
    if len(times) >= FEWEST_FOR_SPREAD:
        low, high = np.quantile(times, (0.2, 0.8))
        spread = float(np.log(high / low) / _WIDTH)
    return {"time_s": float(np.median(times)), "spread": spread}


def _table(kind: str, rows: list[Row], source: str, path: str) -> Measurements:
    beside = ("time_s", "spread", "line")
    columns = {
        name: np.array(
            [row[name] for row in rows], object if isinstance(rows[0][name], str) else None
        )
        for name in rows[0]
        if name not in beside
    }
    return Measurements(
        kind=kind,
        columns=columns,
        time_s=np.array([row["time_s"] for row in rows], np.float64),
        spread=np.array([row["spread"] for row in rows], np.float64),
        source=np.full(len(rows), source, object),
        file=path,
        line=np.array([row["line"] for row in rows], np.int64),
    )


def _lines(text: str, is_whole: bool) -> Iterator[int]:
    """The line on which each entry begins; the text is known to be JSON of one of the forms."""
    decoder = json.JSONDecoder()
    at = _list_start(text, decoder) if is_whole else text.index("[")
    line, counted = 1, 0
    at += 1
    while True:
        while text[at] in " \t\r\n,":
            at += 1
        if text[at] == "]":
            return
        line += text.count("\n", counted, at)
        counted = at
        yield line
        _, at = decoder.raw_decode(text, at)


def _list_start(text: str, decoder: json.JSONDecoder) -> int:
    """Where the value of the top-level key "measurements" begins."""
    at = text.index("{") + 1
    while True:
        while text[at] in " \t\r\n,":
            at += 1
        key, at = decoder.raw_decode(text, at)
        while text[at] in " \t\r\n:":
            at += 1
        if key == "measurements":
            return at
        _, at = decoder.raw_decode(text, at)
