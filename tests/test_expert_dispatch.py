"""How tokens reach their experts, what hides it, and what biased, limited experts add."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from seer.cost import price
from seer.forecast import forecast, lay_out
from seer.graph import DType, OperatorKind
from seer.readers import read_calibration, read_job, read_layer_template
from seer.spec import Job
from seer.workload import SCHEDULES, Slot
from seer.workload.program import Program

SMALL = {
    "model": {
        "name": "small",
        "layers": 4,
        "hidden": 1024,
        "heads": 8,
        "kv_heads": 8,
        "head_dim": 128,
        "ffn_hidden": 2048,
        "vocab": 32000,
        "activation": "swiglu",
        "norm": "rms_norm",
        "position": "rope",
        "experts": 32,
        "top_k": 4,
        "expert_ffn_hidden": 512,
    },
    "training": {"sequence_length": 1024, "micro_batch": 1, "global_batch": 64},
    "cluster": "dgx-h100",
    "gpus": 16,
    "framework": "megatron-core",
}


def job(ep: int, *edits: str, **model: object) -> Job:
    spec = SMALL | {"model": SMALL["model"] | model, "parallelism": {"ep": ep}}  # type: ignore[operator]
    return read_job(spec, edits)


def work_named(job: Job, name: str) -> tuple[np.ndarray, np.ndarray]:
    """HBM and message bytes of the distinct work of a name."""
    work = lay_out(job, read_layer_template("transformer")).work
    rows = [i for i, text in enumerate(work.name) if text == name]
    return work.hbm_bytes[rows], work.message_bytes[rows]


def test_an_all_to_all_sorts_every_copy_on_both_sides_of_the_experts() -> None:
    moved = 1024 * 4 * 1024 * 2.0  # tokens x top-k x hidden, two bytes each
    for name in ("sort by expert forward", "sort by rank forward"):
        hbm, _ = work_named(job(8), name)
        assert hbm.tolist() == [2 * moved]
    assert (
        work_named(job(8, "parallelism.dispatcher=deepep"), "sort by expert forward")[0].size == 0
    )


def test_experts_inside_a_node_are_not_hidden_and_experts_over_nodes_are() -> None:
    assert job(8).parallelism.schedule == "1f1b"
    assert job(16).parallelism.schedule == "combined-1f1b"
    assert job(16, "framework.ep_overlap=never").parallelism.schedule == "1f1b"


def test_hidden_dispatch_takes_less_time_than_dispatch_in_the_open() -> None:
    hidden, shown = forecast(job(16)), forecast(job(16, "framework.ep_overlap=never"))
    assert hidden.iteration_time_s < shown.iteration_time_s


def test_a_rack_of_72_dispatches_by_fused_kernels_by_default() -> None:
    spec = SMALL | {"cluster": "gb200-nvl72", "gpus": 64, "parallelism": {"ep": 32}}
    work = lay_out(read_job(spec), read_layer_template("transformer")).work
    rows = [i for i, text in enumerate(work.name) if text.startswith("dispatch")]
    assert rows
    assert {work.variant[i] for i in rows} == {"hybridep"}


def test_hybridep_gathers_the_routing_map_of_the_group_before_it_dispatches() -> None:
    hybrid = job(8, "parallelism.dispatcher=hybridep")
    _, message = work_named(hybrid, "routing map all-gather forward")
    assert message.tolist() == [8 * 1024 * 32]  # a byte for each token of the group and expert
    assert work_named(hybrid, "routing map all-gather backward")[0].size == 0  # its handle is kept
    deepep = job(8, "parallelism.dispatcher=deepep")
    assert work_named(deepep, "routing map all-gather forward")[0].size == 0
    names = ("framework.parameters.dispatch_multiprocessors=20",)
    names += ("framework.parameters.hybridep_multiprocessors=12",)
    for dispatcher, held in (("deepep", 20), ("hybridep", 12)):
        found = job(8, f"parallelism.dispatcher={dispatcher}", *names)
        work = lay_out(found, read_layer_template("transformer")).work
        row = work.name.index("dispatch forward")
        shape = [int(column[row]) for column in (work.m, work.n, work.k, work.heads, work.batch)]
        assert shape == [1024, 1024, 4, 32, held]


STRIDED = 5.0
"""Bytes that a strided kernel counts for each element: the mean of 4 (silu of a half) and 6 (its
product with the other half)."""


def test_limits_and_biases_of_experts_cost_their_strided_kernels_and_what_streams() -> None:
    plain, limited = job(8), job(8, activation="clamped_swiglu", expert_bias=True)
    halves, outputs = 1024 * 4 * 512, 1024 * 4 * 1024

    def bytes_of(name: str) -> list[float]:
        return list(work_named(limited, name)[0])

    # the limit of each half, then both are read and written as one
    assert bytes_of("expert clamp forward") == [2 * STRIDED * halves]
    assert bytes_of("expert clamp joined forward") == [2 * (2 + 2) * halves]
    # one comparison or two, and a selection for each half; the conjunction of two masks of bytes
    assert bytes_of("expert clamp backward") == [(1 + 2 + 2) * STRIDED * halves]
    assert bytes_of("expert clamp joined backward") == [(2 * (2 + 2) + 3) * halves]
    # product with probabilities, then a sum (2 x 2 read) and a concatenation of like tensors
    assert bytes_of("expert bias forward") == [STRIDED * outputs]
    assert bytes_of("expert bias joined forward") == [((2 + 2 + 2) + (2 + 2)) * outputs]
    # both products, then a sum over each and a concatenation
    assert bytes_of("expert bias backward") == [2 * STRIDED * outputs]
    assert bytes_of("expert bias joined backward") == [(2 + 2 + (2 + 2)) * outputs]
    for name in ("expert clamp forward", "expert bias forward", "expert bias joined forward"):
        assert work_named(plain, name)[0].size == 0


def test_fused_kernels_hand_over_probabilities_in_full_precision_and_biases_pay_for_it() -> None:
    biased = job(8, "parallelism.dispatcher=deepep", expert_bias=True)
    outputs = 1024 * 4 * 1024
    # product, sum of two types and cast; the concatenation is of four bytes
    assert list(work_named(biased, "expert bias forward")[0]) == [3 * STRIDED * outputs]
    assert list(work_named(biased, "expert bias joined forward")[0]) == [(4 + 4) * outputs]


def test_only_megatron_joins_rotated_positions_and_only_when_they_are_unfused() -> None:
    name = "rotary embedding joined forward"
    unfused = job(8, rope_concentration=1.3466)
    elsewhere = job(8, "framework.parameters.rotary_joins=0", rope_concentration=1.3466)
    moved = list(work_named(unfused, name)[0])
    assert len(moved) == 1
    rotated, _ = work_named(unfused, "rotary embedding forward")
    assert moved == list(rotated)  # read and written once, as what a fused kernel would move
    assert work_named(job(8), name)[0].size == work_named(elsewhere, name)[0].size == 0


def test_an_unfused_bias_of_the_output_projection_is_a_sum_and_its_gradient_another() -> None:
    unfused, columns = job(8, "framework.parameters.unfused_bias=1"), 1024 * 1024
    name = "attention output bias"
    assert list(work_named(unfused, f"{name} forward")[0]) == [STRIDED * columns]
    assert list(work_named(unfused, f"{name} backward")[0]) == [2.0 * columns]
    assert work_named(job(8), f"{name} forward")[0].size == 0


def test_probabilities_that_weigh_the_activation_have_a_gradient_of_their_own() -> None:
    hbm, _ = work_named(job(8), "expert probability gradient backward")
    assert hbm.tolist() == [3 * 2.0 * 1024 * 4 * 512]  # both halves and the gradient are read
    after = job(8, "framework.parameters.weighted_activation=0")
    assert work_named(after, "expert probability gradient backward")[0].size == 0
    weighed, _ = work_named(after, "unpermutation backward")
    plain, _ = work_named(job(8), "unpermutation backward")
    assert (weighed - plain).tolist() == [4 * 2.0 * 1024 * 1024]  # the copies are read again


def test_permutation_of_separate_operators_moves_more_than_one_kernel_does() -> None:
    eager = job(8, "framework.parameters.eager_permutation=1")
    copies, token = 4, 2.0 * 1024 * 1024
    hbm, _ = work_named(eager, "unpermutation forward")
    # zeros, product, scattered sum: written; written and read; read, read and written
    assert hbm.tolist() == [(5 * copies + 1) * token]
    # the gradient of index_select: zeros, then an atomic sum
    assert work_named(eager, "permutation backward")[0].tolist() == [token]
    assert work_named(eager, "permutation gradient sum backward")[0].tolist() == [
        3 * copies * token
    ]
    assert work_named(job(8), "permutation gradient sum backward")[0].size == 0
    hbm, _ = work_named(job(8), "unpermutation forward")
    assert hbm.tolist() == [(copies + 1) * token]


def test_quantised_experts_behind_an_all_to_all_copy_their_rows_to_whole_blocks() -> None:
    moved = 1024 * 4 * 1024 * 2.0
    for name in ("expert padding forward", "expert unpadding backward"):
        assert work_named(job(8, "training.precision=fp8"), name)[0].tolist() == [2 * moved]
        fused = job(8, "training.precision=fp8", "parallelism.dispatcher=deepep")
        for other in (job(8), fused):
            assert work_named(other, name)[0].size == 0


def test_a_gather_behind_an_all_to_all_waits_for_what_it_brings() -> None:
    program = Program()
    program.compute(0)
    program.communicate(1, "ep")
    program.communicate(2, "etp")
    program.compute(3)
    assert program.edges == [(0, 1), (1, 2), (1, 3), (2, 3)]
    # one that runs beside compute brings nothing to the next collective
    program.communicate(4, "tp", beside=1)
    program.communicate(5, "ep")
    assert program.edges[4:] == [(3, 4), (3, 5)]


def test_expert_tensor_parallelism_adds_its_gather_to_the_all_to_all() -> None:
    exposed_s, gathered_s = [], []
    for etp in (1, 2):
        spec = SMALL | {"parallelism": {"tp": 2, "sequence_parallel": True, "ep": 8, "etp": etp}}
        slow = ("framework.ep_overlap=never", "parallelism.dispatcher=alltoall")
        found = forecast(read_job(spec, slow)).communication
        exposed_s.append(sum(shown for _, shown in found.values()))
        gathered_s.append(found.get("etp", (0.0, 0.0))[0])
    assert gathered_s[0] == 0.0
    assert exposed_s[1] - exposed_s[0] > 0.5 * gathered_s[1]


def test_sequential_experts_are_plain_products_whose_outputs_are_joined() -> None:
    edits = ("framework.parameters.sequential_experts=1", "training.precision=fp8")
    one_by_one = job(8, *edits)
    work = lay_out(one_by_one, read_layer_template("transformer")).work
    kinds = {work.kind[i] for i, name in enumerate(work.name) if name.startswith("expert fc1 ")}
    assert int(OperatorKind.grouped_gemm) not in kinds
    tokens = 1024 * 4 * 1024 * 2.0
    assert work_named(one_by_one, "expert outputs joined forward")[0].tolist() == [2 * tokens]
    # cutting the padding off fills zeros in backward and copies, padding or not
    assert work_named(one_by_one, "expert output slice backward")[0].tolist() == [3 * tokens]
    assert work_named(job(8, edits[1]), "expert output slice backward")[0].size == 0


def test_fused_experts_run_neither_activation_nor_limits_as_operators_in_quantised_types() -> None:
    edits = ("framework=megatron-core-26.06",)
    fused = job(8, *edits, "training.precision=mxfp8", activation="clamped_swiglu")
    for name in ("expert clamp forward", "expert activation forward"):
        assert work_named(fused, name)[0].size == 0
    bf16 = job(8, *edits, activation="clamped_swiglu")
    assert work_named(bf16, "expert clamp forward")[0].size == 1


def test_attention_computes_in_the_type_of_the_gemms_only_where_the_stack_narrows_it() -> None:
    def types(*edits: str) -> set[str]:
        work = lay_out(job(8, *edits), read_layer_template("transformer")).work
        kind = int(OperatorKind.attention)
        return {DType(work.dtype[i]).name for i in np.flatnonzero(work.kind == kind)}

    narrow = "framework.parameters.fp8_attention=1"
    assert types("training.precision=mxfp8") == {"bf16"}
    assert types("training.precision=mxfp8", narrow) == {"mxfp8"}
    assert types(narrow) == {"bf16"}


def held_job(*edits: str, multiprocessors: int = 100) -> Job:
    """A job whose experts lie on two nodes; a dispatch kernel holds 20 multiprocessors."""
    edits = ("parallelism.dispatcher=deepep", *edits)
    found = job(16, "framework.parameters.dispatch_multiprocessors=20", *edits)
    device = replace(found.cluster.device, multiprocessors=multiprocessors)
    return replace(found, cluster=replace(found.cluster, device=device))


def test_dispatch_beside_compute_costs_compute_the_share_that_its_kernel_holds() -> None:
    calibration = read_calibration("h100-sxm")
    planned = lay_out(held_job(), read_layer_template("transformer"))
    work, cluster = planned.work, held_job().cluster
    time_s = dict(zip(work.name, price(work, calibration, cluster).time_s.tolist(), strict=True))
    for name in ("dispatch forward", "combine forward", "dispatch backward", "combine backward"):
        assert time_s[f"{name}: multiprocessors held"] == pytest.approx(0.2 * time_s[name])


def test_nothing_is_held_where_nothing_runs_beside_or_the_device_does_not_say() -> None:
    apart = held_job("framework.ep_overlap=never", "parallelism.schedule=1f1b")
    sorted_ = held_job("parallelism.dispatcher=alltoall")
    for found in (apart, sorted_, held_job(multiprocessors=0)):
        work = lay_out(found, read_layer_template("transformer")).work
        assert not [name for name in work.name if "held" in name]


def test_what_a_dispatch_holds_stands_on_the_compute_stream_and_no_operator_waits_for_it() -> None:
    planned = lay_out(held_job(), read_layer_template("transformer"))
    held = [i for i, name in enumerate(planned.work.name) if "held" in name]
    (both,) = [s for s in planned.segments if np.isin(held, s.work_id).any()]
    at = np.flatnonzero(np.isin(both.work_id, held))
    assert len(at) == 4 * 4  # layers x (dispatch and combine, forward and backward)
    assert not both.stream[at].any()
    assert not np.isin(at, both.before).any()
    assert not np.isin(at, both.after).any()
    beside = [planned.work.name[i] for i in both.work_id[at - 1]]
    assert all(name.split()[0] in ("dispatch", "combine") for name in beside)


def test_accumulation_in_sixteen_bits_reads_what_it_adds_to() -> None:
    def moved(*edits: str) -> float:
        hbm, _ = work_named(job(8, *edits), "qkv wgrad")
        return float(hbm[0])

    elements = 3 * 1024 * 1024
    none = moved("framework.grad_accumulate_bytes.bf16=6")
    assert moved() - none == (4 + 4 - 2) * elements
    assert moved("framework.grad_bytes.bf16=2") - none == 2 * elements


def test_a_concentration_of_rotary_positions_runs_them_unfused() -> None:
    def kernels(found: Job) -> set[str]:
        work = lay_out(found, read_layer_template("transformer")).work
        return {work.variant[i] for i, text in enumerate(work.name) if "rotary" in text}

    assert kernels(job(8)) == {"rope"}
    # the rotated part and the empty rest of it are joined by a copy
    assert kernels(job(8, rope_concentration=1.3466)) == {"rope_eager", "copy"}
    compiled = replace(job(8, rope_concentration=1.3466))
    parameters = {**compiled.framework.parameters, "compiled": 1.0}
    framework = replace(compiled.framework, parameters=parameters)
    assert kernels(replace(compiled, framework=framework)) == {"rope"}


@pytest.mark.parametrize(("pp", "vpp", "micro_batches"), [(1, 1, 6), (2, 2, 8), (4, 3, 16)])
def test_combined_1f1b_pairs_every_forward_of_the_steady_phase(
    pp: int, vpp: int, micro_batches: int
) -> None:
    schedule = SCHEDULES["combined-1f1b"](pp, vpp, micro_batches)
    plain = SCHEDULES["interleaved" if vpp > 1 else "1f1b"](pp, vpp, micro_batches)
    for order, before in zip(schedule.orders, plain.orders, strict=True):
        warmup = int(np.argmax(order.slot != Slot.forward))
        # one forward more than 1F1B, whose own pairs begin with a forward too
        assert warmup == int(np.argmax(before.slot != Slot.forward))
        assert (order.slot == Slot.overlapped).sum() == vpp * micro_batches - warmup
        pairs = order.slot == Slot.overlapped
        same = order.micro_batch[pairs] == order.other_micro_batch[pairs]
        assert not (same & (order.chunk[pairs] == order.other_chunk[pairs])).any()


def test_consecutive_experts_are_sent_to_the_nodes_and_ranks_that_hold_them() -> None:
    given = "framework.parameters.consecutive_experts=1"
    whole = 1024 * 4 * 1024 * 2.0  # tokens x top-k x hidden, two bytes each
    # 32 experts on 2 nodes: 4 consecutive ones lie on one, 4 drawn ones on 2 (1 - 1/2^4) = 1.875
    over_nodes = job(16, "parallelism.dispatcher=deepep", given)
    # on the 8 ranks of a node: one rank of 4 experts, instead of 8 (1 - (7/8)^4)
    inside = job(8, "parallelism.dispatcher=deepep", given)
    for small, reached in ((over_nodes, 1.875), (inside, 8 * (1 - (7 / 8) ** 4))):
        for name in ("dispatch forward", "combine forward"):
            _, message = work_named(small, name)
            assert message.tolist() == pytest.approx([whole / reached])
    _, message = work_named(job(8, "parallelism.dispatcher=alltoall", given), "dispatch forward")
    assert message.tolist() == [whole]  # an all-to-all sends every copy
    # 2 experts on each of 16 ranks: 4 consecutive ones lie on two
    halves = job(16, "parallelism.dispatcher=deepep", given, "cluster=gb200-nvl72")
    _, message = work_named(halves, "dispatch forward")
    assert message.tolist() == pytest.approx([whole * 2 / (16 * (1 - (15 / 16) ** 4))])


def dispatch_s(*edits: str) -> float:
    """The longest of the dispatches of a job over two nodes, by the kernels measured there."""
    one = job(16, "parallelism.dispatcher=deepep", "training.sequence_length=8192", *edits)
    work = lay_out(one, read_layer_template("transformer")).work
    found = price(work, read_calibration("h100-sxm"), one.cluster)
    return float(found.time_s[work.kind == OperatorKind.dispatch].max())


def test_a_faster_network_never_slows_a_dispatch_and_none_is_a_step() -> None:
    rates = (10, 25, 40, 45, 49, 50, 51, 55, 100, 400)
    took = [dispatch_s(f"cluster.tiers[1].bandwidth_bytes_per_s={rate} GB/s") for rate in rates]
    assert all(slow >= fast for slow, fast in itertools.pairwise(took))
    # one hundredth of the bandwidth is worth about one of the time
    assert took[4] / took[5] < 1.03
    assert took[5] / took[6] < 1.03


def test_a_dispatch_waits_for_light_on_a_long_network() -> None:
    # 500 km at 5 us each, at least once
    far = dispatch_s("cluster.tiers[1].distance_km=500")
    assert far - dispatch_s() >= 500 * 5e-6 * 0.99
