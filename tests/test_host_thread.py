"""The host thread: an operator starts when it has been launched."""

from __future__ import annotations

from dataclasses import astuple, replace
from pathlib import Path

import jobs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_workload_folding import plans, wide_plans, zero_bubble_plans

from seer import _kernels
from seer.cluster import Processor
from seer.errors import UsageError
from seer.forecast import forecast
from seer.graph import OperatorKind, Pass
from seer.hosts import alone, launch_times, play_into, play_pass, with_host
from seer.plans import evaluate
from seer.play import play
from seer.readers import read_framework, read_job
from seer.readers.doors.megatron_bridge import megatron_bridge_job
from seer.readers.doors.megatron_flags import megatron_from_text
from seer.readers.doors.megatron_out import megatron_flags
from seer.spec import Job
from seer.timeline import breakdown_of
from seer.workload import Plan, fold, lay_out, unfold
from seer.workload.hosted import could_bind, hosted
from seer.workload.launches import host_model

LAUNCH = st.sampled_from(["0.1 us", "2 us", "20 us", "200 us"])


@st.composite
def hosted_plans(draw: st.DrawFn) -> Job:
    """Any plan, with launches that take nothing to much of a pass, and waits of the host."""
    job: Job = draw(st.one_of(plans(), wide_plans(), zero_bubble_plans()))
    waits = {"qkv": "1"} | draw(st.sampled_from([{}, {"routing": "2"}, {"dispatch": "1"}]))
    framework = replace(
        job.framework,
        host_issue=draw(LAUNCH),
        host_waits=draw(st.sampled_from([{}, waits])),
        host_waits_for_transfers=draw(st.booleans()),
    )
    return replace(job, framework=framework)


def folded_s(plan: Plan) -> float:
    """The time of a folded play with invented durations."""
    time_s = jobs.invented_durations(plan.work)
    found = time_s.copy()
    for number in range(len(plan.played_segments)):
        play_into(plan, number, time_s, found)
    graph = fold(plan)
    return play(graph, found[graph.work_id]).makespan_s


def unfolded_s(plan: Plan) -> float:
    """The time of all ranks and all operators."""
    graph = unfold(plan)
    return play(graph, jobs.invented_durations(plan.work)[graph.work_id]).makespan_s


@settings(max_examples=60, deadline=None)
@given(hosted_plans())
def test_with_a_host_folded_and_unfolded_plays_end_at_the_same_time(job: Job) -> None:
    plan = hosted(lay_out(job, jobs.template()))
    assert folded_s(plan) == pytest.approx(unfolded_s(plan), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(hosted_plans(), st.integers(0, 9), st.booleans())
def test_a_segment_alone_with_its_host_is_what_its_timeline_says(
    job: Job, seed: int, compiled: bool
) -> None:
    plain = lay_out(job, jobs.template())
    plan = hosted(plain)
    drawn = 40e-6 * np.random.default_rng(seed).random(len(plain.work))
    time_s = np.where(plain.work.measured_s == 0.0, 0.0, drawn)  # joins take no time
    all_s = launch_times(plan, time_s)
    for number, (_, segment) in enumerate(plan.played_segments):
        played = play_pass(plan, segment, all_s)
        whole = breakdown_of(played.graph, played.timeline, 0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_kernels, "worth_it", lambda size: compiled)
            found = alone(plain, number, time_s, host=True)
        length = played.timeline.makespan_s
        assert found.analysis.iteration_s == pytest.approx(length, rel=1e-12)
        assert (found.host_s is None) == (played.host_s is None)
        host_s = pytest.approx(played.host_s or (), rel=1e-12, abs=1e-12 * length)
        assert (found.host_s or ()) == host_s
        parts = zip(astuple(found.analysis.breakdown), astuple(whole), strict=True)
        assert all(a == pytest.approx(b, abs=1e-12 * length) for a, b in parts)


def two_products(issue_s: float, waits: str = "", **framework: object) -> Job:
    """One layer, one stage, three micro-batches; each operator takes one launch."""
    changes = {"host_issue": f"{issue_s} s", "host_waits": {waits: "1"} if waits else {}}
    return jobs.job(micro_batches=3, framework={**changes, **framework}, model={"layers": 1})


def lone(plan: Plan, part: str, time_s: float) -> tuple[Plan, np.ndarray, int]:
    """A hosted plan in which every operator takes `time_s`, and the number of one of its passes."""
    number = next(i for i, s in enumerate(plan.segments) if s.name.startswith(part))
    host = np.array([v == "launch" for v in plan.work.variant])
    busy = np.where(np.isnan(plan.work.measured_s), time_s, plan.work.measured_s)
    return plan, np.where(host, plan.work.measured_s, busy), number


def test_a_pass_takes_its_launches_and_the_last_kernel_where_launches_are_longer() -> None:
    plan, time_s, number = lone(hosted(lay_out(two_products(4.0), jobs.template())), "forward", 1.0)
    segment = plan.segments[number]
    kernels = int((segment.stream == 0).sum()) - 2  # without the joins
    played = play_pass(plan, segment, time_s)
    assert played.timeline.makespan_s == kernels  # all launched before
    assert played.host_s == (4.0 * kernels, 1.0, 0.0)  # H, then the last kernel


def test_a_step_of_equal_passes_takes_the_longer_of_host_and_device() -> None:
    for issue_s, each in ((0.25, 1.0), (4.0, 4.0)):
        plan = hosted(lay_out(two_products(issue_s), jobs.template()))
        plan, time_s, _ = lone(plan, "forward", 1.0)
        found = time_s.copy()
        operators = 0
        for number, (_, segment) in enumerate(plan.played_segments):
            play_into(plan, number, time_s, found)
            operators += 3 * (int((segment.stream == 0).sum()) - 2)
        graph = fold(plan)
        step = play(graph, found[graph.work_id]).makespan_s
        end = 1.0  # the optimizer, which nobody launches here
        first_or_last = issue_s if issue_s < 1.0 else 1.0
        assert step == pytest.approx(operators * each + first_or_last + end)


def test_a_host_that_waits_launches_nothing_before_the_operator_has_ended() -> None:
    plan = hosted(lay_out(two_products(0.25, waits="attention output"), jobs.template()))
    plan, time_s, number = lone(plan, "forward", 1.0)
    segment = plan.segments[number]
    played = play_pass(plan, segment, time_s)
    names = [plan.work.name[w] for w in segment.work_id.tolist()]
    at = names.index("launch of attention output forward")
    before = [i for i in range(at) if segment.stream[i] == 0][-1]
    end = played.timeline.start_s[before] + played.timeline.duration_s[before]
    assert played.timeline.start_s[at] == end
    product = names.index("attention output forward")
    assert played.timeline.start_s[product] == end + 0.25


def counted(**framework: object) -> Job:
    """A mixture of eight experts on two ranks, its calls counted and timed by hand."""
    processor = Processor("invented", {"operator": 1.0, "expert": 10.0})
    calls = {
        "gemm": {"operator": "1"},
        "memory": {"operator": "0"},
        "expert fc1 forward": {"operator": "2", "expert": "local_experts"},
        "graph": {"operator": "5"},
    }
    made = jobs.job(
        dp=2,
        ep=2,
        etp=1,
        model={"experts": 8, "top_k": 2, "expert_ffn_hidden": 64, "layers": 1},
        framework={"host_calls": calls, "graph_scopes": SCOPES, **framework},
    )
    return replace(made, cluster=replace(made.cluster, processor=processor))


SCOPES = {"attn": ("input norm", "qkv", "attention output", "attention residual")}


def launches(job: Job) -> dict[str, float]:
    """Seconds of the launch of each operator that has one, by its name and pass."""
    plan = lay_out(job, jobs.template())
    assert plan.issue is not None
    seconds = zip(plan.work.name, plan.issue.issue_s.tolist(), strict=True)
    return {name: each for name, each in seconds if each}


def test_calls_are_counted_by_operator_pass_and_kind_and_timed_by_the_processor() -> None:
    found = launches(counted())
    assert found["expert fc1 forward"] == 2 * 1.0 + 4 * 10.0  # eight experts on two ranks
    assert found["qkv forward"] == found["qkv dgrad"] == found["router wgrad"] == 1.0
    assert "expert fc2 forward" not in found  # its kind has no count


def test_a_captured_scope_is_one_launch_with_its_first_operator_and_back_with_its_last() -> None:
    found = launches(counted(cuda_graphs=("attn",)))
    assert found["input norm forward"] == found["attention residual backward"] == 5.0
    assert not {"qkv forward", "qkv dgrad", "attention output wgrad"} & set(found)
    assert found["router forward"] == 1.0  # outside


@pytest.mark.parametrize("recompute", [(), ("moe_act",)])
@pytest.mark.parametrize(("activation", "waits"), [("clamped_swiglu", 1), ("swiglu", 0)])
def test_the_host_waits_wherever_a_clamped_activation_runs(
    activation: str, waits: int, recompute: tuple[str, ...]
) -> None:
    job = counted(host_waits={"expert activation": "1 if clamped else 0"})
    model = replace(job.model, activation=activation)
    again = "selective" if recompute else "none"
    training = replace(job.training, recompute=again, recompute_modules=recompute)
    plan = lay_out(replace(job, model=model, training=training), jobs.template())
    assert plan.issue is not None
    waited = np.flatnonzero(plan.issue.waits)
    assert [plan.work.name[row] for row in waited] == ["expert activation forward"] * waits
    passes = {s.name.split()[0] for s in plan.segments if np.isin(waited, s.work_id).any()}
    where = {"forward", "backward"} if recompute else {"forward"}
    assert passes == (where if waits else set())


def test_a_graph_of_the_whole_iteration_leaves_nothing_to_launch_and_no_wait() -> None:
    job = counted(cuda_graphs=("full_iteration",), host_waits={"dispatch": "1"})
    assert lay_out(job, jobs.template()).issue is None


def test_a_host_that_is_always_ahead_is_not_played() -> None:
    quick, slow = (lay_out(two_products(s), jobs.template()) for s in (0.25, 4.0))
    kernels = np.ones(len(quick.work))
    assert not could_bind(quick, kernels)
    assert could_bind(slow, kernels)
    waiting = lay_out(two_products(0.25, waits="fc2"), jobs.template())
    assert could_bind(waiting, kernels)
    assert with_host(quick, kernels) is quick


def test_the_breakdown_names_the_host_where_the_device_waits_for_launches() -> None:
    job = read_job("llama3-8b-64xh100", ["framework.host_issue=800 us"])
    slow, free = forecast(job), forecast(read_job("llama3-8b-64xh100"))
    assert free.breakdown.host_s == 0.0
    waited = slow.iteration_time_s - free.iteration_time_s
    assert slow.breakdown.host_s == pytest.approx(waited, rel=0.02)
    assert slow.breakdown.total_s == pytest.approx(slow.iteration_time_s)


def test_tables_of_plans_see_the_same_host_as_a_forecast() -> None:
    job = read_job("qwen3-235b-256xgb200")
    made, row = forecast(job), evaluate(job)
    assert made.breakdown.host_s > 0
    assert row.iteration_time_s == pytest.approx(made.iteration_time_s, rel=1e-12)
    assert row.breakdown.host_s == pytest.approx(made.breakdown.host_s, rel=1e-9)


def test_what_is_not_known_of_a_host_is_said() -> None:
    job = read_job("llama3-8b-64xh100")
    assert host_model(job) == ("calls of nemo at their times on Intel Xeon Platinum 8480C")
    off = read_job("llama3-8b-64xh100", ["framework.host_issue=off"])
    assert host_model(off) == "off: operators launch themselves"
    uncounted = read_job("llama3-8b-64xh100", ["framework=fsdp"])
    assert host_model(uncounted) == "not reckoned: nobody has counted the calls of fsdp"
    older = read_job("llama3-8b-64xh100", ["cluster=dgx-a100"])
    assert host_model(older) == "not reckoned: the processor of dgx-a100 is not stated"


def test_scopes_and_times_that_nobody_knows_are_refused() -> None:
    with pytest.raises(UsageError, match="'atn' is no scope of CUDA graphs"):
        read_job("llama3-8b-64xh100", ['framework.cuda_graphs=["atn"]'])
    with pytest.raises(UsageError, match="duration"):
        read_job("llama3-8b-64xh100", ["framework.host_issue=12 parsec"])


@pytest.mark.parametrize(
    ("flags", "scopes"),
    [
        ("", ()),
        ("--cuda-graph-impl none", ()),
        ("--cuda-graph-impl full_iteration", ("full_iteration",)),
        ("--cuda-graph-impl local", ("attn", "mlp")),
        ("--enable-cuda-graph", ("attn", "mlp")),
        (
            "--cuda-graph-impl transformer_engine --cuda-graph-scope attn moe_router",
            ("attn", "moe_router"),
        ),
    ],
)
def test_megatron_says_which_scopes_are_captured(flags: str, scopes: tuple[str, ...]) -> None:
    plain = (
        "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 "
        "--micro-batch-size 1 --global-batch-size 8 --vocab-size 512 --bf16 "
    )
    made = megatron_from_text(plain + flags, "flags", 8)
    assert tuple(made.job["framework"]["cuda_graphs"]) == scopes


def test_the_flags_of_a_job_say_its_graphs_and_a_run_configuration_is_read_for_them(
    tmp_path: Path,
) -> None:
    job = read_job("llama3-8b-64xh100", ['framework.cuda_graphs=["attn", "mlp"]'])
    script = tmp_path / "train.sh"
    script.write_text(megatron_flags(job), encoding="utf-8")
    assert "--cuda-graph-scope attn mlp" in script.read_text(encoding="utf-8")
    assert read_job(str(script)).framework == job.framework
    model = {
        "num_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "seq_length": 32,
        "vocab_size": 512,
        "tensor_model_parallel_size": 1,
        "cuda_graph_impl": "full_iteration",
        "cuda_graph_scope": [],
    }
    train = {"micro_batch_size": 1, "global_batch_size": 8}
    bridge = megatron_bridge_job({"model": model, "train": train}, "run_config.yaml", 8)
    assert bridge.job["framework"]["cuda_graphs"] == ["full_iteration"]


def test_every_operator_that_a_preset_counts_or_captures_is_one_of_the_layer() -> None:
    kinds = [kind.name for kind in OperatorKind]
    template = jobs.template()
    names = {op.name for section in template.sections.values() for op in section}
    for name in ("megatron-core", "megatron-core-26.06", "nemo", "nemo-24"):
        preset = read_framework(name)
        for asked in preset.host_calls:
            words = asked.rsplit(" ", 1)
            plain = words[0] if words[-1] in Pass.__members__ else asked
            assert plain in names or plain in kinds or plain == "graph", asked
        assert {op for scope in preset.graph_scopes.values() for op in scope} <= names
        assert set(preset.host_waits) <= names
