"""Sizes of fabrics against published arithmetic, and against the same fabric built as a graph."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from seer.cli import main
from seer.errors import InfeasibleError, SeerError, UsageError
from seer.fabric import FabricPlan, routes, size_of
from seer.fabric.graph import count_route, count_switches, fabric_graph
from seer.readers.fabrics import parse_ratio, read_fabric

ASTRAL = size_of(read_fabric("astral"))
HPN = size_of(read_fabric("hpn"))


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_astral_is_as_large_as_its_paper_says() -> None:
    assert (ASTRAL.block_gpus, ASTRAL.pod_gpus, ASTRAL.cluster_gpus) == (1024, 65536, 524288)
    assert (ASTRAL.same_rail_gpus, ASTRAL.agg_per_pod, ASTRAL.pods) == (8192, 1024, 8)
    parts = (ASTRAL.tor_switches, ASTRAL.agg_switches, ASTRAL.core_switches)
    assert parts == (8192, 8192, 4096)
    assert ASTRAL.switches == 20480
    assert ASTRAL.links_per_gpu == 2.0
    assert ASTRAL.server_power_w == 524_288_000
    assert 8 * ASTRAL.gpu_bytes_per_s == 400e9
    assert 8 * ASTRAL.host_bytes_per_s == 3200e9


def test_a_pod_over_all_rails_is_an_eighth_and_fifteen_to_one_nearly_doubles_it() -> None:
    assert size_of(read_fabric("astral", {"tier2": "all"})).pod_gpus == 8192
    assert HPN.pod_gpus == 15360
    assert HPN.cluster_gpus == 983040
    assert pytest.approx(16 / 15) == HPN.links_per_gpu
    by_rail = size_of(read_fabric("hpn", {"tier2": "rail"}))
    assert (by_rail.pod_gpus, by_rail.cluster_gpus) == (122880, 983040)


@pytest.mark.parametrize(
    ("name", "end_points", "switches"),
    [("fat-tree-2", 2048, 96), ("mpft", 16384, 768), ("fat-tree-3", 65536, 5120)],
)
def test_fat_trees_of_64_ports_join_as_many_as_published(
    name: str, end_points: int, switches: int
) -> None:
    size = size_of(read_fabric(name))
    assert (size.cluster_gpus, size.switches) == (end_points, switches)


@given(st.integers(1, 64).map(lambda half: 2 * half))
def test_a_fat_tree_follows_the_closed_formulas_of_its_radix(k: int) -> None:
    two = size_of(FabricPlan(k, rails=1, planes=1, breakout=1, tiers=2))
    three = size_of(FabricPlan(k, rails=1, planes=1, breakout=1))
    assert (two.cluster_gpus, two.switches) == (k * k // 2, 3 * k // 2)
    assert (three.cluster_gpus, three.switches) == (k**3 // 4, 5 * k * k // 4)


def test_switches_on_the_way_are_one_three_or_five() -> None:
    astral = {route.name: route.switches for route in routes(ASTRAL)}
    assert astral["same_rail_same_block"] == 1
    assert astral["same_rail_same_pod"] == 3
    assert astral["other_rail_same_block"] == 5
    assert astral["other_rail_same_block_pxn"] == 1
    assert astral["same_rail_other_pod"] == astral["other_rail_other_pod"] == 5
    hpn = {route.name: route.switches for route in routes(HPN)}
    assert hpn["other_rail_same_block"] == hpn["other_rail_same_pod"] == 3


def test_rails_without_a_core_meet_only_over_nvlink() -> None:
    found = {route.name: route for route in routes(size_of(read_fabric("mpft")))}
    assert found["other_rail_same_pod"].switches is None
    assert found["other_rail_same_pod"].hops is None
    assert found["other_rail_same_pod_pxn"].switches == 3
    assert "same_rail_other_pod" not in found


@st.composite
def plans(draw: st.DrawFn) -> FabricPlan:
    return FabricPlan(
        radix=draw(st.sampled_from([2, 4, 6, 8, 12])),
        rails=draw(st.integers(1, 3)),
        planes=draw(st.integers(1, 2)),
        breakout=draw(st.integers(1, 2)),
        tiers=draw(st.sampled_from([2, 3])),
        tier2=draw(st.sampled_from(["rail", "all"])),
        top_ratio=draw(st.sampled_from([Fraction(1), Fraction(2), Fraction(3, 2), Fraction(5)])),
    )


@settings(deadline=None, max_examples=60)
@given(plans())
def test_the_closed_rules_agree_with_the_graph_of_the_whole_fabric(plan: FabricPlan) -> None:
    try:
        size = size_of(plan)
    except InfeasibleError:
        assume(False)
    assume(size.cluster_gpus <= 2000)
    graph = fabric_graph(size)
    counted = count_switches(graph)
    assert counted["gpu"] == size.cluster_gpus
    assert counted["tor"] == size.tor_switches
    assert counted["agg"] == size.agg_switches
    assert counted.get("core", 0) == size.core_switches
    degree = {"tor": 0, "core": 0}
    for node, links in graph.degree():
        if node[0] != "gpu":
            used = links
            if node[0] == "tor":  # NIC ports share a port of the ToR
                used = plan.radix // 2 + size.hosts_per_block // plan.breakout
                degree["tor"] += links - size.hosts_per_block
            degree["core"] += links if node[0] == "core" else 0
            assert used <= plan.radix
    assert degree == {"tor": size.tor_links, "core": size.core_links}
    if size.hosts_per_block > 1:
        for route in routes(size):
            assert count_route(graph, route) == (route.switches, route.paths), route.name


@pytest.mark.parametrize("size", [ASTRAL, HPN], ids=["astral", "hpn"])
def test_paths_of_a_full_size_fabric_agree_with_the_part_of_its_graph_between_two_gpus(
    size: Any,
) -> None:
    graph = fabric_graph(size, pods=2, blocks=2, hosts=2)
    for route in routes(size):
        assert count_route(graph, route) == (route.switches, route.paths), route.name


def test_a_ratio_is_kept_exactly_and_spare_ports_are_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = answer(capsys, "fabric", "--radix", "128", "--tier2", "all", "--top-ratio", "16")
    assert found["ports_used"] == {"agg_down": 112, "agg_up": 7, "core": 128}
    assert found["top_ratio"] == 16
    assert main(["fabric", "--tier2", "all", "--top-ratio", "16"]) == 0
    assert "9 of each tier-2 switch" in capsys.readouterr().out


def test_the_command_prints_the_keys_that_others_rely_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = answer(capsys, "fabric", "--radix", "128", "--tier2", "rail", "--top-ratio", "1")
    assert found["block_gpus"] == 1024
    assert found["pod_gpus"] == 65536
    assert found["cluster_gpus"] == 524288
    assert found["switches"] == 20480
    assert found["links_per_gpu"] == 2
    assert found["paths"]["same_rail_same_pod"] == 3
    assert found["server_power_w"] == pytest.approx(0.524e9, rel=1e-3)


def test_the_graph_is_counted_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "fabric", "mpft", "--graph")
    ways = found["counted_on_graph"]["same_rail_same_pod"]
    assert ways == {"switches": 3, "equal_paths": found["equal_paths"]["same_rail_same_pod"]}


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--radix", "127"], 2, "half of a ToR's ports"),
        (["--radix", "0"], 2, "radix"),
        (["--radix", "100000000"], 2, "half of a ToR's ports"),
        (["--tiers", "4"], 2, "tiers"),
        (["--tier2", "some"], 2, "tier2"),
        (["--top-ratio", "0.5"], 2, "at least 1"),
        (["--top-ratio", "much"], 2, "15:1"),
        (["--top-ratio", "1:0"], 2, "15:1"),
        (["--top-ratio", "nan"], 2, "15:1"),
        (["--top-ratio", "15.3"], 4, "nearest ratios"),
        (["--radix", "8", "--rails", "8", "--planes", "2"], 4, "cannot join a Pod"),
        (["--radix", "8", "--tier2", "all"], 4, "for each one up"),
        (["--port-bandwidth", "400Gb"], 2, "400 Gbit/s"),
        (["--server-power", "-1"], 2, "server_w"),
        (["--rails", "0"], 2, "rails"),
        (["astrall"], 2, "did you mean 'astral'"),
    ],
)
def test_what_cannot_be_built_is_an_error_that_says_why(
    options: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fabric", *options]) == code
    assert words in capsys.readouterr().err


@given(
    st.integers(-2, 300), st.integers(0, 9), st.integers(0, 3), st.floats(allow_nan=True), st.text()
)
def test_any_numbers_end_in_a_size_or_in_an_error_of_ours(
    radix: int, rails: int, planes: int, ratio: float, text: str
) -> None:
    for value in (ratio, text):
        try:
            plan = FabricPlan(radix, rails, planes, top_ratio=parse_ratio(value))
            assert size_of(plan).cluster_gpus > 0
        except SeerError:
            pass


def test_without_networkx_only_the_graph_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(UsageError, match="networkx"):
        fabric_graph(ASTRAL, pods=1, blocks=1, hosts=1)
    assert size_of(read_fabric("astral")).block_gpus == 1024


def test_sizing_does_not_import_networkx() -> None:
    script = (
        "import sys; from seer.cli import main; main(['fabric', '--json']);"
        "sys.exit('networkx' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)
