"""Numbers with units, in and out. Bits and bytes are never guessed.

Inside Seer everything is SI: seconds, bytes, FLOP, bytes/s, FLOP/s. A plain number is taken in
that unit; text must spell its unit. Text that could mean two things (`400Gb`) is refused with
both readings shown.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

from seer.errors import UsageError

_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?)\s*(.*?)\s*")
# Factors are exact, so that "1.9 us" is the float nearest to 1.9e-6.
_SI_POWERS = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_SI = {prefix: Decimal(10) ** power for prefix, power in _SI_POWERS.items()}
_BINARY = {f"{p}i": Decimal(1024) ** (i + 1) for i, p in enumerate("KMGTP")}
_SECONDS = {
    "ns": Decimal("1e-9"),
    **dict.fromkeys(("us", "µs", "μs"), Decimal("1e-6")),
    "ms": Decimal("1e-3"),
    **dict.fromkeys(("s", "sec", "seconds"), Decimal(1)),
    **dict.fromkeys(("min", "minutes"), Decimal(60)),
    **dict.fromkeys(("h", "hours"), Decimal(3600)),
}


def _amounts(prefixes: dict[str, Decimal], units: tuple[str, ...]) -> dict[str, Decimal]:
    return {prefix + unit: factor for prefix, factor in prefixes.items() for unit in units}


_BYTES = _amounts({**_SI, **_BINARY}, ("B",))
_BYTES_PER_S = {
    **_amounts({**_SI, **_BINARY}, ("B/s", "Bps")),
    **{unit: value / 8 for unit, value in _amounts(_SI, ("bit/s", "b/s", "bps")).items()},
}
_FLOP_PER_S = _amounts(_SI, ("FLOP/s", "FLOPS", "FLOPs/s", "flop/s"))


def parse_bandwidth(value: str | int | float, where: str = "") -> float:
    """Read a bandwidth in bytes per second; a plain number is bytes per second.

    >>> parse_bandwidth("400 Gbit/s"), parse_bandwidth("400Gbps"), parse_bandwidth("50 GB/s")
    (50000000000.0, 50000000000.0, 50000000000.0)
    """
    return _parse(value, where, "bandwidth", _BYTES_PER_S, "50 GB/s or 400 Gbit/s", positive=True)


def parse_bytes(value: str | int | float, where: str = "") -> float:
    """Read a size in bytes; a plain number is bytes.

    >>> parse_bytes("64 MiB"), parse_bytes("80GB")
    (67108864.0, 80000000000.0)
    """
    return _parse(value, where, "size", _BYTES, "80 GB (10^9) or 80 GiB (2^30)")


def parse_seconds(value: str | int | float, where: str = "") -> float:
    """Read a duration in seconds; a plain number is seconds.

    >>> parse_seconds("1.5 ms"), parse_seconds(2)
    (0.0015, 2.0)
    """
    return _parse(value, where, "duration", _SECONDS, "18 us, 1.5 ms or 2 s")


def parse_flop_per_s(value: str | int | float, where: str = "") -> float:
    """Read a compute rate in FLOP/s; a plain number is FLOP/s.

    >>> parse_flop_per_s("989 TFLOP/s")
    989000000000000.0
    """
    return _parse(value, where, "compute rate", _FLOP_PER_S, "989 TFLOP/s", positive=True)


def _parse(
    value: str | int | float,
    where: str,
    noun: str,
    units: dict[str, Decimal],
    example: str,
    *,
    positive: bool = False,
) -> float:
    shown = f"'{value}'" if isinstance(value, str) else repr(value)
    exact, unit = _split(value, where, noun, shown, example)
    if unit and unit not in units:
        raise UsageError(
            f"{shown} is not a {noun}",
            where=where,
            why=_ambiguity(unit, noun) or f"'{unit}' is not a unit of {noun}",
            hint=f"write it as, for example, {example}",
        )
    number = float(exact * units[unit]) if unit else float(exact)
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        rule = "above zero" if positive else "zero or more"
        raise UsageError(f"{shown} is not a {noun}", where=where, why=f"it must be finite, {rule}")
    return number


def _split(
    value: str | int | float, where: str, noun: str, shown: str, example: str
) -> tuple[Decimal, str]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return Decimal(value), ""
    match = _NUMBER.fullmatch(value) if isinstance(value, str) and len(value) < 100 else None
    if match is None:
        raise UsageError(
            f"{shown[:100]} is not a {noun}",
            where=where,
            why="it is not a finite number with a unit",
            hint=f"write it as, for example, {example}",
        )
    return Decimal(match[1]), match[2]


def _ambiguity(unit: str, noun: str) -> str:
    """Both readings of a unit whose bits and bytes (or 10^9 and 2^30) cannot be told apart."""
    match = re.fullmatch(r"([kKmMgGtTpP]?)(i?)([bB]?)(/s|ps)?", unit)
    if not match or noun not in ("bandwidth", "size"):
        return ""
    prefix = match[1].upper().replace("K", "k")
    rate = "/s" if noun == "bandwidth" else ""
    if match[3] == "B" and noun == "bandwidth":
        return f"'{unit}' is an amount; a bandwidth is per second: '{prefix}{match[2]}B/s'"
    if not match[3] and noun == "size":
        return f"'{unit}' could be {prefix}B (powers of 1000) or {prefix}iB (powers of 1024)"
    return f"'{unit}' could be {prefix}bit{rate} (bits) or {prefix}B{rate} (bytes, 8 times as much)"


def format_seconds(value: float) -> str:
    """Format a duration for people.

    >>> format_seconds(1.83e-5), format_seconds(0.0), format_seconds(93.0)
    ('18.3 us', '0 s', '1 min 33 s')
    """
    if value == 0:
        return "0 s"
    if 60 <= value < 7200:
        minutes, seconds = divmod(round(value), 60)
        return f"{minutes} min {seconds} s"
    if value >= 7200:
        hours = value / 3600
        return f"{hours:.1f} h" if hours < 72 else f"{hours / 24:.1f} days"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= factor * 0.9995:
            return f"{_three(value / factor)} {unit}"
    return f"{_three(value / 1e-9)} ns"


def format_bytes(value: float) -> str:
    """Format a size for people, in powers of 1024.

    >>> format_bytes(80 * 2**30), format_bytes(512)
    ('80.0 GiB', '512 B')
    """
    for unit in ("Pi", "Ti", "Gi", "Mi", "Ki"):
        factor = float(_BINARY[unit])
        if abs(value) >= factor * 0.9995:
            return f"{_three(value / factor)} {unit}B"
    return f"{value:.0f} B"


def format_count(value: float) -> str:
    """Format a count for people.

    >>> format_count(175_000_000_000), format_count(96)
    ('175 G', '96')
    """
    return _scaled(value, "").rstrip()


def format_rate(value: float, unit: str) -> str:
    """Format a rate for people, `unit` being the unscaled unit ("B/s", "FLOP/s", "tokens/s").

    >>> format_rate(312e12, "FLOP/s")
    '312 TFLOP/s'
    """
    return _scaled(value, unit)


def _scaled(value: float, unit: str) -> str:
    for prefix in ("E", "P", "T", "G", "M", "k"):
        factor = float(_SI[prefix])
        if abs(value) >= factor * 0.9995:
            return f"{_three(value / factor)} {prefix}{unit}"
    shown = f"{value:.0f}" if float(value).is_integer() else _three(value)
    return f"{shown} {unit}"


def _three(value: float) -> str:
    """Three significant digits without an exponent."""
    size = abs(value)
    decimals = 2 if size < 9.995 else 1 if size < 99.95 else 0
    return f"{value:.{decimals}f}"
