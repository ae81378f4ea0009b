"""The processes that measure: one, or as many as a job has ranks on this machine.

Ranks of one machine share its caches, memory bandwidth, power and links, so an operator of a job
of two ranks is measured by two processes at once. Times of all of them count.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from seer.errors import UsageError
from seer.measure import clock, kernels
from seer.measure.items import COLLECTIVE_NAMES, Item
from seer.measure.run import NotMeasurable

Task = Callable[..., Any]


class Team:
    """A context manager: `call` runs a function in every process and returns all results.

    Parameters
    ----------
    processes : int
        This process is rank 0; the others are started for it.
    device : str
        "cpu" or "cuda"; on a GPU each rank has one of its own.
    threads : int
        Threads of a process on a CPU.
    rotation_bytes : float
        See `kernels.calls_of`.
    busy : bool
        See `clock.timed`; collectives are always timed by the wall.
    """

    def __init__(
        self,
        processes: int,
        device: str,
        threads: int,
        rotation_bytes: float,
        busy: bool = False,
    ) -> None:
        self.processes, self.device, self.busy = processes, device, busy
        self.threads, self.rotation_bytes = threads, rotation_bytes
        self._helpers: list[Any] = []

    def __enter__(self) -> Team:
        if self.processes > 1:
            from torch import multiprocessing

            port = _free_port()
            context = multiprocessing.get_context("spawn")
            shared = (self.processes, port, self.device, self.threads)
            for rank in range(1, self.processes):
                helper = context.Process(target=_serve, args=(rank, *shared), daemon=True)
                helper.start()
                self._helpers.append(helper)
            _join(0, *shared)
        else:
            _set_up(0, self.device, self.threads)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.processes > 1:
            if kind is None:
                self._broadcast(None)
                self._leave()
            for helper in self._helpers:
                helper.join(5 if kind is None else 0)
                if helper.is_alive():
                    helper.terminate()
                    helper.join(5)

    def call(self, task: Task, *arguments: Any) -> list[Any]:
        """Results of `task(*arguments)` in every process, by rank; task is a module's function.

        Raises what the task raises in any of them; NotMeasurable wins.
        """
        if self.processes == 1:
            return [task(*arguments)]
        self._broadcast((task, arguments))
        found = _gathered(_tried(task, arguments))
        faults = [fault for _, fault in found if fault is not None]
        if faults:
            raise next((f for f in faults if isinstance(f, NotMeasurable)), faults[0])
        return [value for value, _ in found]

    def sample(self, item: Item, count: int) -> list[float]:
        """`count` times or a few more, pooled over the processes; seconds of one call."""
        each = -(-count // self.processes)
        arguments = (item, each, self.device, self.rotation_bytes, self.busy)
        return [t for times in self.call(sample_item, *arguments) for t in times]

    def _broadcast(self, task: Any) -> None:
        from torch import distributed

        distributed.broadcast_object_list([task], src=0)

    def _leave(self) -> None:
        from torch import distributed

        distributed.destroy_process_group()


# ---- in every process -----------------------------------------------------------------------


def sample_item(
    item: Item, count: int, device: str, rotation_bytes: float, busy: bool = False
) -> list[float]:
    """Times of one item in this process; all processes of a team call it together."""
    is_collective = item.kind in COLLECTIVE_NAMES
    try:
        if is_collective:
            calls, busy = collective_calls(item, device), False
        else:
            calls = kernels.calls_of(item, device, rotation_bytes)
        together(None)
        loops = _loops(calls, device, busy, is_collective)
        if device == "cuda" and not is_collective:
            clock.warm(calls)
    except RuntimeError as error:
        raise NotMeasurable(str(error).splitlines()[0]) from None
    loops = together(loops)
    times = []
    for _ in range(count):
        together(None)
        times.append(clock.timed(calls, device, loops, busy))
    return times


def _loops(calls: list[Callable[[], Any]], device: str, busy: bool, is_collective: bool) -> int:
    """Calls per sample; ranks of a collective must make equally many calls while finding out."""
    if not is_collective:
        return clock.calls_per_sample(calls, device, busy)
    clock.timed(calls, device, clock.WARM_UP_CALLS)
    once = clock.timed(calls, device, clock.WARM_UP_CALLS)
    return max(1, round(clock.SAMPLE_S[device] / max(once, 1e-7)))


def together(value: Any) -> Any:
    """Wait for the other processes; returns the value of rank 0."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return value
    box = [value]
    distributed.broadcast_object_list(box, src=0)
    return box[0]


def collective_calls(item: Item, device: str) -> list[Callable[[], Any]]:
    """Two copies of one collective over all processes."""
    import torch
    from torch import distributed

    ranks = int(item.size["ranks"])
    if not distributed.is_initialized() or distributed.get_world_size() != ranks:
        here = distributed.get_world_size() if distributed.is_initialized() else 1
        raise NotMeasurable(f"a group of {ranks} ranks, but {here} processes measure here")
    dtype = getattr(torch, kernels.DTYPES[item.dtype])
    element = torch.empty(0, dtype=dtype).element_size()
    whole = max(1, int(item.size["message_bytes"]) // element // ranks) * ranks

    def make() -> Callable[[], Any]:
        full = torch.zeros(whole, dtype=dtype, device=device)
        part = torch.zeros(whole // ranks, dtype=dtype, device=device)
        if item.kind == "all_reduce":
            return lambda: distributed.all_reduce(full)
        if item.kind == "all_gather":
            return lambda: distributed.all_gather_into_tensor(full, part)
        if item.kind == "reduce_scatter":
            return lambda: distributed.reduce_scatter_tensor(part, full)
        if item.kind == "broadcast":
            return lambda: distributed.broadcast(full, src=0)
        if item.kind == "all_to_all":
            other = torch.zeros_like(full)
            return lambda: distributed.all_to_all_single(other, full)
        raise NotMeasurable(f"the collective {item.kind} is not measured")

    return [make(), make()]


def hidden_share(message_bytes: int, device: str) -> float:
    """How much of an all-reduce hides behind matrix products that run beside it, 0 to 1.

    (alone + alone - together) / the shorter of the two. On a CPU the threads that communicate take
    the cores that compute, so little or nothing hides.
    """
    import torch
    from torch import distributed

    buffer = torch.zeros(message_bytes // 4, device=device)
    a, b = (torch.randn(512, 512, device=device) for _ in range(2))

    def compute(count: int) -> None:
        for _ in range(count):
            a @ b

    def communicate() -> Any:
        return distributed.all_reduce(buffer, async_op=True)

    communicate().wait()
    compute(2)
    communication = _seconds(lambda: communicate().wait(), device)
    one = _seconds(lambda: compute(8), device) / 8
    count = together(max(1, round(communication / one)))
    alone, both = [], []
    for _ in range(7):
        together(None)
        alone.append(_seconds(lambda: compute(count), device))
        together(None)

        def side_by_side() -> None:
            handle = communicate()
            compute(count)
            handle.wait()

        both.append(_seconds(side_by_side, device))
    compute_s = sorted(alone)[3]
    hidden = communication + compute_s - sorted(both)[3]
    return float(min(1.0, max(0.0, hidden / min(communication, compute_s))))


def _seconds(call: Callable[[], Any], device: str) -> float:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


# ---- starting and stopping ------------------------------------------------------------------


def _set_up(rank: int, device: str, threads: int) -> None:
    import torch

    torch.manual_seed(rank)
    if device == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(threads)


def _join(rank: int, processes: int, port: int, device: str, threads: int) -> None:
    from torch import distributed

    _set_up(rank, device, threads)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=processes,
    )


def _serve(rank: int, processes: int, port: int, device: str, threads: int) -> None:
    """A helper's life: do what rank 0 does until it says stop. Ctrl-C is rank 0's to handle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from torch import distributed

    _join(rank, processes, port, device, threads)
    while True:
        box: list[Any] = [None]
        distributed.broadcast_object_list(box, src=0)
        if box[0] is None:
            distributed.destroy_process_group()
            return
        task, arguments = box[0]
        _gathered(_tried(task, arguments))


def _tried(task: Task, arguments: tuple[Any, ...]) -> tuple[Any, Exception | None]:
    try:
        return task(*arguments), None
    except Exception as fault:
        return None, fault


def _gathered(value: Any) -> list[Any]:
    from torch import distributed

    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, value)
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def require_torch(device: str) -> None:
    """Raise UsageError, with what to do, where PyTorch or the device is missing."""
    try:
        import torch
    except ImportError:
        raise UsageError(
            "measuring needs PyTorch, which is not installed",
            hint="pip install 'seer-forecast[measure]' (or the PyTorch build of your accelerator)",
        ) from None
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            "PyTorch sees no GPU here",
            where="--device cuda",
            hint="--device cpu, or a PyTorch build for this GPU",
        )
