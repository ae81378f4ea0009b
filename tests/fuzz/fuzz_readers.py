"""Broken files for every reader: each is read, or refused with an error of ours, and quickly.

`python tests/fuzz/fuzz_readers.py --inputs 200000` draws edits with Hypothesis, applies them to the
seeds beside this file, and hands the results to the reader that the folder of the seed names. Any
other exception, more than `--seconds` for one input or more than `--memory-mib` in all is a
failure: the input is kept under `found/` and the exit code is 1. Draws depend on `--start` and on
the number of the batch alone, so that a run can be repeated.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from seer.errors import SeerError

HERE = Path(__file__).resolve().parent
SEEDS = HERE / "seeds"
REPOSITORY = HERE.parent.parent
BATCH = 1000

Read = Callable[[Path], object]


class TooSlowError(BaseException):
    """An input took longer than allowed; no reader may catch it."""


def _readers() -> dict[str, Read]:
    """The reader for each folder of seeds."""
    from seer.readers import (
        read_calibration,
        read_cluster,
        read_framework,
        read_graph_template,
        read_job,
        read_layer_template,
        read_measurements,
        read_model,
    )
    from seer.readers.published_runs import read_published_runs
    from seer.readers.scenarios import read_scenarios
    from seer.readers.steps import read_step_time
    from seer.readers.traced import TraceOptions
    from seer.readers.traces import read_trace

    told = {"gpus": 16, "cluster": "dgx-h100", "model": "llama3-8b"}
    options = TraceOptions(gpus=8, model_parallel=2, topology=(4, 2), groups=(("1", (0, 1)),))
    return {
        "job": lambda path: read_job(str(path), told),
        "model": lambda path: read_model(str(path)),
        "cluster": lambda path: read_cluster(str(path)),
        "framework": lambda path: read_framework(str(path)),
        "graph": lambda path: read_graph_template(path, max_operators=20_000),
        "layer": read_layer_template,
        "calibration": lambda path: read_calibration(str(path)),
        "measurements": read_measurements,
        "runs": read_published_runs,
        "log": lambda path: read_step_time(str(path)),
        "scenarios": read_scenarios,
        "trace": lambda path: read_trace(path, options),
    }


def seeds() -> dict[str, list[tuple[str, bytes]]]:
    """(name, content) of the seeds by folder; samples of the repository are seeds too."""
    found: dict[str, list[tuple[str, bytes]]] = {name: [] for name in _readers()}
    for path in sorted(SEEDS.rglob("*")):
        if path.is_file():
            found[path.parent.name].append((path.name, path.read_bytes()))
    for folder, pattern in (
        ("measurements", "traces/nccl/*.*"),
        ("trace", "docs/examples/*.txt"),
        ("graph", "docs/examples/*.json"),
    ):
        for path in sorted(REPOSITORY.glob(pattern)):
            if path.suffix != ".md":
                found[folder].append((path.name, path.read_bytes()))
    found["calibration"].append(("small.json", _small_calibration()))
    return found


def _small_calibration() -> bytes:
    """A calibration of one curve of each family, cut out of a shipped one."""
    import json

    whole = json.loads((REPOSITORY / "calibration" / "a100-sxm.json").read_text())
    kept: dict[str, object] = {}
    for curve in whole["curves"]:
        kept.setdefault(str(curve.get("family", curve.get("form"))), curve)
    return json.dumps(whole | {"curves": list(kept.values())}).encode()


# ---- edits -------------------------------------------------------------------------------------

TOKENS = [
    *(b"{", b"}", b"[", b"]", b'"', b",", b":", b"\n", b"\0", b"\xff\xfe", b"\t", b"#", b"'"),
    *(b"null", b"true", b"NaN", b"-1", b"1e999", b"-0.0", b"0", b"1e308", b"1e-320"),
    *(b"9223372036854775808", b"99999999999999999999", b"2147483648", b"1000000000", b"0.5"),
    *(b'"x"', b"{}", b"[]", b"&a *a", b"!!python/object:os.system", b"<<: *a", b"$(id)", b"${X}"),
    b"[" * 4000,
    b'{"a":' * 4000,
    b"(" * 4000,
    b"\xff" * 10,
    b"9" * 5000,
]
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_VALUE = re.compile(rb'"[^"\n]{0,60}"|-?\d[\d.eE+-]*|true|false|null|\w+')

Edit = tuple[str, float, float, bytes]


def apply(data: bytes, edits: list[Edit], other: bytes) -> bytes:
    """The data with edits applied one after another; places are shares of the length."""
    for kind, where, extent, token in edits:
        at = int(where * len(data))
        end = min(len(data), at + 1 + int(extent**4 * len(data)))
        if kind == "cut":
            data = data[:at]
        elif kind == "delete":
            data = data[:at] + data[end:]
        elif kind == "repeat":
            data = data[:end] + data[at:end] * (1 + int(extent * 3)) + data[end:]
        elif kind == "insert":
            data = data[:at] + token + data[at:]
        elif kind == "flip" and data:
            at = min(at, len(data) - 1)
            data = data[:at] + bytes([data[at] ^ (1 << int(extent * 7))]) + data[at + 1 :]
        elif kind in ("number", "value"):
            spans = [m.span() for m in (_NUMBER if kind == "number" else _VALUE).finditer(data)]
            if spans:
                begin, stop = spans[int(where * (len(spans) - 1))]
                data = data[:begin] + token + data[stop:]
        elif kind == "splice":
            data = data[:at] + other[int(extent * len(other)) :]
        elif kind == "pack":
            packed = gzip.compress(data, mtime=0)
            data = packed[: max(20, int((1 - extent / 4) * len(packed)))]
        if len(data) > 2**20:
            return data[: 2**20]
    return data


KINDS = (
    *("cut", "delete", "repeat", "insert", "flip", "splice", "pack"),
    *("number",) * 4,
    *("value",) * 8,
)
"""Mostly other values in whole files: what no longer parses says little about a reader."""
_SHARE = st.floats(0, 1, exclude_max=True)
EDITS = st.lists(
    st.tuples(st.sampled_from(KINDS), _SHARE, _SHARE, st.sampled_from(TOKENS)),
    min_size=1,
    max_size=4,
)


# ---- running -----------------------------------------------------------------------------------


class Run:
    """Hands inputs to one reader and counts."""

    def __init__(self, folder: str, read: Read, place: Path, seconds: float) -> None:
        self.folder, self._read, self._place, self._seconds = folder, read, place, seconds
        self.inputs = self.refused = self.slowest_ms = 0
        self.failures: list[str] = []

    def __call__(self, name: str, data: bytes) -> None:
        path = self._place / name
        path.write_bytes(data)
        self.inputs += 1
        begin = time.perf_counter()
        signal.setitimer(signal.ITIMER_REAL, self._seconds)
        try:
            self._read(path)
        except SeerError as fault:
            self.refused += 1
            if not fault.what or len(str(fault)) > 20_000:
                self._keep(name, data, "an error that does not say what it is, or too much")
        except TooSlowError:
            self._keep(name, data, f"longer than {self._seconds:g} s")
        except Exception:
            self._keep(name, data, traceback.format_exc())
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self.slowest_ms = max(self.slowest_ms, int((time.perf_counter() - begin) * 1000))

    def _keep(self, name: str, data: bytes, why: str) -> None:
        lines = why.strip().splitlines()
        place = next((s.strip() for s in reversed(lines) if s.strip().startswith("File")), "")
        told = f"{self.folder}: {lines[-1][:160]} {place[-100:]}"
        if told in self.failures:
            return
        self.failures.append(told)
        found = HERE / "found" / self.folder
        found.mkdir(parents=True, exist_ok=True)
        kept = found / f"{len(self.failures)}-{name}"
        kept.write_bytes(data)
        print(f"FAILED {told}\n  kept as {kept}\n{why}", file=sys.stderr, flush=True)


def fuzz(inputs: int, start: int, seconds: float, only: str = "") -> list[Run]:
    """Read about `inputs` broken files, shared out evenly; one `Run` for each reader."""

    def too_slow(number: int, frame: FrameType | None) -> None:
        raise TooSlowError

    signal.signal(signal.SIGALRM, too_slow)
    runs = []
    available = {n: r for n, r in _readers().items() if not only or n == only}
    content = seeds()
    shares = {name: len(content[name]) for name in available}
    with tempfile.TemporaryDirectory() as folder:
        for name, read in available.items():
            place = Path(folder) / name
            place.mkdir()
            run = Run(name, read, place, seconds)
            runs.append(run)
            for seed_name, data in content[name]:
                run(seed_name, data)
            wanted = max(1, inputs * shares[name] // sum(shares.values()))
            for batch in range(start, start + -(-wanted // BATCH)):
                _batch(run, content[name], batch, min(BATCH, wanted - (batch - start) * BATCH))
            print(
                f"{name:<14}{run.inputs:>8,} inputs, {run.refused:,} refused, slowest "
                f"{run.slowest_ms:,} ms, {len(run.failures)} failures",
                flush=True,
            )
    return runs


def _batch(run: Run, content: list[tuple[str, bytes]], number: int, size: int) -> None:
    @seed(number)
    @settings(
        max_examples=size,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(content), st.sampled_from(content), EDITS)
    def one(chosen: tuple[str, bytes], other: tuple[str, bytes], edits: list[Edit]) -> None:
        run(chosen[0], apply(chosen[1], edits, other[1]))

    one()


def main(arguments: list[str] | None = None) -> int:
    """Fuzz and report; 1 where an input was neither read nor refused in time and memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=200_000)
    parser.add_argument("--start", type=int, default=0, help="number of the first batch")
    parser.add_argument("--seconds", type=float, default=20.0, help="most for one input")
    parser.add_argument("--memory-mib", type=int, default=1024, help="most in all")
    parser.add_argument("--only", default="", help="one reader")
    options = parser.parse_args(arguments)
    begin = time.perf_counter()
    runs = fuzz(options.inputs, options.start, options.seconds, options.only)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    failures = [told for run in runs for told in run.failures]
    if peak_mib > options.memory_mib:
        failures.append(f"memory: {peak_mib:,.0f} MiB")
    print(
        f"{sum(run.inputs for run in runs):,} inputs in {time.perf_counter() - begin:,.0f} s, "
        f"at most {peak_mib:,.0f} MiB, {len(failures)} failures"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    os.environ.setdefault("NO_COLOR", "1")
    sys.exit(main())
