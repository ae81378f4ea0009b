"""What could not be understood in a recording, in words, with the share of time it concerns."""

from __future__ import annotations

import os

import numpy as np

from seer.readers.kineto.recording import CONTRADICTED, Recording
from seer.readers.kineto.works import short_name

LONG_SIDE_SHARE = 0.01
"""Kernels on side streams that take more than this share of GPU time are named: they may be
communication that no pattern knows."""

SHOWN = 5


def warnings_of(recording: Recording) -> list[str]:
    """What could not be understood, with the share of the time it concerns."""
    found: list[str] = []
    for plan in recording.plans:
        for what, count in sorted(plan.trace.faults.items()):
            found.append(f"{os.path.basename(plan.trace.file)}: {count:,} {what}")
    found += _about_device(recording)
    counted = (
        "launches without a call",
        "operators that start before their call",
        CONTRADICTED,
    )
    known = recording.findings
    found += [f"{known[what]:,} {what}" for what in counted if known.get(what)]
    hidden = float(recording.duration_s[recording.is_hidden].sum())
    if hidden > 0:
        share = hidden / (hidden + float(recording.duration_s[recording.is_gpu].sum()))
        found.append(
            f"CUDA graphs whose kernels were not recorded stand for {share:.1%} of GPU time: "
            "gaps after their launch are taken as one operator each"
        )
    found += _about_collectives(recording)
    found += _side_streams(recording)
    return found


def _about_device(recording: Recording) -> list[str]:
    """A job on GPUs of which one side alone was recorded."""
    traces = [plan.trace for plan in recording.plans]
    devices = sorted({device for trace in traces if trace.is_on_host for device in trace.devices})
    if devices or any(trace.is_on_host and "nccl" in trace.backend for trace in traces):
        named = f" ({', '.join(devices[:3])})" if devices else ""
        return [
            f"no kernels of a GPU{named} were recorded: times are those of the host's operators, "
            "which end before the kernels that they launch; record with ProfilerActivity.CUDA"
        ]
    if not any(plan.launches.is_known for plan in recording.plans):
        return ["no calls of the host were recorded: gaps between kernels are played as they were"]
    return []


def _about_collectives(recording: Recording) -> list[str]:
    found = []
    graph, works = recording.graph, recording.works
    rows = recording.is_gpu & works.communicates[graph.work_id]
    total = float(recording.duration_s[recording.is_gpu].sum()) or 1.0
    if len(recording.plans) == 1 and rows.any():
        share = float(recording.duration_s[rows].sum()) / total
        found.append(
            "one rank was recorded: its collectives contain the waiting for the others and are "
            f"upper bounds ({share:.1%} of GPU time)"
        )
    elif len(recording.plans) > 1:
        for why, count in sorted(recording.joined.alone.items()):
            found.append(f"{count:,} {why}: not joined across ranks")
    unsized = rows & ~works.is_sized[graph.work_id]
    if unsized.any():
        share = float(recording.duration_s[unsized].sum()) / total
        found.append(
            f"{np.count_nonzero(unsized):,} communication operators do not say what they send "
            f"({share:.1%} of GPU time): they keep their recorded duration"
        )
    return found


def _side_streams(recording: Recording) -> list[str]:
    """Long kernels beside the busiest stream that were taken for computation."""
    seconds: dict[str, float] = {}
    total = 0.0
    for plan in recording.plans:
        gpu = plan.trace.gpu
        length = gpu.duration_us
        total += float(length.sum())
        lanes, counts = np.unique(gpu.lane, return_counts=True)
        if len(lanes) < 2 or plan.trace.is_on_host:
            continue
        main = lanes[np.argmax(counts)]
        talks = np.zeros(len(gpu), np.bool_)
        talks[plan.communication.row] = True
        rows = np.flatnonzero((gpu.lane != main) & ~talks & plan.trace.is_kernel)
        for row in rows[length[rows] > 0].tolist():
            name = short_name(plan.trace.name(gpu, row))
            seconds[name] = seconds.get(name, 0.0) + float(length[row])
    long = {k: v / total for k, v in seconds.items() if v > LONG_SIDE_SHARE * total}
    if not long:
        return []
    named = sorted(long.items(), key=lambda item: -item[1])[:SHOWN]
    text = ", ".join(f"{name} {share:.1%}" for name, share in named)
    return [
        f"kernels on side streams are taken for computation: {text} of GPU time; "
        "if they communicate, say so with --patterns"
    ]
