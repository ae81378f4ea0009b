"""Pipelines of torch.distributed.pipelining, as TorchTitan and AutoModel name them."""

from __future__ import annotations

from seer.readers.doors.arguments import Arguments

SCHEDULES = {
    "1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleaved1f1b": "interleaved",
    "interleavedzerobubble": "zb-h1",
    "zbvzerobubble": "zb-v",
    "dualpipev": "dualpipev",
}


def schedule_of(args: Arguments, name: str) -> tuple[str, str]:
    """The schedule that a setting names, "1F1B" where it says nothing, and its word in small.

    Raises UsageError for one that is not played.
    """
    word = args.text(name) or "1F1B"
    small = word.replace("_", "").lower()
    if small not in SCHEDULES:
        why = "schedules that are played: " + ", ".join(sorted(SCHEDULES))
        raise args.fault((name,), word, why)
    return SCHEDULES[small], small


def flushes(local: int, micro: int, total: int, replicas: int) -> dict[str, int]:
    """Micro-batches of one run of the schedule, where gradients accumulate over several.

    `local` sequences are one run, in micro-batches of `micro`; a step has `total` of all replicas.
    """
    return {"flush_every": local // micro} if local > micro and total > local * replicas > 0 else {}
