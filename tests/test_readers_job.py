"""Jobs: names resolve, edits land, defaults are said, and plans that cannot run are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seer.errors import InfeasibleError, SeerError, UsageError
from seer.readers import job_from_model, read_job, shipped
from seer.readers.job import kind_of
from seer.readers.job_checks import CHUNKS
from seer.readers.overrides import edit, parse_overrides
from seer.spec import Job, ParallelismSpec

JOB = "llama3-70b-1024xh100"


def one_gpu_each(draft: Job) -> tuple[ParallelismSpec, str]:
    return ParallelismSpec(dp=draft.gpus), "all data parallel"


@pytest.mark.parametrize("name", shipped.names("jobs"))
def test_a_shipped_job_can_run(name: str) -> None:
    job = read_job(name)
    assert job.name == name
    assert str(job.gpus) in name
    assert job.micro_batches >= 1


def test_the_split_of_the_demo_job_is_the_one_written_down() -> None:
    job = read_job(JOB)
    plan = job.parallelism
    assert (plan.tp, plan.pp, plan.vpp, plan.dp, plan.zero) == (4, 4, 5, 64, 1)
    assert plan.schedule == "interleaved"
    assert job.micro_batches == 1024 // 64


def test_an_edit_changes_one_number_and_dp_follows() -> None:
    job = read_job(JOB, ["parallelism.tp=8"])
    assert (job.parallelism.tp, job.parallelism.dp) == (8, 32)


def test_edits_reach_into_a_model_a_cluster_and_a_framework() -> None:
    job = read_job(
        JOB,
        [
            "model.layers=40",
            'cluster.tiers[1].bandwidth_bytes_per_s="800 Gbit/s"',
            "framework.p2p=blocking",
        ],
    )
    assert job.model.layers == 40
    assert job.cluster.network.bandwidth_bytes_per_s == 100e9
    assert job.framework.p2p == "blocking"
    assert job.model.hidden == 8192


def test_a_reference_can_be_replaced_by_another_name() -> None:
    assert read_job(JOB, {"cluster": "dgx-h200"}).cluster.name == "dgx-h200"


def test_a_job_file_finds_its_neighbours(tmp_path: Path) -> None:
    model = {"layers": 4, "hidden": 64, "heads": 4, "ffn_hidden": 256, "vocab": 128}
    (tmp_path / "small.yaml").write_text("\n".join(f"{k}: {v}" for k, v in model.items()))
    (tmp_path / "job.yaml").write_text(
        "model: small.yaml\ncluster: dgx-a100\ngpus: 8\n"
        "training: {sequence_length: 128, global_batch: 16}\nparallelism: {tp: 2}\n"
    )
    job = read_job(tmp_path / "job.yaml")
    assert (job.model.name, job.name, job.parallelism.dp) == ("small", "job", 4)


def test_what_is_chosen_for_the_user_is_said_in_the_notes() -> None:
    job = job_from_model("llama3-8b", 64, "dgx-h100", choose=one_gpu_each)
    assert job.training.sequence_length == 4096
    assert job.training.global_batch == 1024  # 4 Mi tokens of 4,096 each
    text = "\n".join(job.notes)
    for word in ("framework", "sequence length", "global batch", "all data parallel"):
        assert word in text


def test_a_stated_parallelism_is_taken_and_nothing_is_chosen() -> None:
    job = job_from_model("llama3-8b", 64, "dgx-h100", {"parallelism.tp": 2}, choose=one_gpu_each)
    assert job.parallelism.tp == 2
    assert "all data parallel" not in job.notes


def test_a_job_without_parallelism_is_refused_where_nobody_chooses() -> None:
    with pytest.raises(UsageError, match="'parallelism' is missing"):
        job_from_model("llama3-8b", 64, "dgx-h100")


INFEASIBLE = [
    ("gpus=1000", "not a multiple of tp x cp x pp"),
    ("parallelism.tp=5", "not a multiple of tp x cp x pp"),
    ("parallelism.dp=3", "does not fit"),
    ("parallelism.cp=3", "not a multiple of tp x cp x pp"),
    ("parallelism.ep=2", "ep is 2, but llama3-70b has no experts"),
    ("parallelism.etp=2", "etp is 2, but llama3-70b has no experts"),
    ("parallelism.shard_group=8", "belongs to zero 3"),
    ("training.precision=nvfp4", "has no peak for nvfp4"),
    ("training.global_batch=1000", "not a multiple of micro_batch x dp"),
    ("training.global_batch=320", "not a multiple of pp"),
    ("parallelism.flush_every=5", "are not whole runs of 5"),
    ("model.layers=81", "do not split evenly"),
    ("model.heads=66", "the number of heads 66 cannot be divided by tp 4"),
    ("model.ffn_hidden=28670", "ffn_hidden 28670 cannot be divided by tp 4"),
    ("model.vocab=128255", "the vocabulary 128255 cannot be divided by tp 4"),
    ("parallelism.layers_per_stage=[40, 40]", "2 numbers are given"),
    ("parallelism.pp=1", "need a pipeline"),
    ("parallelism.schedule=1f1b", "does not go with vpp 5"),
    ("training.sequence_length=8190", "cannot be divided by tp 4"),
]


@pytest.mark.parametrize(("change", "message"), INFEASIBLE)
def test_a_plan_that_cannot_run_is_refused_with_its_numbers(change: str, message: str) -> None:
    changes = [change]
    if change.startswith("model.heads"):
        changes += ["model.kv_heads=66", "model.head_dim=128"]
    with pytest.raises(InfeasibleError) as caught:
        read_job(JOB, changes)
    assert message in str(caught.value)
    assert caught.value.exit_code == 4


MIXTURE = "mixtral-8x7b-64xh100"  # tp 2, pp 4, dp 8, ep 8, etp 1: 16 ranks a stage, 8 experts
EXPERTS = [
    ("parallelism.ep=3", "the number of experts 8 cannot be divided by ep 3"),
    ("parallelism.etp=5", "expert_ffn_hidden 14336 cannot be divided by etp 5"),
    ("parallelism.etp=4", "cannot be divided by etp x ep = 4 x 8 = 32"),
    ("model.shared_ffn_hidden=4095", "shared_ffn_hidden 4095 cannot be divided by tp 2"),
]


@pytest.mark.parametrize(("change", "message"), EXPERTS)
def test_experts_that_do_not_fit_the_ranks_of_a_stage_are_refused(
    change: str, message: str
) -> None:
    with pytest.raises(InfeasibleError) as caught:
        read_job(MIXTURE, [change])
    assert message in str(caught.value)


def test_expert_tensor_parallelism_is_that_of_the_rest_unless_it_is_stated() -> None:
    changes = ["parallelism.etp=0", "parallelism.ep=4"]
    plan = read_job(MIXTURE, changes).parallelism
    assert (plan.expert_tp, plan.expert_dp) == (2, 2)  # 16 ranks over 2 x 4


LONG = "llama3-8b-64xh100-131072"  # tp 4, cp 8, dp 2
CONTEXT = [
    (["training.sequence_length=131080"], "cannot be cut into 16 pieces for cp 8"),
    (["training.sequence_length=131088", "parallelism.cp_comm=a2a"], "131088 cannot be divided"),
    (["parallelism.cp_comm=a2a", "parallelism.cp=16"], "tp x cp = 4 x 16"),
    (["training.sequence_length=131096"], "cannot be cut"),
]


@pytest.mark.parametrize(("changes", "message"), CONTEXT)
def test_a_sequence_that_cannot_be_cut_over_context_ranks_is_refused(
    changes: list[str], message: str
) -> None:
    with pytest.raises(InfeasibleError) as caught:
        read_job(LONG, changes)
    assert message in str(caught.value)


def test_a_shard_group_must_divide_the_replicas() -> None:
    with pytest.raises(InfeasibleError, match="cannot be divided by shard_group 48"):
        read_job("llama3-8b-128xh100-fsdp", ["parallelism.shard_group=48"])
    plan = read_job("llama3-8b-128xh100-fsdp", ["parallelism.shard_group=8"]).parallelism
    assert (plan.zero, plan.shard_group, plan.dp) == (3, 8, 128)


def test_modules_that_are_named_are_recomputed_selectively() -> None:
    training = read_job(MIXTURE, {"training": {"recompute_modules": ["moe_act"]}}).training
    assert (training.recompute, training.recompute_modules) == ("selective", ("moe_act",))


def test_a_schedule_that_folds_the_pipeline_needs_two_chunks() -> None:
    fields = CHUNKS
    assert fields["zb-v"] == fields["v-half"] == fields["v-min"] == 2
    with pytest.raises(UsageError, match="no schedule named 'zb-q'"):
        read_job(JOB, ["parallelism.schedule=zb-q"])


def test_sequence_parallelism_without_tensor_parallelism_is_off_and_said() -> None:
    found = read_job(JOB, ["parallelism.tp=1"])
    assert read_job(JOB).parallelism.sequence_parallel
    assert not found.parallelism.sequence_parallel
    assert any("sequence parallelism is off" in note for note in found.notes)


def test_layers_per_stage_must_add_up_to_the_layers_of_the_model() -> None:
    with pytest.raises(InfeasibleError, match="add up to 20"):
        read_job(JOB, {"parallelism.layers_per_stage": [1] * 20})


def test_learned_positions_cannot_be_exceeded() -> None:
    with pytest.raises(InfeasibleError, match="2048 that gpt3-175b has learned"):
        read_job("gpt3-175b-1024xa100", ["training.sequence_length=4096"])


def test_more_tensor_parallel_ranks_than_kv_heads_hold_them_several_times() -> None:
    changes = ["parallelism.tp=16", "training.global_batch=1024"]
    assert read_job(JOB, changes).parallelism.tp == 16


FAULTY = [
    ("parallelism.tpp=4", "did you mean 'tp'"),
    ("tp=4", "did you mean 'parallelism.tp'"),
    ("clusters=x", "did you mean 'cluster'"),
    ("training.micro_batch=1.5", "training.micro_batch: 1.5"),
    ("training.micro_batch=0", "training.micro_batch: 0"),
    ("training.global_batch=-8", "training.global_batch: -8"),
    ("training.precision=int4", "valid names: bf16, fp16"),
    ("training.routing_imbalance=0.5", "routing_imbalance: 0.5"),
    ('training.recompute_modules=["mpl"]', "did you mean 'mlp'"),
    ('training.offload=["weights"]', "valid names: activations, optimizer, parameters"),
    ("parallelism.cp_comm=ring", "valid names: a2a, all_gather, p2p"),
    ("parallelism.zero=4", "parallelism.zero: 4"),
    ("training.sequence_length=NaN", "training.sequence_length: 'NaN'"),
    ("training=[1]", "training: a mapping of keys"),
    ("placement=spread", "placement"),
    ("model=llama3-70", "did you mean 'llama3-70b'"),
    ("model=3", "a name, a path or a mapping"),
    ("cluster.tiers[7].latency_s=1", "nothing at '7'"),
    ("gpus=true", "gpus: True"),
    ("training", "is not an edit"),
    ("a..b=1", "is not a path"),
]


@pytest.mark.parametrize(("change", "message"), FAULTY)
def test_a_faulty_edit_is_refused_with_its_path_and_a_hint(change: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_job(JOB, [change])
    assert message in str(caught.value)


def test_values_of_edits_are_json_where_they_are_json() -> None:
    texts = ["a=1", "b=1e3", "c=true", "d=[1, 2]", "e=text", 'f="1"', "g=NaN", "h="]
    assert list(parse_overrides(texts).values()) == [1, 1e3, True, [1, 2], "text", "1", "NaN", ""]


def test_an_edit_leaves_the_original_alone() -> None:
    original: dict[str, Any] = {"a": {"b": [1, 2]}}
    assert edit(original, "a.b[0]", 9) == {"a": {"b": [9, 2]}}
    assert original == {"a": {"b": [1, 2]}}


def test_the_kind_of_an_argument_is_told_by_name_or_by_content(tmp_path: Path) -> None:
    graph = tmp_path / "graph.json"
    graph.write_text(json.dumps({"operators": []}))
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "llama"}))
    assert kind_of(JOB) == "job"
    assert kind_of("llama3-8b") == "model"
    assert kind_of(str(graph)) == "graph"
    assert kind_of(str(config)) == "model"
    with pytest.raises(SeerError, match="did you mean"):
        kind_of("llama3-70b-1024xh10")


@pytest.mark.parametrize(
    ("recompute", "module", "note"),
    [
        ("selective", "moe", "has no moe, it changes nothing"),
        ("full", "mlp", "recompute is full, not selective"),
        ("selective", "mlp", ""),
    ],
)
def test_a_module_that_recomputation_cannot_use_is_noted(
    recompute: str, module: str, note: str
) -> None:
    edits = {"training.recompute": recompute, "training.recompute_modules": [module]}
    notes = [n for n in read_job("gpt2-xl-8xa100", edits).notes if "recompute_modules" in n]
    assert [note in n for n in notes] == ([True] if note else [])
