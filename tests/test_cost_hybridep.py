"""Dispatch and combine by the published rates of HybridEP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from seer.calibration import Calibration
from seer.calibration.exchange import reached
from seer.cluster import Cluster
from seer.cost import price
from seer.graph import OperatorKind, Origin, WorkTable
from seer.readers import read_calibration
from seer.readers.calibration_file import read_exchange_rates
from seer.readers.specs import read_cluster

TOKENS, TOP_K = 4096, 8


def exchange_s(
    cluster: str | Cluster, kind: str, ranks: int, nodes: int = 1, **columns: Any
) -> float:
    """Seconds of one exchange of 4,096 tokens to eight experts, priced with no curve at all."""
    shape = {"m": TOKENS, "n": 7168, "k": TOP_K, "batch": 8} | columns
    message = 2.0 * shape["n"] * TOP_K * TOKENS
    row = {"name": kind, "kind": OperatorKind[kind], "variant": "hybridep", "group": "ep"}
    row |= {"group_ranks": ranks, "group_nodes": nodes, "message_bytes": message}
    empty = Calibration("empty", "h100-sxm", "2026-01-01", "none", "burst", ())
    empty = replace(empty, exchanges=read_exchange_rates())
    on = cluster if isinstance(cluster, Cluster) else read_cluster(cluster)
    found = price(WorkTable.from_rows([row | shape]), empty, on)
    assert found.origin[0] == Origin.derived
    return float(found.time_s[0])


def test_a_measured_exchange_takes_its_bytes_over_the_published_rate() -> None:
    # a token to 8 drawn of 8 ranks reaches 8 (1 - (7/8)^8) = 5.251 of them, its own one included
    ranks = 8 * (1 - (7 / 8) ** 8)
    inside = TOKENS * 14336 * ranks / 360e9
    assert exchange_s("dgx-h100", "dispatch", 8) == pytest.approx(inside, rel=1e-9)
    # two nodes: 2 (1 - 1/2^8) of them; over NVLink less than over the NICs
    nodes = 2 * (1 - 0.5**8)
    between = TOKENS * 14336 * nodes / 76.8e9
    assert exchange_s("dgx-h100", "dispatch", 16, 2) == pytest.approx(between, rel=1e-9)


def test_a_first_tier_that_is_oversubscribed_twice_takes_twice_the_time() -> None:
    built = read_cluster("dgx-h100")
    thin = replace(built, tiers=(replace(built.tiers[0], oversubscription=2.0), *built.tiers[1:]))
    plain = exchange_s(built, "dispatch", 8)
    assert exchange_s(thin, "dispatch", 8) == pytest.approx(2.0 * plain, rel=1e-9)


def test_narrow_tokens_reach_the_published_rate_too() -> None:
    # combine of 2,048 elements on eight multiprocessors: 188 GB/s in a node, 33.5 over two of a
    # cluster where wide tokens reach 76.5; the level of wide ones is that of another: 68.0
    ranks, nodes = reached(8, TOP_K), reached(2, TOP_K)
    inside = exchange_s("dgx-h100", "combine", 8, n=2048)
    assert inside == pytest.approx(TOKENS * 4096 * ranks / 188e9, rel=1e-9)
    between = exchange_s("dgx-h100", "combine", 16, 2, n=2048)
    slower = 1 / 33.5e9 - 1 / 76.5e9 + 1 / 68e9
    assert between == pytest.approx(TOKENS * 4096 * nodes * slower, rel=1e-9)


def test_what_stays_on_the_own_part_crosses_no_link() -> None:
    (rack,) = [one for one in read_exchange_rates() if one.nominal_bytes_per_s == 900e9]
    # 632.31 GB/s of 36 ranks, one of which is the own
    assert rack.crossing_bytes_per_s("dispatch", 36, 32) == pytest.approx(632.31e9 * 35 / 36)
    assert rack.crossing_bytes_per_s("dispatch", 64, 32) == pytest.approx(632.31e9 * 35 / 36)
    half = rack.crossing_bytes_per_s("dispatch", 8, 24)
    assert half == pytest.approx((750.15e9 + 764.03e9) / 2 * 7 / 8)


@pytest.mark.parametrize("kind", ["dispatch", "combine"])
def test_more_multiprocessors_and_wider_links_never_slow_an_exchange(kind: str) -> None:
    for width in (1024, 2048, 4096, 7168, 12288):
        times = [exchange_s("dgx-h100", kind, 8, n=width, batch=held) for held in (4, 8, 16, 24)]
        assert times == sorted(times, reverse=True)
    assert exchange_s("dgx-b200", kind, 8) < exchange_s("dgx-h100", kind, 8)


def test_the_port_of_two_nodes_carries_no_more_than_its_nominal_bandwidth() -> None:
    (nic,) = [one for one in read_exchange_rates() if one.link == "nic"]
    for parts, held, *_ in nic.levels:
        for kind in ("dispatch", "combine"):
            assert nic.crossing_bytes_per_s(kind, parts, held) < nic.nominal_bytes_per_s


def test_shipped_calibrations_bring_the_rates_and_price_deepep_by_its_own_curves() -> None:
    calibration, cluster = read_calibration("h100-sxm"), read_cluster("dgx-h100")
    row = {"name": "dispatch", "kind": OperatorKind.dispatch, "group": "ep", "group_ranks": 8}
    row |= {"message_bytes": 2.0 * 2048 * TOP_K * TOKENS, "k": TOP_K, "n": 2048, "m": TOKENS}
    row |= {"batch": 24, "heads": 128}
    fused = WorkTable.from_rows([row | {"variant": v} for v in ("", "hybridep")])
    found = price(fused, calibration, cluster)
    assert found.curve[0] >= 0
    assert found.curve[1] == -1
    assert any("published rates of HybridEP" in note for note in found.notes)
    # NeMo AutoModel's cluster, DeepEP on 24 multiprocessors in 16 bits: 302 GB/s
    published = TOKENS * 4096 * reached(8, TOP_K) / 302e9
    assert found.time_s[0] == pytest.approx(published, rel=0.1)
