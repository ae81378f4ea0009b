"""Published runs get what their vendor's launch scripts set, and keep what their row says."""

from __future__ import annotations

import pytest

from seer.readers import read_job
from seer.readers.published_recipes import recipe_edits, recipes

GPT_OSS = {
    "software": "Megatron-Bridge, NeMo container 26.02",
    "model": "gpt-oss-120b",
    "gpu_class": "gb200",
    "precision_class": "bf16",
    "recompute_class": "",
}


def test_a_run_gets_the_edits_of_its_stack_model_and_gpu_with_a_note() -> None:
    notes: list[str] = []
    edits = recipe_edits(GPT_OSS, notes)
    assert "parallelism.dispatcher=alltoall" in edits
    assert "training.recompute=selective" in edits
    assert all(note.startswith("by the published recipe: ") for note in notes)
    assert len(notes) == 4


def test_a_run_of_another_model_gpu_precision_or_release_gets_none() -> None:
    narrow = ["framework.grad_bytes.bf16=2", "framework.grad_reduce_bytes.bf16=2"]
    own = [*narrow, "framework.parameters.unfused_bias=1"]  # the model's in every release
    assert recipe_edits(GPT_OSS | {"model": "llama3-8b"}, []) == narrow  # the vendor's
    early = {"software": "Megatron-Bridge, NeMo container 25.09"}
    assert recipe_edits(GPT_OSS | early, []) == own
    assert recipe_edits(GPT_OSS | {"software": "DeepSpeed"}, []) == []
    wide = recipe_edits(GPT_OSS | {"model": "kimi-k2"}, [])
    assert wide[2:] == [edit.replace("=2", "=4") for edit in narrow]  # the last word counts
    assert "training.recompute=selective" not in recipe_edits(GPT_OSS | {"gpu_class": "gb300"}, [])
    late = {"software": "Megatron-Bridge, NeMo container 26.08"}
    assert recipe_edits(GPT_OSS | late, []) == own
    hidden = recipe_edits(GPT_OSS | late | {"precision_class": "mxfp8"}, [])
    assert hidden[:3] == own
    assert hidden[3] == "parallelism.schedule=combined-1f1b"
    assert "framework.parameters.fp8_attention=1" in hidden
    board = {"software": "Megatron-Bridge, NeMo container 26.06", "gpu_class": "b300-sxm"}
    plain = recipe_edits(GPT_OSS | board | {"precision_class": "mxfp8"}, [])
    partial = 'framework.cuda_graphs=["attn", "moe_router", "moe_preprocess"]'
    assert plain[3:] == [
        "framework.parameters.fused_experts=0",
        "parallelism.dispatcher=hybridep",
        partial,
    ]


def test_gpt_oss_of_one_release_takes_the_dispatch_of_its_recipe_and_of_its_patch_another() -> None:
    def of(release: str, gpu: str) -> list[str]:
        row = GPT_OSS | {"software": f"Megatron-Bridge, NeMo container {release}"}
        return recipe_edits(row | {"gpu_class": gpu}, [])

    hidden = {"parallelism.dispatcher=hybridep", "parallelism.schedule=combined-1f1b"}
    assert hidden < set(of("26.04", "gb200"))
    assert hidden & set(of("26.04", "b200-sxm")) == {"parallelism.dispatcher=hybridep"}
    for gpu in ("gb200", "b200-sxm"):
        dispatch = [edit for edit in of("26.04.01", gpu) if "dispatcher" in edit]
        assert dispatch[-1] == "parallelism.dispatcher=alltoall"


def test_recomputation_that_a_row_states_is_not_overruled() -> None:
    notes: list[str] = []
    edits = recipe_edits(GPT_OSS | {"recompute_class": "none"}, notes)
    assert not [edit for edit in edits if edit.startswith("training.recompute")]
    assert len(notes) == 3


def test_automodel_runs_accumulate_over_runs_of_the_pipeline_with_a_fake_gate() -> None:
    row = {"software": "NeMo AutoModel (PyTorch, TE, DeepEP), Oct 2025+", "gpu_class": "h100-sxm"}
    row |= {"precision_class": "bf16", "recompute_class": ""}
    edits = recipe_edits(row | {"model": "kimi-k2"}, [])
    assert "parallelism.flush_every=8" in edits
    assert "framework.parameters.consecutive_experts=1" in edits


def test_every_shipped_recipe_has_a_source_and_edits_that_a_job_takes() -> None:
    for recipe in recipes():
        assert recipe.source, recipe.note
        model = "grok1-314b" if "grok1-314b" in recipe.models else "gpt-oss-120b"
        spec = {"model": model, "gpus": 512, "cluster": "dgx-h100"}
        spec |= {"framework": "nemo", "parallelism": {"tp": 4, "ep": 8}}
        assert read_job(spec, recipe.edits)


def test_the_plan_of_another_gpu_on_the_same_page_gives_way_to_that_of_the_launch_script() -> None:
    row = {
        "software": "NeMo / Megatron-Core (dgxc 25.05.02)",
        "model": "grok1-314b",
        "gpu_class": "h100-sxm",
    }
    edits = recipe_edits(row, [])
    for edit in ("pp=8", "vpp=8", "cp=2", "etp=1"):
        assert f"parallelism.{edit}" in edits
    assert "parallelism.pp=8" not in recipe_edits(row | {"gpu_class": "gb200"}, [])


def test_a_dense_run_of_automodel_recomputes_and_takes_the_attention_of_pytorch() -> None:
    row = {"software": "NeMo AutoModel (PyTorch, TE, DeepEP)", "model": "llama3-70b"}
    edits = recipe_edits(row, [])
    assert {"training.recompute=full", "framework.variants.flash=flash2"} < set(edits)
    assert not recipe_edits(row | {"model": "gpt-oss-20b"}, [])


def test_a_sharded_run_of_a_bridge_keeps_the_activations_of_its_recipe_in_host_memory() -> None:
    row = {
        "software": "Megatron-Bridge, NeMo container 26.04",
        "model": "llama3-70b",
        "gpu_class": "gb200",
        "precision_class": "fp8",
        "sharding_class": "zero3",
    }
    layers = {"gb200": 40, "gb300": 20}
    for gpu, count in layers.items():
        assert f"training.offload_layers={count}" in recipe_edits(row | {"gpu_class": gpu}, [])
    for other in ({"precision_class": "mxfp8"}, {"sharding_class": "zero1"}):
        assert "training.offload_layers=40" not in recipe_edits(row | other, [])


TITAN = {
    "software": "TorchTitan 2024-12, torch nightly 2024-12-23",
    "n_gpus": "512",
    "gbs": "256",
    "assumptions": "pipeline micro-batch size not published (local batch 32)",
}
PLAN = {"tp": 8, "pp": 8, "cp": 1, "vpp": 1}


@pytest.mark.parametrize(("stages", "micro_batch"), [(1, 4), (2, 2)])
def test_a_local_batch_of_2024_is_cut_into_as_many_micro_batches_as_stages(
    stages: int, micro_batch: int
) -> None:
    edits = recipe_edits(TITAN, [], PLAN | {"vpp": stages})
    assert edits == [f"training.micro_batch={micro_batch}"]


def test_a_micro_batch_that_is_published_or_a_batch_that_cannot_be_cut_stays() -> None:
    assert recipe_edits(TITAN | {"assumptions": ""}, [], PLAN) == []
    assert recipe_edits(TITAN | {"gbs": "72"}, [], PLAN) == []
    assert recipe_edits(TITAN, [], PLAN | {"pp": 1}) == []


def test_a_recipe_of_one_publication_leaves_later_rounds_of_the_same_stack_alone() -> None:
    row = {"software": "NeMo/Megatron-Core submission stack", "model": "gpt3-175b"}
    first = recipe_edits(row | {"source": "MLPerf Training v3.0, gpt3, NVIDIA"}, [])
    assert "framework.variants.flash=flash1" in first
    assert recipe_edits(row | {"source": "MLPerf Training v4.0, gpt3, NVIDIA"}, []) == []
    assert recipe_edits(row, []) == []


@pytest.mark.parametrize(
    ("software", "gpu", "cudnn"),
    [
        ("TorchTitan 2024-12", "h100-sxm", False),
        ("TorchTitan 2025-06", "h100-sxm", False),
        ("TorchTitan 2025-06", "b200-sxm", True),
        ("TorchTitan 2026-01", "h100-sxm", True),
        ("PyTorch FSDP2 2.7", "h200-sxm", False),
        ("PyTorch FSDP2 2.11", "h200-sxm", True),
        ("PyTorch FSDP2 2.11", "a100-sxm-80gb", False),
    ],
)
def test_pytorchs_attention_is_cudnns_from_the_release_and_the_gpu_that_have_it(
    software: str, gpu: str, cudnn: bool
) -> None:
    row = {"software": software, "gpu_class": gpu}
    assert ("framework.variants.flash=cudnn" in recipe_edits(row, [])) == cudnn
