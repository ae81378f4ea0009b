"""Where hosts hang, from SLURM and Kubernetes, to the devices of a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seer.errors import InfeasibleError, SeerError, UnreadableError, UsageError
from seer.readers import read_cluster, read_job
from seer.readers.host_devices import devices_of_hosts
from seer.readers.hostlist import expand_hosts
from seer.readers.topology import read_topology

CONF = """
# two leaves under a spine
SwitchName=leaf1 Nodes=n[01-02] LinkSpeed=900
SwitchName=leaf2 \\
    Nodes=n[03-04]
SwitchName=spine Switches=leaf[1-2]
"""
TREE = """
- topology: other
  flat: true
- topology: fabric
  cluster_default: true
  tree:
    switches:
      - {switch: spine, children: "leaf[1-2]"}
      - {switch: leaf1, nodes: "n[01-02]"}
      - {switch: leaf2, nodes: "n[03-04]"}
"""
BLOCK_YAML = """
- topology: racks
  block:
    block_sizes: [16]
    blocks:
      - {block: rack1, nodes: "t[01-18]"}
      - {block: rack2, nodes: "t[19-36]"}
"""
BLOCK_CONF = "BlockName=rack1 Nodes=t[01-18]\nBlockName=rack2 Nodes=t[19-36]\nBlockSizes=16\n"
HOSTS = {
    "n01": {1: "leaf1", 2: "spine"},
    "n02": {1: "leaf1", 2: "spine"},
    "n03": {1: "leaf2", 2: "spine"},
    "n04": {1: "leaf2", 2: "spine"},
}


def node(name: str, **labels: str) -> dict[str, Any]:
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}}


def file(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("name", "text"), [("topology.conf", CONF), ("topology.yaml", TREE)])
def test_a_tree_of_slurm_gives_each_host_its_switches_from_the_lowest_up(
    name: str, text: str, tmp_path: Path
) -> None:
    assert read_topology(file(tmp_path, name, text)) == HOSTS


@pytest.mark.parametrize(("name", "text"), [("t.conf", BLOCK_CONF), ("t.yaml", BLOCK_YAML)])
def test_blocks_of_slurm_are_nvlink_domains(name: str, text: str, tmp_path: Path) -> None:
    found = read_topology(file(tmp_path, name, text))
    assert len(found) == 36
    assert found["t18"] == {0: "rack1"}
    assert found["t19"] == {0: "rack2"}


def test_labels_of_kubernetes_name_clique_and_tiers_old_and_new(tmp_path: Path) -> None:
    old = "network.topology.nvidia.com/"
    nodes = [
        node("a", **{"nvidia.com/gpu.clique": "c1", "fabric.topograph.run/tier-1": "l1"}),
        node("b", **{old + "leaf": "l2", old + "spine": "s1", "zone": "x"}),
        node("without", zone="x"),
    ]
    path = file(tmp_path, "nodes.json", json.dumps({"kind": "List", "items": nodes}))
    assert read_topology(path) == {"a": {0: "c1", 1: "l1"}, "b": {1: "l2", 2: "s1"}}


def test_hosts_of_a_leaf_are_numbered_into_one_leaf_of_the_cluster() -> None:
    # fat-tree-h100: nodes of 8, leaves of 32, pods of 1,024; the hosts are taken by turns
    found = devices_of_hosts(HOSTS, ["n03", "n01", "n04"], read_cluster("fat-tree-h100"), "")
    assert found == (*range(32, 40), *range(0, 8), *range(40, 48))


def test_trays_of_a_rack_are_numbered_into_one_nvlink_domain(tmp_path: Path) -> None:
    topology = read_topology(file(tmp_path, "t.conf", BLOCK_CONF))
    found = devices_of_hosts(topology, ["t01", "t19", "t20"], read_cluster("gb200-nvl72"), "")
    assert found == (0, 1, 2, 3, 72, 73, 74, 75, 76, 77, 78, 79)


def test_a_block_of_hosts_that_are_nodes_is_a_domain_of_the_first_tier() -> None:
    hosts = {"a": {0: "b1"}, "b": {0: "b2"}, "c": {0: "b1"}}
    found = devices_of_hosts(hosts, ["a", "c", "b"], read_cluster("fat-tree-h100"), "")
    assert found == (*range(16), *range(32, 40))


def test_a_domain_larger_than_the_tier_is_refused_with_the_key_to_set() -> None:
    hosts = {f"n{i}": {1: "leaf"} for i in range(5)}
    with pytest.raises(InfeasibleError, match=r"needs 40 GPUs.*'leaf'(?s:.*)tiers\[1\].size"):
        devices_of_hosts(hosts, list(hosts), read_cluster("fat-tree-h100"), "")


def test_a_job_is_placed_by_the_topology_beside_it(tmp_path: Path) -> None:
    file(tmp_path, "topology.conf", CONF)
    spec = {
        "model": "llama3-8b",
        "cluster": "fat-tree-h100",
        "gpus": 32,
        "parallelism": {"tp": 8},
        "placement": {"topology": "topology.conf", "hosts": "n[03-04],n01,n02"},
    }
    path = file(tmp_path, "job.json", json.dumps(spec))
    devices = read_job(path).placement.devices
    assert devices[:8] == tuple(range(32, 40))
    assert devices[16:24] == tuple(range(8))
    with pytest.raises(InfeasibleError, match="32 devices are named for 64 GPUs"):
        read_job(path, {"gpus": 64})
    with pytest.raises(UsageError, match="'n05' is not in the topology"):
        read_job(path, {"placement.hosts": "n05"})


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("t.conf", "NodeName=n1\n", "line 1"),
        ("t.conf", "SwitchName=s1 Switches=s2\nSwitchName=s2\n", "no host hangs on any switch"),
        ("t.conf", "SwitchName=a Nodes=n1 Switches=b\nSwitchName=b Switches=a\n", "a circle"),
        ("t.conf", "SwitchName=a Nodes=n[5-1]\n", "has no hosts"),
        ("t.conf", "SwitchName=a Nodes=n[1-999999999]\n", "more than"),
        ("t.conf", "SwitchName=a Nodes=n[1-x]\n", "no range of hosts"),
        ("t.yaml", "- topology: t\n  flat: true\n", "no tree and no block"),
        ("t.yaml", "just text\n", "neither a topology.yaml"),
        ("t.json", '{"items": [{"metadata": {"name": "a", "labels": {}}}]}', "no node has a label"),
        ("t.json", '{"items": [7]}', "without metadata.name"),
    ],
)
def test_a_damaged_topology_is_refused_in_words(
    name: str, text: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises((UnreadableError, UsageError), match=words):
        read_topology(file(tmp_path, name, text))


def test_brackets_of_a_host_list_are_multiplied_out() -> None:
    assert expand_hosts("r[1-2]n[09-10]", "") == ["r1n09", "r1n10", "r2n09", "r2n10"]
    assert expand_hosts("a, b\tc", "") == ["a", "b", "c"]


@given(st.text(alphabet="n0129[]-,= ", max_size=40))
def test_any_text_is_a_host_list_or_refused(text: str) -> None:
    try:
        hosts = expand_hosts(text, "here")
    except SeerError:
        return
    assert all(host and "," not in host for host in hosts)


def test_a_switch_that_is_not_described_is_named(tmp_path: Path) -> None:
    path = tmp_path / "topology.conf"
    path.write_text("SwitchName=leaf1 Nodes=n[1-2]\nSwitchName=top Switches=leaf[1-2]\n")
    with pytest.raises(UsageError, match="leaf2 below top is not described"):
        read_topology(path)


def test_a_line_may_go_on_behind_a_backslash_of_either_line_end(tmp_path: Path) -> None:
    path = tmp_path / "topology.conf"
    for end in ("\n", "\r\n"):
        path.write_bytes(f"SwitchName=leaf1 \\{end} Nodes=n[1-2]{end}".encode())
        assert [*read_topology(path)] == ["n1", "n2"]
