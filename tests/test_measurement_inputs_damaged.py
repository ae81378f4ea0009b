"""Damaged logs, reports and traces: measurements or an error for people, never anything else."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_writer import Tracer, product, sent

from seer.errors import SeerError
from seer.readers.kineto.recipes import Call, Unclear
from seer.readers.measurements import read_measurements

NCCL = Path(__file__).parent.parent / "traces" / "nccl"


def originals() -> Iterator[bytes]:
    for path in sorted(NCCL.iterdir()):
        if path.suffix != ".md":
            yield path.read_bytes()
    tracer = Tracer()
    product(tracer, 8, 8, 8, [1.0, 2.0])
    tracer.collective(3.0, **sent("allreduce", (8, 8)))
    yield json.dumps({**tracer.head, "traceEvents": tracer.events}).encode()


ORIGINALS = list(originals())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_damaged_file_gives_measurements_or_an_error_for_people(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(data.draw(st.sampled_from(ORIGINALS)))
    how = data.draw(st.sampled_from(["cut", "bytes", "lines", "gzip"]))
    if how == "cut":
        del content[data.draw(st.integers(0, len(content))) :]
    elif how == "bytes":
        for _ in range(data.draw(st.integers(1, 5))):
            at = data.draw(st.integers(0, len(content) - 1))
            content[at : at + 1] = data.draw(st.binary(max_size=3))
    elif how == "lines":
        lines = content.split(b"\n")
        rng = data.draw(st.randoms(use_true_random=False))
        rng.shuffle(lines)
        content = bytearray(b"\n".join(lines))
    else:
        packed = gzip.compress(bytes(content), 1)
        content = bytearray(packed[: data.draw(st.integers(2, len(packed)))])
    path = tmp_path_factory.mktemp("damaged") / "x"
    path.write_bytes(content)
    try:
        tables, _ = read_measurements(path)
    except SeerError:
        return
    assert all(np.isfinite(t.time_s).all() and (t.time_s > 0).all() for t in tables)


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_value_in_a_trace_or_report_is_borne(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = json.loads(data.draw(st.sampled_from([o for o in ORIGINALS if o[:1] in b"{["])))
    here: Any = whole
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        key = data.draw(st.sampled_from(keys))
        inner = here[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            break
        here = inner
    here[key] = data.draw(VALUES)
    path = tmp_path_factory.mktemp("odd") / "x.json"
    path.write_text(json.dumps(whole))
    try:
        tables, _ = read_measurements(path)
    except SeerError:
        return
    assert all(np.isfinite(t.time_s).all() and (t.time_s > 0).all() for t in tables)


def test_a_data_type_that_is_no_word_is_not_recorded() -> None:
    call: Any = Call(SimpleNamespace(input_types=[[], 7, None]), False)
    for position in range(4):
        with pytest.raises(Unclear, match="not recorded"):
            call.dtype(position)
