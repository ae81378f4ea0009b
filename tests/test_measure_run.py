"""The measuring loop: rounds, resume, interruption, budget. No PyTorch: times are invented."""

from __future__ import annotations

import pytest

from seer.errors import UnreadableError, UsageError
from seer.measure import Item, Record, measure
from seer.measure.run import NotMeasurable

ITEMS = [
    Item("gemm", (("m", m), ("n", 2), ("k", 2), ("batch", 1)), "fp32", "forward") for m in (1, 2, 3)
]


class Clockwork:
    """Every sample takes as many seconds as it is samples in."""

    def __init__(self, breaks_at: int = -1) -> None:
        self.visits: list[float] = []
        self.breaks_at = breaks_at

    def sample(self, item: Item, count: int) -> list[float]:
        if len(self.visits) == self.breaks_at:
            raise KeyboardInterrupt
        self.visits.append(item.size["m"])
        return [item.size["m"]] * count


def record(**conditions: object) -> Record:
    return Record("a processor", "PyTorch", {"processes": 1, **conditions})


def test_every_item_gets_its_times_in_rounds() -> None:
    found, clockwork = record(), Clockwork()

    assert measure(ITEMS, found, clockwork, repeats=6, rounds=2)
    assert clockwork.visits[:3] == [1, 2, 3]
    assert sorted(clockwork.visits[3:]) == [1, 2, 3]  # in another order
    assert found.times_s == {item: [item.size["m"]] * 6 for item in ITEMS}


def test_few_repeats_are_taken_in_one_visit() -> None:
    clockwork = Clockwork()
    measure(ITEMS, record(), clockwork, repeats=3)
    assert clockwork.visits == [1, 2, 3]


def test_an_interruption_saves_what_is_done_and_the_next_run_takes_the_rest() -> None:
    saved: list[int] = []
    first, clockwork = record(), Clockwork(breaks_at=2)
    with pytest.raises(KeyboardInterrupt):
        measure(ITEMS, first, clockwork, repeats=3, save=lambda r: saved.append(len(r.times_s)))
    assert saved == [2]

    second, clockwork = record(), Clockwork()
    second.take_over(Record.from_json(first.to_json()))
    assert measure(ITEMS, second, clockwork, repeats=3)
    assert clockwork.visits == [3]
    assert [len(times) for times in second.times_s.values()] == [3, 3, 3]


def test_more_repeats_later_add_to_the_earlier_ones() -> None:
    found = record()
    measure(ITEMS, found, Clockwork(), repeats=3)
    measure(ITEMS, found, Clockwork(), repeats=5)
    assert [len(times) for times in found.times_s.values()] == [5, 5, 5]


@pytest.mark.parametrize("name", ["processes", "threads", "clock", "environment"])
def test_times_under_other_conditions_are_not_mixed(name: str) -> None:
    with pytest.raises(UsageError, match="other conditions") as fault:
        record(**{name: 2}).take_over(record())
    assert "another folder" in fault.value.hint


def test_another_machine_is_another_condition() -> None:
    with pytest.raises(UsageError, match="other conditions"):
        Record("a GPU", "PyTorch", {"processes": 1}).take_over(record())


def test_the_budget_ends_the_run_before_an_item_begins() -> None:
    seconds = iter(range(100))
    found = record()
    done = measure(
        ITEMS, found, Clockwork(), repeats=3, budget_s=2.5, clock=lambda: float(next(seconds))
    )
    assert not done
    assert len(found.times_s) == 2  # begun after 1 and after 2 seconds


def test_an_item_that_cannot_run_is_named_and_not_tried_again() -> None:
    class Small(Clockwork):
        def sample(self, item: Item, count: int) -> list[float]:
            if item.size["m"] == 2:
                raise NotMeasurable("out of memory")
            return super().sample(item, count)

    found = record()
    assert measure(ITEMS, found, Small(), repeats=6, rounds=2)
    assert found.skipped == {ITEMS[1]: "out of memory"}
    assert found.to_json()["skipped"][0]["reason"] == "out of memory"
    assert ITEMS[1] not in found.times_s


def test_other_measurements_alternate_with_the_items() -> None:
    seen: list[tuple[int, int]] = []
    between = lambda done, total: seen.append((done, total))  # noqa: E731
    measure(ITEMS, record(), Clockwork(), repeats=6, rounds=2, between=between)
    assert seen == [(n, 6) for n in range(1, 7)]


@pytest.mark.parametrize(
    "data",
    [
        {"schema": "seer.calibration/1"},
        {"schema": "seer.measurements/1"},
        {"schema": "seer.measurements/1", "measurements": [{"kind": "gemm"}]},
        {"schema": "seer.measurements/1", "measurements": [3]},
    ],
)
def test_something_else_in_the_folder_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(UnreadableError):
        Record.from_json(data)
