"""Pipeline schedules: what order the stages run in, that it can run, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from schedule_player import halves, play_slowly

from seer.errors import InfeasibleError
from seer.workload.schedules import SCHEDULES, Costs, Order, Schedule, Slot, repeated

LETTERS = {
    Slot.forward: "F",
    Slot.backward: "B",
    Slot.input_grad: "I",
    Slot.weight_grad: "W",
}
TWO_CHUNKS = {"zb-v", "v-half", "v-min", "dualpipev"}
LOOPED = {"gpipe", "interleaved", "combined-1f1b"}


def spelled(order: Order) -> str:
    """Pass, chunk letter and micro-batch number: "Fa0 Bb1"; overlapped passes joined by "&"."""
    words = []
    for i in range(len(order)):
        first, second = Slot(order.slot[i]), ""
        if first == Slot.overlapped:
            first = Slot.forward
            second = f"&B{'abcdefgh'[order.other_chunk[i]]}{order.other_micro_batch[i]}"
        words.append(f"{LETTERS[first]}{'abcdefgh'[order.chunk[i]]}{order.micro_batch[i]}{second}")
    return " ".join(words)


@st.composite
def drawn(draw: st.DrawFn) -> tuple[str, int, int, int, Costs]:
    """A schedule that can be had: its name, pp, vpp, micro-batches, and costs."""
    name = draw(st.sampled_from(sorted(SCHEDULES)))
    pp = draw(st.sampled_from([2, 4, 6]) if name == "dualpipe" else st.integers(1, 6))
    vpp, micro_batches = 1, draw(st.integers(1, 20))
    if name in TWO_CHUNKS:
        vpp = 2
    elif name in ("gpipe", "interleaved"):
        vpp = draw(st.integers(1, 3))
    elif name == "combined-1f1b" and pp > 1:
        vpp = draw(st.integers(2, 3))
    if name == "interleaved" or (vpp > 1 and name == "combined-1f1b"):
        micro_batches = pp * draw(st.integers(1, 3))
    elif name.startswith("dualpipe"):
        micro_batches = 2 * pp + 2 * draw(st.integers(0, 4))
    cost = st.sampled_from([0.5, 1.0, 1.5, 2.0, 5.0])
    return name, pp, vpp, micro_batches, Costs(draw(cost), draw(cost), draw(cost))


def make(name: str, pp: int, vpp: int, micro_batches: int, costs: Costs) -> Schedule:
    return SCHEDULES[name](pp, vpp, micro_batches, costs)


@given(drawn())
def test_every_pass_of_every_micro_batch_runs_once(case: tuple[str, int, int, int, Costs]) -> None:
    _, pp, vpp, micro_batches, _ = case
    schedule = make(*case)
    ran = [half for s in range(pp) for slot in halves(schedule, s) for half in slot]
    forwards = {(v, m) for what, v, m in ran if what == Slot.forward}
    whole = {(v, m) for what, v, m in ran if what == Slot.backward}
    inputs = {(v, m) for what, v, m in ran if what == Slot.input_grad}
    weights = {(v, m) for what, v, m in ran if what == Slot.weight_grad}
    stages = pp * vpp
    assert forwards == {(v, m) for v in range(stages) for m in range(micro_batches)}
    assert whole | inputs == forwards
    assert not whole & inputs
    assert inputs == weights
    assert len(ran) == len(forwards) + len(whole) + 2 * len(inputs)
    assert schedule.virtual_stages == stages
    assert len(schedule.orders) == pp


@given(drawn())
def test_no_schedule_waits_for_itself(case: tuple[str, int, int, int, Costs]) -> None:
    costs = case[-1]
    # the player refuses a program that gets stuck; it starts a pass only after what it needs
    played = play_slowly(make(*case), costs.forward, costs.input_grad, costs.weight_grad)
    assert played.makespan >= max(played.busy)


@given(drawn())
def test_each_stage_runs_forward_then_gradients_of_a_micro_batch(
    case: tuple[str, int, int, int, Costs],
) -> None:
    schedule = make(*case)
    for stage in range(case[1]):
        flat = [half for slot in halves(schedule, stage) for half in slot]
        place = {half: i for i, half in enumerate(flat)}
        for (what, v, m), i in place.items():
            if what in (Slot.backward, Slot.input_grad):
                assert place[Slot.forward, v, m] < i
            elif what == Slot.weight_grad:
                assert place[Slot.input_grad, v, m] < i


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_sixteen_stages_and_128_micro_batches_are_laid_out_whole(name: str) -> None:
    vpp = 2 if name in TWO_CHUNKS | {"interleaved", "combined-1f1b"} else 1
    schedule = SCHEDULES[name](16, vpp, 128)
    passes = vpp * 128  # DualPipe: two chunks, each for half of the micro-batches
    for order in schedule.orders:
        _, flat = order.halves()
        assert (flat.slot == Slot.forward).sum() == passes
        assert np.isin(flat.slot, (Slot.backward, Slot.input_grad)).sum() == passes


def test_gpipe_runs_all_forwards_then_all_backwards() -> None:
    assert spelled(SCHEDULES["gpipe"](4, 1, 3).orders[0]) == "Fa0 Fa1 Fa2 Ba0 Ba1 Ba2"


def test_1f1b_warms_up_by_its_distance_from_the_last_stage() -> None:
    # figure 4 of Narayanan et al. (SC 2021), devices 4 and 1 of 4
    assert spelled(SCHEDULES["1f1b"](4, 1, 3).orders[3]) == "Fa0 Ba0 Fa1 Ba1 Fa2 Ba2"
    assert (
        spelled(SCHEDULES["1f1b"](4, 1, 5).orders[0]) == "Fa0 Fa1 Fa2 Fa3 Ba0 Fa4 Ba1 Ba2 Ba3 Ba4"
    )


def test_interleaved_order_is_megatrons_for_two_stages_and_two_chunks() -> None:
    # warm-up of stage 1: (2 - 1 - 1) * 2 + (2 - 1) * 2 = 2 forwards
    assert spelled(SCHEDULES["interleaved"](2, 2, 4).orders[1]) == (
        "Fa0 Fa1 Fb0 Bb0 Fb1 Bb1 Fa2 Ba0 Fa3 Ba1 Fb2 Bb2 Fb3 Bb3 Ba2 Ba3"
    )


def test_zb_h1_delays_the_weight_gradients_of_a_stage_by_its_number() -> None:
    schedule = SCHEDULES["zb-h1"](3, 1, 4)
    assert spelled(schedule.orders[0]) == "Fa0 Fa1 Fa2 Ia0 Wa0 Fa3 Ia1 Wa1 Ia2 Wa2 Ia3 Wa3"
    assert spelled(schedule.orders[2]) == "Fa0 Ia0 Fa1 Ia1 Fa2 Ia2 Wa0 Fa3 Ia3 Wa1 Wa2 Wa3"


def test_zb_2p_warms_up_as_zb_h2_when_passes_are_equal() -> None:
    # figure 3 (bottom) of Qi et al. (ICLR 2024): 2 (p - s) - 1 forwards before the first gradient
    for stage, order in enumerate(SCHEDULES["zb-2p"](4, 1, 12).orders):
        assert spelled(order).split().index("Ia0") == 2 * (4 - stage) - 1


def test_the_ends_of_the_v_are_on_the_first_stage_and_its_turn_on_the_last() -> None:
    schedule = SCHEDULES["zb-v"](3, 2, 4)
    assert schedule.virtual_stage.tolist() == [[0, 5], [1, 4], [2, 3]]
    # by hand: micro-batch 0 is back on stage 0 after the 2 * 3 - 1 forwards that lie in between
    first = "Fa0 Fa1 Fa2 Fa3 Fa4 Fb0 Ib0 Wb0 Fb1 Ib1 Wb1 Fb2 Ib2 Wb2 Fa5 Ia0 Wa0 Fb3 Ib3 Wb3"
    assert spelled(SCHEDULES["zb-v"](3, 2, 9).orders[0]).startswith(first)


def test_dualpipe_runs_its_eight_steps() -> None:
    # p = 2, 6 micro-batches, three from each end: no steps 1, 3, 5 and 7. Stage 0 runs F0 F1,
    # then 3 - 2 + 0 + 1 = 2 times F0 B1 and F1 B0 (apart the first time), then B1 B0, then W.
    schedule = SCHEDULES["dualpipe"](2, 1, 6)
    assert spelled(schedule.orders[0]) == ("Fa0 Fb3 Fa1 Bb3 Fb4&Ba0 Fa2&Bb4 Fb5&Ba1 Bb5 Ia2 Wa2")
    assert spelled(schedule.orders[1]) == ("Fb3 Fa0 Fb4 Ba0 Fa1&Bb3 Fb5&Ba1 Fa2&Bb4 Ba2 Ib5 Wb5")
    assert schedule.virtual_stage.tolist() == [[0, 1], [1, 0]]
    assert schedule.replica.tolist() == [[0, 1], [0, 1]]


def test_dualpipev_is_dualpipe_folded_at_the_middle() -> None:
    # stage s of DualPipeV on 4 stages runs what stage s of DualPipe on 8 does, with both
    # directions' micro-batches taken as those of the two chunks
    folded, both = SCHEDULES["dualpipev"](4, 2, 10), SCHEDULES["dualpipe"](8, 1, 20)
    for stage in range(4):
        here, there = folded.orders[stage], both.orders[stage]
        np.testing.assert_array_equal(here.slot, there.slot)
        np.testing.assert_array_equal(here.chunk, there.chunk)
        np.testing.assert_array_equal(here.micro_batch, there.micro_batch - 10 * there.chunk)


def test_the_halves_of_overlapped_slots_are_a_forward_and_a_backward() -> None:
    order = SCHEDULES["dualpipe"](2, 1, 6).orders[0]
    position, flat = order.halves()
    assert spelled(flat) == spelled(order).replace("&", " ")
    assert position.tolist() == [0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 7, 8, 9]
    assert (flat.other_chunk == -1).all()


@given(drawn())
def test_neighbouring_virtual_stages_are_on_neighbouring_stages_or_one(
    case: tuple[str, int, int, int, Costs],
) -> None:
    name, pp, vpp, _, _ = case
    schedule = make(*case)
    for copy in range(int(schedule.replica.max()) + 1):
        stage, chunk = np.nonzero(schedule.replica == copy)
        held = schedule.virtual_stage[stage, chunk]
        at = stage[np.argsort(held)]
        assert sorted(held.tolist()) == list(range(pp * vpp))
        steps = np.abs(np.diff(at))
        assert (steps <= (pp - 1 if name in LOOPED else 1)).all()


@pytest.mark.parametrize(
    ("name", "pp", "vpp", "micro_batches", "what"),
    [
        ("interleaved", 4, 2, 6, "6 micro-batches on 4 stages"),
        ("1f1b", 4, 2, 8, "2 model chunks"),
        ("zb-h1", 4, 2, 8, "2 model chunks"),
        ("zb-1p", 4, 2, 8, "2 model chunks"),
        ("zb-2p", 4, 2, 8, "2 model chunks"),
        ("zb-v", 4, 1, 8, "1 model chunks"),
        ("v-half", 4, 3, 8, "3 model chunks"),
        ("v-min", 4, 1, 8, "1 model chunks"),
        ("dualpipe", 4, 2, 8, "2 model chunks"),
        ("dualpipe", 3, 1, 8, "3 stages"),
        ("dualpipe", 4, 1, 6, "6 micro-batches on 4 stages"),
        ("dualpipe", 4, 1, 9, "9 micro-batches on 4 stages"),
        ("dualpipev", 4, 1, 8, "1 model chunks"),
        ("dualpipev", 4, 2, 7, "7 micro-batches on 4 stages"),
    ],
)
def test_what_a_schedule_needs_is_said(
    name: str, pp: int, vpp: int, micro_batches: int, what: str
) -> None:
    with pytest.raises(InfeasibleError, match=what) as refusal:
        SCHEDULES[name](pp, vpp, micro_batches)
    # interleaved's own key is vpp, which set to 1 solves it
    assert refusal.value.where in ("parallelism.schedule", "parallelism.vpp")
    assert refusal.value.hint


def test_a_pass_that_takes_no_time_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="input_grad pass that takes 0"):
        Costs(1.0, 0.0, 1.0)


def test_no_activations_at_all_are_refused() -> None:
    with pytest.raises(InfeasibleError, match="0 micro-batches of activations"):
        SCHEDULES["zb-1p"](4, 1, 8, memory_limit=0)


def test_a_repeated_schedule_numbers_further_micro_batches_and_drains_between() -> None:
    twice = repeated(SCHEDULES["1f1b"](2, 1, 2), 2)
    assert spelled(twice.orders[0]) == "Fa0 Fa1 Ba0 Ba1 Fa2 Fa3 Ba2 Ba3"
    assert spelled(twice.orders[1]) == "Fa0 Ba0 Fa1 Ba1 Fa2 Ba2 Fa3 Ba3"
    once = SCHEDULES["1f1b"](2, 1, 4)
    assert play_slowly(twice, 1, 1, 1).makespan - play_slowly(once, 1, 1, 1).makespan == 3
    assert repeated(once, 1) is once


def test_runs_of_two_directions_keep_the_halves_of_their_overlapped_slots() -> None:
    one = SCHEDULES["dualpipe"](2, 1, 6)
    twice = repeated(one, 2)
    for stage in range(2):
        passes = [half for slot in halves(one, stage) for half in slot]
        shifted = [(what, v, m + 6) for what, v, m in passes]
        assert [half for slot in halves(twice, stage) for half in slot] == passes + shifted
