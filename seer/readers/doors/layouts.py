"""Megatron's small languages: patterns of layers (`([0]*3+[1]*58)`) and pipeline layouts."""

from __future__ import annotations

import re
from typing import Any

from seer.readers.doors.arguments import Arguments

MAX_LAYERS = 100_000
MAX_TEXT = 5_000
"""Characters of a layout as it is written."""


def repeated(given: Any, args: Arguments, name: str) -> list[int]:
    """The numbers of a pattern: `([0]*3+[1]*58)`, `[0, 1, 1]`, `0 1 1`, `2`, or a list of them."""
    found: list[int] = []
    text = " ".join(map(str, given)) if isinstance(given, list) else str(given)
    compact = text.strip().strip("\"'")
    pieces = re.findall(r"\[([\d,\s]*)\](?:\s*\*\s*(\d{1,6}))?|(\d+)", compact)
    if not pieces or re.sub(r"[\[\]\d,\s()+*]", "", compact):
        raise args.fault((name,), text, "a pattern such as ([0]*3+[1]*58) is expected")
    for items, times, single in pieces:
        numbers = [single] if single else re.findall(r"\d+", items)
        if len(found) + len(numbers) * int(times or 1) > MAX_LAYERS or len(max(numbers)) > 9:
            raise args.fault((name,), text, f"more than {MAX_LAYERS} layers")
        found += [int(n) for n in numbers] * int(times or 1)
    return found


def layout_layers(layout: Any, args: Arguments) -> list[int]:
    """Decoder layers of each virtual stage of a pipeline layout.

    A layout is text, `Et*4|t*4|(tt|)*29,m|L` (E embedding, t layer, m multi-token prediction, L
    loss), or a list of stages, each a list of names: megatron/core/transformer/
    pipeline_parallel_layer_layout.py.
    """
    name = "pipeline_model_parallel_layout"
    if isinstance(layout, list):
        stages = [stage if isinstance(stage, list) else [stage] for stage in layout]
        return [sum(str(kind) in ("decoder", "t") for kind in stage) for stage in stages]
    text = re.sub(r"[\s,]", "", str(layout)).strip("\"'")
    if len(text) > MAX_TEXT:
        raise args.fault((name,), text[:60], f"more than {MAX_TEXT} characters")
    while group := re.search(r"\(([^()]*)\)\*(\d{1,6})|([A-Za-z])\*(\d{1,6})", text):
        inner, times = (group[1], group[2]) if group[2] else (group[3], group[4])
        if len(text) + len(inner) * int(times) > MAX_LAYERS:
            raise args.fault((name,), layout, f"more than {MAX_LAYERS} layers")
        text = text[: group.start()] + inner * int(times) + text[group.end() :]
    if re.sub(r"[EtmL|]", "", text):
        raise args.fault((name,), layout, "a layout such as Ettt|tt|ttL is expected")
    return [stage.count("t") for stage in text.split("|")]


def layout_text(layers: list[int], mtp_layers: int) -> str:
    """The layout that puts `layers` decoder layers on each virtual stage.

    >>> layout_text([3, 4, 4, 2], 1)
    'Et*3|t*4|t*4|t*2mL'
    """
    stages = [f"t*{n}" if n > 1 else "t" * n for n in layers]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * mtp_layers + "L"
    return "|".join(stages)
