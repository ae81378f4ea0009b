"""Where plans are evaluated: here, in processes of this machine, or on a Dask or Ray cluster.

The one interface is `concurrent.futures.Executor`: the standard library's own process pool, Dask's
executor, and Ray's futures behind `submit`. What distributes work, finds workers and notices that
one died is theirs; `run` only keeps account of what came back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from seer import _kernels
from seer.errors import UsageError, nearest
from seer.processes import pool, usable_cores

SCHEMES = ("auto", "here", "processes", "processes:N", "dask://HOST:PORT", "ray://HOST:PORT")
"""What `--on` takes; `local` in place of HOST:PORT starts a cluster on this machine."""

CONNECT_S = 30
"""How long a scheduler may take to answer."""


@dataclass(frozen=True)
class Workers:
    """An executor, how many evaluations it runs at a time, and how to leave it."""

    executor: Executor
    count: int
    close: Callable[[], None]


def check_place(on: str) -> None:
    """Raise UsageError where `on` names no place that plans can be evaluated at."""
    scheme, _, rest = on.partition(":")
    known = {"auto", "here", "processes", "dask", "ray"}
    if scheme not in known:
        raise UsageError(f"'{on[:80]}' is no place", where="--on", hint=nearest(on, SCHEMES))
    if scheme in ("auto", "here") and rest:
        raise UsageError(f"'{on[:80]}' is no place", where="--on", hint=scheme)
    if scheme == "processes" and rest and not (rest.isdecimal() and 0 < int(rest) <= 4096):
        what = f"'{rest[:80]}' is not a number of processes"
        raise UsageError(what, where="--on", hint="processes:4")
    if scheme in ("dask", "ray"):
        if not rest.removeprefix("//"):
            what = f"'{on[:80]}' does not say where the cluster is"
            raise UsageError(what, where="--on", hint=f"{scheme}://host:port or {scheme}://local")
        package = "distributed" if scheme == "dask" else "ray"
        if find_spec(package) is None:
            what = f"{scheme.capitalize()} is not installed"
            hint = f"pip install 'seer-forecast[{scheme}]'"
            raise UsageError(what, where="--on", hint=hint)


def open_workers(on: str) -> Workers:
    """The workers of a place; raises UsageError when there is nobody."""
    check_place(on)
    scheme, _, rest = on.partition(":")
    if scheme == "processes":
        return _processes(int(rest) if rest else usable_cores())
    if scheme == "dask":
        return _dask(rest.removeprefix("//"))
    if scheme == "ray":
        return _ray(rest.removeprefix("//"))
    return Workers(Here(), 1, lambda: None)


class Here(Executor):
    """Runs what is submitted at once, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """A future that is done already. An interrupt is the caller's, not the future's."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as fault:
            future.set_exception(fault)
        return future


def _processes(count: int) -> Workers:
    workers = pool(count, ["seer.whatif.chunk"], ready=_kernels.load)  # they play many plans
    return Workers(workers, count, lambda: workers.shutdown(wait=True, cancel_futures=True))


def _dask(address: str) -> Workers:
    from distributed import Client

    try:
        if address == "local":
            client = Client(n_workers=usable_cores(), threads_per_worker=1, dashboard_address=None)
        else:
            client = Client(f"tcp://{address}", timeout=CONNECT_S)
    except (OSError, TimeoutError, ValueError) as fault:
        raise _nobody(f"dask://{address}", fault) from None
    count = sum(client.nthreads().values())
    if not count:
        client.close()
        raise _nobody(f"dask://{address}", "the scheduler has no workers")
    # Not pure: a chunk that is sent again is run again. Retries are counted here, not there.
    return Workers(client.get_executor(pure=False), count, client.close)


def _ray(address: str) -> Workers:
    import ray

    ours = not ray.is_initialized()
    if ours:
        try:
            where = address if address in ("local", "auto") else f"ray://{address}"
            ray.init(address=where, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as fault:
            raise _nobody(f"ray://{address}", fault) from None
    count = int(ray.cluster_resources().get("CPU", 0))
    if not count:
        raise _nobody(f"ray://{address}", "the cluster has no CPUs")
    return Workers(_RayExecutor(), count, ray.shutdown if ours else lambda: None)


class _RayExecutor(Executor):
    """Ray's futures under the name that the standard library gives them."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        import ray

        if fn not in _REMOTE:
            # A worker that dies is replaced by Ray and the chunk run again there.
            _REMOTE[fn] = ray.remote(num_cpus=1, max_retries=2)(fn)
        future: Future[Any] = _REMOTE[fn].remote(*args, **kwargs).future()
        return future


_REMOTE: dict[Callable[..., Any], Any] = {}


def _nobody(where: str, why: object) -> UsageError:
    text = " ".join(str(why).split())[:200]
    hint = "is it running, and is that its address?"
    return UsageError("no cluster answers", where=f"--on {where}", why=text, hint=hint)
