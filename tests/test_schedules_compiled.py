"""Schedules that place weight gradients: compiled code and plain Python agree."""

from __future__ import annotations

import numpy as np
import pytest

from seer import _kernels
from seer.workload.schedules import SCHEDULES, Costs, Schedule

COSTS = Costs(1.0, 1.3, 0.9)


def programs(schedule: Schedule) -> list[list[int]]:
    return [
        np.stack([order.slot, order.chunk, order.micro_batch]).ravel().tolist()
        for order in schedule.orders
    ]


@pytest.mark.parametrize(("name", "vpp"), [("zb-1p", 1), ("zb-2p", 1), ("zb-v", 2), ("v-min", 2)])
def test_weight_gradients_lie_where_plain_python_puts_them(name, vpp, monkeypatch):
    monkeypatch.setattr(_kernels, "worth_it", lambda operators: False)
    plain = SCHEDULES[name](4, vpp, 13, COSTS)
    compiled = []

    def counted(functions, arguments):
        compiled.append(_kernels_run(functions, arguments))
        return compiled[-1]

    _kernels_run = _kernels.run_linked
    monkeypatch.setattr(_kernels, "worth_it", lambda operators: True)
    monkeypatch.setattr(_kernels, "run_linked", counted)
    assert programs(SCHEDULES[name](4, vpp, 13, COSTS)) == programs(plain)
    assert compiled
    assert all(compiled)


def test_a_schedule_is_the_same_without_numba(monkeypatch):
    monkeypatch.setattr(_kernels, "worth_it", lambda operators: True)
    monkeypatch.setattr(_kernels, "run_linked", lambda functions, arguments: False)
    without = SCHEDULES["zb-1p"](3, 1, 7, COSTS)
    monkeypatch.undo()
    assert programs(without) == programs(SCHEDULES["zb-1p"](3, 1, 7, COSTS))
