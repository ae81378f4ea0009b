"""Layer templates: formulas over a job's numbers, wrong entries refused with their JSON path."""

from __future__ import annotations

from typing import Any

import pytest

from seer.errors import UsageError
from seer.graph import OperatorKind
from seer.readers import read_layer_template
from seer.readers.layer_template import parse_layer_template

ENTRY: dict[str, Any] = {"name": "fc", "kind": "gemm", "m": "tokens", "n": "4 * hidden", "k": 64}


def template(**entry: Any) -> dict[str, Any]:
    return {
        "name": "small",
        "source": "a test",
        "parameters": {"dtype_bytes": 2, "tokens": "micro_batch * sequence"},
        "sections": {"layer": [{**ENTRY, **entry}]},
    }


def test_parameters_are_evaluated_in_their_order_and_given_ones_win() -> None:
    small = parse_layer_template(template(), "t.json")
    values = small.values({"micro_batch": 2, "sequence": 8, "dtype_bytes": 1})
    assert (values["tokens"], values["dtype_bytes"]) == (16, 1)


def test_an_operator_evaluates_the_columns_it_states() -> None:
    small = parse_layer_template(template(when="tp > 1"), "t.json")
    (operator,) = small.sections["layer"]
    values = {"tokens": 16.0, "hidden": 32.0, "tp": 1.0}
    assert operator.kind is OperatorKind.gemm
    assert operator.evaluate(values) == {"m": 16, "n": 128, "k": 64}
    assert not operator.exists(values)
    assert operator.exists({**values, "tp": 2.0})


def test_the_shipped_transformer_multiplies_as_often_as_a_transformer_does() -> None:
    """Per token and layer: 2 x (4 h^2 + 2 h ffn) flop of weights, and 4 s h of attention."""
    shipped = read_layer_template("transformer")
    given = {
        **{"micro_batch": 1, "sequence": 128, "hidden": 64, "heads": 4, "kv_heads": 4},
        **{"head_dim": 16, "ffn": 256, "vocab": 1000, "tp": 1, "gated": 0, "dropout": 0},
        **{"sequence_parallel": 0, "rope": 0, "learned_positions": 1, "fused_attention": 0},
        **{"separate_bias": 0, "qkv_copies": 0, "fused_loss": 0, "window": 0},
        **{"cp": 1, "cp_p2p": 0, "cp_all_gather": 0, "cp_all_to_all": 0, "experts": 0, "ep": 1},
        **{"etp": 1, "top_k": 0, "shared_ffn": 0, "expert_ffn": 0, "routing_imbalance": 1},
        **{"qk_nope_head_dim": 0, "qk_rope_head_dim": 0},
    }
    values = shipped.values(given)
    flop = 0.0
    for operator in (*shipped.sections["attention"], *shipped.sections["mlp"]):
        if operator.kind is OperatorKind.gemm and operator.exists(values):
            row = operator.evaluate(values)
            flop += 2 * row["m"] * row["n"] * row["k"] * row.get("batch", 1)
    assert flop == 128 * (2 * (4 * 64**2 + 2 * 64 * 256) + 4 * 128 * 64)


@pytest.mark.parametrize(
    ("entry", "place", "message"),
    [
        ({"knd": "x"}, "$.sections.layer[0]", "did you mean 'kind'"),
        ({"kind": "gem"}, "$.sections.layer[0]", "did you mean 'gemm'"),
        ({"kind": "segment"}, "$.sections.layer[0]", "not a kind"),
        ({"kind": None}, "$.sections.layer[0]", "'kind' is missing"),
        ({"pass": "forwards"}, "$.sections.layer[0].pass", "did you mean 'forward'"),
        ({"m": "__import__('os')"}, "$.sections.layer[0].m", "__import__"),
        ({"name": 3}, "$.sections.layer[0].name", "not text"),
        ({"when": "tp >"}, "$.sections.layer[0].when", "not accepted"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_json_path(
    entry: dict[str, Any], place: str, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        parse_layer_template(template(**entry), "t.json")
    assert caught.value.where == f"t.json: {place}"
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["max", "a-b", "", "1st", "x" * 65])
def test_a_parameter_that_no_formula_can_name_is_refused(name: str) -> None:
    broken = template()
    broken["parameters"] = {name: 1}
    with pytest.raises(UsageError, match="cannot name a parameter"):
        parse_layer_template(broken, "t.json")


@pytest.mark.parametrize("value", [[], {"sections": []}, {"sections": {"layer": {}}}, {}, 3])
def test_a_template_of_another_shape_is_refused(value: Any) -> None:
    with pytest.raises(UsageError):
        parse_layer_template(value, "t.json")
