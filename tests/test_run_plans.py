"""Plans over workers: each outcome exactly once, wherever it is made and whoever dies meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from seer.errors import UsageError
from seer.plans import evaluate
from seer.readers import read_calibration, read_job, write_calibration
from seer.spec import Job
from seer.whatif.chunk import LOST_REASON, Outcome, Task
from seer.whatif.executors import check_place
from seer.whatif.run import run_plans

GRID = [(tp, micro) for tp in (2, 4, 8) for micro in (1, 2, 4)]


def jobs() -> list[Task]:
    made = [
        read_job("llama3-8b-64xh100", {"parallelism.tp": tp, "training.micro_batch": micro})
        for tp, micro in GRID
    ]
    return list(enumerate(made * 3))


@pytest.fixture(scope="module")
def expected() -> list[float]:
    return [evaluate(job).iteration_time_s for _, job in jobs()]


def times(outcomes: list[Outcome]) -> list[float]:
    """Iteration times by number; fails when one is missing, twice, or refused."""
    assert sorted(outcome.index for outcome in outcomes) == list(range(len(outcomes)))
    plans = [o.plan for o in sorted(outcomes, key=lambda o: o.index)]
    return [plan.iteration_time_s for plan in plans if plan is not None]


def run_and_kill(on: str, kill: Callable[[], None]) -> list[Outcome]:
    """Run the plans and kill a worker after the first outcome."""
    outcomes: list[Outcome] = []
    for outcome in run_plans(jobs(), on):
        if not outcomes:
            kill()
        outcomes.append(outcome)
    return outcomes


@pytest.mark.parametrize("on", ["here", "processes:2", "auto"])
def test_every_plan_comes_back_once_with_its_own_time(on, expected):
    assert times(list(run_plans(jobs(), on))) == expected


def test_no_plans_are_no_outcomes():
    assert list(run_plans([], "auto")) == []


def test_a_plan_that_cannot_run_is_an_outcome_with_its_reason():
    job = read_job("llama3-8b-64xh100")
    wrong = replace(job, parallelism=replace(job.parallelism, schedule="nobody's"))
    (outcome,) = run_plans([(7, wrong)], "here")
    assert outcome.index == 7
    assert outcome.plan is None
    assert outcome.refusal is not None
    assert outcome.refusal.reason


def test_a_killed_process_loses_no_plan_and_counts_none_twice(expected):
    def kill() -> None:
        victim = multiprocessing.active_children()[0]
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)

    assert times(run_and_kill("processes:2", kill)) == expected


class Deadly:
    """Whoever unpickles it is gone."""

    def __reduce__(self) -> Any:
        return os._exit, (1,)


def test_a_plan_that_kills_every_worker_is_refused_alone():
    tasks = jobs()[:6]
    name: Any = Deadly()
    tasks[2] = 2, replace(tasks[2][1], name=name)
    outcomes = sorted(run_plans(tasks, "processes:2"), key=lambda o: o.index)
    assert [o.index for o in outcomes] == list(range(6))
    assert [o.refusal.reason for o in outcomes if o.refusal] == [LOST_REASON]
    assert outcomes[2].plan is None


def test_workers_get_calibrations_that_are_no_shipped_ones(tmp_path, monkeypatch):
    path = tmp_path / "mine.json"
    write_calibration(read_calibration("h100-sxm"), path)
    job = read_job("llama3-8b-64xh100", {"calibration": str(path)})
    (outcome,) = run_plans([(0, job)], "processes:1")
    assert outcome.plan is not None
    assert outcome.plan.iteration_time_s == evaluate(job).iteration_time_s


@pytest.mark.parametrize(
    ("on", "hint"),
    [
        ("cloud", "nearest|did you mean|processes"),
        ("processes:0", "processes:4"),
        ("processes:many", "processes:4"),
        ("here:3", "here"),
    ],
)
def test_a_place_that_is_none_is_refused(on, hint):
    with pytest.raises(UsageError, match=hint):
        check_place(on)


# ---- clusters ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dask_cluster() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed", reason="the extra [dask] is not installed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, protocol="tcp"
    ) as cluster:
        yield cluster


@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_gives_the_same_times_though_a_worker_is_killed(dask_cluster, expected):
    on = dask_cluster.scheduler_address.replace("tcp", "dask")
    killed = [dask_cluster.workers[0].process.pid]
    assert times(run_and_kill(on, lambda: os.kill(killed[0], signal.SIGKILL))) == expected


@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_that_nobody_runs_is_named(monkeypatch):
    pytest.importorskip("distributed", reason="the extra [dask] is not installed")
    monkeypatch.setattr("seer.whatif.executors.CONNECT_S", 1)
    with pytest.raises(UsageError, match="no cluster answers"):
        list(run_plans(jobs(), "dask://127.0.0.1:9"))


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Any]:
    ray = pytest.importorskip("ray", reason="the extra [ray] is not installed")
    ray.init(address="local", num_cpus=2, log_to_driver=False, include_dashboard=False)
    yield ray
    ray.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_a_ray_cluster_gives_the_same_times_though_a_worker_is_killed(ray_cluster, expected):
    def pid() -> int:
        time.sleep(0.3)  # so that both workers take one
        return os.getpid()

    remote = ray_cluster.remote(pid)
    workers = set(ray_cluster.get([remote.remote() for _ in range(4)]))

    def kill() -> None:
        os.kill(min(workers), signal.SIGKILL)

    assert times(run_and_kill("ray://auto", kill)) == expected


@pytest.mark.parametrize(("scheme", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_a_cluster_without_its_extra_says_what_to_install(scheme, package, monkeypatch):
    monkeypatch.setattr("seer.whatif.executors.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=rf"seer-forecast\[{scheme}\]"):
        check_place(f"{scheme}://host:1")


def test_a_cluster_without_an_address_is_refused():
    with pytest.raises(UsageError, match="where the cluster is"):
        check_place("dask://")


def test_jobs_are_taken_no_further_ahead_than_the_workers_need():
    taken: list[int] = []

    def tasks() -> Iterator[tuple[int, Job]]:
        for index, job in jobs():
            taken.append(index)
            yield index, job

    outcomes = run_plans(tasks(), "here")
    next(outcomes)
    assert len(taken) <= 3
    outcomes.close()
