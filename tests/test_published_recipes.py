"""Published runs get what their vendor's launch scripts set, and keep what their row says."""

from __future__ import annotations

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
    assert len(notes) == 2


def test_a_run_of_another_model_gpu_precision_or_release_gets_none() -> None:
    for change in ({"model": "llama3-8b"}, {"software": "Megatron-Bridge, NeMo container 25.09"}):
        assert recipe_edits(GPT_OSS | change, []) == []
    assert "training.recompute=selective" not in recipe_edits(GPT_OSS | {"gpu_class": "gb300"}, [])
    late = {"software": "Megatron-Bridge, NeMo container 26.08"}
    assert recipe_edits(GPT_OSS | late, []) == []
    hidden = recipe_edits(GPT_OSS | late | {"precision_class": "mxfp8"}, [])
    assert hidden == ["parallelism.schedule=combined-1f1b"]


def test_recomputation_that_a_row_states_is_not_overruled() -> None:
    notes: list[str] = []
    edits = recipe_edits(GPT_OSS | {"recompute_class": "none"}, notes)
    assert not [edit for edit in edits if edit.startswith("training.recompute")]
    assert len(notes) == 1


def test_every_shipped_recipe_has_a_source_and_edits_that_a_job_takes() -> None:
    for recipe in recipes():
        assert recipe.source, recipe.note
        spec = {"model": "gpt-oss-120b", "gpus": 64, "cluster": "dgx-h100"}
        spec |= {"framework": "nemo", "parallelism": {"ep": 8}}
        assert read_job(spec, recipe.edits)
