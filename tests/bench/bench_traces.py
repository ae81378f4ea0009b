"""Time the reading of large profiler traces, and assert how much was read.

    python tests/bench/bench_traces.py [--megabytes 200] [--output times.json]

One file of 200 MB, each event over several lines and four of five events a Python frame; then 16
ranks of 20 MB in parallel. Prints JSON; a time never fails anything.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from seer.readers.kineto.folder import read_ranks
from seer.readers.kineto.recording import record

RANKS, RANK_MEGABYTES = 16, 20
FRAMES = 12

HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
  "distributedInfo": {"backend": "nccl", "rank": %d, "world_size": 16},
  "with_stack": 1, "record_shapes": 1,
  "traceEvents": ["""
FRAME = """
  {
    "ph": "X", "cat": "python_function", "name": "torch/nn/modules/module.py(%d): _call_impl",
    "pid": 100, "tid": 100,
    "ts": %.3f, "dur": 20.500,
    "args": {
      "Python parent id": %d, "Python id": %d, "Ev Idx": %d
    }
  },"""
OPERATOR = """
  {
    "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 100, "tid": 100,
    "ts": %.3f, "dur": 15.123,
    "args": {
      "External id": %d, "Record function id": 0, "Concrete Inputs": ["", ""],
      "Input type": ["c10::BFloat16", "c10::BFloat16"],
      "Input Strides": [[4096, 1], [1, 4096]], "Input Dims": [[4096, 4096], [4096, 4096]]
    }
  },"""
LAUNCH = """
  {
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 100, "tid": 100,
    "ts": %.3f, "dur": 5.123,
    "args": {
      "External id": %d, "cbid": 211, "correlation": %d
    }
  },
  {
    "ph": "X", "cat": "kernel", "name": "sm90_xmma_gemm_bf16_tn_n", "pid": 0, "tid": 7,
    "ts": %.3f, "dur": 5.123,
    "args": {
      "External id": %d, "queued": 0, "device": 0, "context": 1, "stream": 7, "correlation": %d,
      "registers per thread": 168, "shared memory": 196608, "blocks per SM": 1.0,
      "grid": [132, 1, 1], "block": [384, 1, 1], "est. achieved occupancy %%": 19
    }
  },"""
TAIL = """
  {"ph": "i", "name": "Record Window End", "ts": 0.0}
  ],
  "displayTimeUnit": "ms"
}
"""


def write(path: Path, megabytes: int, rank: int = 0) -> int:
    """Write a trace of about this size; the number of kernels in it."""
    kernels, moment, size, blocks = 0, 1000.0, 0, []
    while size < megabytes * 2**20:
        kernels += 1
        parts = [
            FRAME % (i, moment + 0.1 * i, kernels, kernels + i, kernels * FRAMES + i)
            for i in range(FRAMES)
        ]
        parts.append(OPERATOR % (moment + 1, kernels))
        parts.append(LAUNCH % (moment + 2, kernels, kernels, moment + 8, kernels, kernels))
        blocks.append("".join(parts))
        size += len(blocks[-1])
        moment += 20.0
    path.write_text(HEAD % rank + "".join(blocks) + TAIL)
    return kernels


def timed(paths: list[Path]) -> tuple[dict[str, float], int]:
    """Wall and CPU seconds of reading and of making the graph; kernels that were read."""
    wall, cpu = time.perf_counter(), _cpu_s()
    traces, notes = read_ranks(paths)
    read_wall, read_cpu = time.perf_counter() - wall, _cpu_s() - cpu
    assert not notes
    assert len(traces) == len(paths)
    recording = record(traces)
    kernels = int(np.count_nonzero(recording.is_gpu))
    return {
        "read_s": read_wall,
        "read_cpu_s": read_cpu,
        "read_and_graph_s": time.perf_counter() - wall,
        "operators": float(len(recording.graph)),
    }, kernels


def _cpu_s() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def run(megabytes: int) -> dict[str, object]:
    """Both measurements."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one = folder / "one.json"
        expected = write(one, megabytes)
        single, kernels = timed([one])
        assert kernels == expected
        single["bytes"] = float(one.stat().st_size)
        single["peak_memory_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
        one.unlink()
        ranks = [folder / f"rank{r}.json" for r in range(RANKS)]
        expected = sum(write(path, RANK_MEGABYTES, r) for r, path in enumerate(ranks))
        many, kernels = timed(ranks)
        assert kernels == expected
        many["bytes"] = float(sum(path.stat().st_size for path in ranks))
    return {"one_file": single, f"{RANKS}_ranks": many}


def main() -> None:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    text = json.dumps(run(arguments.megabytes), indent=2)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
