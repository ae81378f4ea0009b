"""Where the groups of a job lie, rank by rank, and which ranks differ by it.

A group of ranks has a *signature*: on how many nodes, pods, sites it lies and how evenly. Ranks of
a stage whose groups have equal signatures, and whose partners are alike in turn, run at the same
time: they are one *class*, and one of them stands for all. The classes are the coarsest equitable
partition of the ranks of a stage (colour refinement), so that playing one rank per class is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seer.cluster import Cluster, Span
from seer.spec import Job
from seer.workload.groups import STREAMS, ProcessGroup, process_groups

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Columns = Mapping[str, Any]


@dataclass(frozen=True)
class Classes:
    """Ranks of a stage that do the same at the same time in every stage.

    Attributes
    ----------
    of : int64[stage ranks]
        Class of each rank.
    representatives : int64[classes]
        The lowest rank of each.
    copy_of : mapping of group to int64[classes]
        Which kind of group the representative belongs to; equal numbers are one collective.
    number : mapping of group to int64[kinds]
        The number of one group of that kind.
    count : mapping of group to int64[kinds]
        How many groups of that kind a stage has.
    """

    of: Ints
    representatives: Ints
    copy_of: Mapping[str, Ints]
    number: Mapping[str, Ints]
    count: Mapping[str, Ints]


@dataclass(frozen=True)
class Places:
    """Signatures of all groups and transfers of a job.

    Attributes
    ----------
    columns : mapping of group to tuple of columns
        The distinct work-table columns, by signature. "pair" are transfers between two stages.
    signature : mapping of group to int64[pp, groups]
    pair : mapping of (stage, stage) to int64[stage ranks]
        Signature of a transfer from each rank of a stage to its partner in another.
    classes : Classes
    alone : set of str
        Groups whose collectives join ranks of one class only.
    """

    columns: Mapping[str, tuple[Columns, ...]]
    signature: Mapping[str, Ints]
    pair: Mapping[tuple[int, int], Ints]
    classes: Classes
    alone: frozenset[str]


def needs_places(job: Job) -> bool:
    """Whether more than the nodes of packed ranks matters: another order, or tiers that tell."""
    tiers = job.cluster.tiers
    plain = all(t.pooling == "pinned" and not t.distance_km for t in tiers[:2])
    return not job.placement.packed or len(tiers) > 2 or not plain


def find_places(
    job: Job, ways: Sequence[Sequence[tuple[int, int]]], ends: tuple[int, int]
) -> Places:
    """The places of a job whose stages send to each other as in `ways` (from, to).

    One way forward through the pipeline and one back.

    `ends` are the first and the last stage, which share a tied embedding.
    """
    plan, cluster = job.parallelism, job.cluster
    device = job.placement.devices_of(plan.sizes).reshape(plan.pp, plan.stage_ranks)
    domain = np.stack([_domain(device, cluster, k) for k in range(len(cluster.tiers))])
    held = tuple(int(np.bincount(d.ravel()).max()) for d in domain)
    columns: dict[str, tuple[Columns, ...]] = {}
    signature: dict[str, Ints] = {}
    groups = process_groups(plan)
    for name, group in groups.items():
        if group.size > 1:
            signature[name], distinct = _distinct(_signatures(domain, group))
            alike = _part_by(signature[name], _alike(domain, group))
            columns[name] = tuple(
                _columns(row, group.size, cluster, held, part)
                for row, part in zip(distinct, alike, strict=True)
            )
    pair, pair_columns = _pairs(domain, ways, ends, cluster, held)
    columns["pair"] = pair_columns
    classes = _classes(groups, signature, pair, plan.stage_ranks)
    alone = frozenset(name for name in STREAMS[1:] if _alone(groups[name], classes))
    return Places(columns, signature, pair, classes, alone)


def whole_job_columns(job: Job) -> Columns:
    """The columns of a group of all ranks of a job, in the order of their devices."""
    plan, cluster = job.parallelism, job.cluster
    sizes = {"tp": plan.tp, "cp": plan.cp, "dp": plan.dp, "pp": plan.pp}
    device = np.sort(job.placement.devices_of(sizes)).reshape(1, -1)
    domain = np.stack([_domain(device, cluster, k) for k in range(len(cluster.tiers))])
    held = tuple(int(np.bincount(d.ravel()).max()) for d in domain)
    found = _signatures(domain, ProcessGroup("all", 1, job.gpus))
    return _columns(found.reshape(-1), job.gpus, cluster, held)


def _domain(device: Ints, cluster: Cluster, tier: int) -> Ints:
    size = cluster.domain(tier)
    return device // size if size else np.zeros_like(device)


def _signatures(domain: Ints, group: ProcessGroup) -> Ints:
    """Per tier: domains, fewest members, exits of a ring. int64[pp, groups, tiers x 3]."""
    tiers, pp, ranks = domain.shape
    shape = (tiers, pp, ranks // (group.size * group.stride), group.size, group.stride)
    members = domain.reshape(shape).swapaxes(3, 4).reshape(tiers, pp, -1, group.size)
    following = np.roll(members, -1, axis=3)
    moves = members[0] != following[0]
    parts = []
    for tier in range(tiers):
        own = members[tier]
        if (own == own[..., :1]).all():
            one = np.ones_like(own[..., 0])
            parts += [one, one * group.size, one * 0]
            continue
        _, starts = _runs(own)
        parts += [
            starts.sum(axis=2),
            _shortest_run(starts),
            (moves & (own != following[tier])).sum(2),
        ]
    return np.stack(parts, axis=-1).astype(np.int64)


def _runs(members: Ints) -> tuple[Ints, NDArray[np.bool_]]:
    """Members in order along the last axis, and where the first of each kind stands."""
    ordered = np.sort(members, axis=-1)
    starts = np.ones(ordered.shape, bool)
    starts[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    return ordered, starts


def _shortest_run(starts: NDArray[np.bool_]) -> Ints:
    """Length of the shortest run along the last axis; runs begin where `starts` is true."""
    size = starts.shape[-1]
    place = np.where(starts, np.arange(size), size)
    following = np.minimum.accumulate(place[..., ::-1], axis=-1)[..., ::-1]
    end = np.concatenate([following[..., 1:], np.full((*starts.shape[:-1], 1), size)], axis=-1)
    return np.asarray(np.where(starts, end - np.arange(size), size).min(axis=-1))


def _distinct(values: Ints) -> tuple[Ints, Ints]:
    """Numbers of equal rows along the last axis, and the distinct rows."""
    rows = values.reshape(-1, values.shape[-1])
    if (rows == rows[0]).all():
        return np.zeros(values.shape[:-1], np.int64), rows[:1]
    distinct, inverse = np.unique(rows, axis=0, return_inverse=True)
    return inverse.reshape(values.shape[:-1]).astype(np.int64), distinct


def _alike(domain: Ints, group: ProcessGroup) -> Floats:
    """Part of a stage's groups that has members in a domain of each, per tier.

    float64[pp, groups, tiers]; the largest over the domains of a group.
    """
    pp, parts = domain.shape[1], []
    for at in domain:
        wide = int(at.max()) + 1
        members = np.stack([_by_group(at[s] + s * wide, group) for s in range(pp)])
        parts.append(_touching(members, pp * wide))
    return np.stack(parts, axis=-1)


def _touching(members: Ints, domains: int) -> Floats:
    """Part of the groups that has members in a domain of each: of int64[pp, groups, size]."""
    ordered, starts = _runs(members)
    groups = np.bincount(ordered[starts], minlength=domains)
    return np.asarray(groups[members].max(axis=2) / members.shape[1])


def _part_by(signature: Ints, part: Floats) -> list[tuple[float, ...]]:
    """Means of float64[..., tiers] over what has one signature, in the order of signatures."""
    of, parts = signature.ravel(), part.reshape(-1, part.shape[-1])
    total = np.stack([np.bincount(of, weights=column) for column in parts.T], axis=-1)
    return [tuple(row) for row in (total / np.bincount(of)[:, None]).tolist()]


def _columns(
    row: Ints, size: int, cluster: Cluster, held: tuple[int, ...], alike: tuple[float, ...] = ()
) -> Columns:
    domains, fewest, exits = row.reshape(-1, 3).T.tolist()
    on_node = fewest[0]
    leaving = [
        min(1.0, leaves / count * on_node / least) if count > 1 else 0.0
        for count, least, leaves in zip(domains, fewest, exits, strict=True)
    ]
    return {
        "group_ranks": size,
        "group_nodes": domains[0],
        "nic_share": on_node / cluster.devices_per_node,
        "span": Span(tuple(domains), tuple(fewest), tuple(leaving), held, alike=alike),
    }


# ---- transfers --------------------------------------------------------------------------------


def _pairs(
    domain: Ints,
    ways: Sequence[Sequence[tuple[int, int]]],
    ends: tuple[int, int],
    cluster: Cluster,
    held: tuple[int, ...],
) -> tuple[dict[tuple[int, int], Ints], tuple[Columns, ...]]:
    """Signatures of the transfers of every pair of stages, and their columns.

    All stages that send out of a domain in one direction of the pipeline are taken to send at once,
    those of the other direction in between: a stage alternates forward and backward passes.
    """
    tiers = len(domain)
    senders = [
        np.max([_senders(domain[tier], way) for way in ways], axis=0) for tier in range(tiers)
    ]
    pairs = sorted({pair for way in ways for pair in way})
    rows, alike = [], []
    if ends[0] != ends[1] and ends not in pairs:
        pairs = [*pairs, ends]
    for source, target in pairs:
        both = np.stack([domain[:, source], domain[:, target]], axis=-1)
        alike.append(np.stack([_touching(at[None], int(at.max()) + 1)[0] for at in both], axis=-1))
        differs = domain[:, source] != domain[:, target]
        top = np.where(differs.any(0), tiers - np.argmax(differs[::-1], axis=0), 0)
        sending = np.zeros_like(top)
        for tier in range(1, tiers + 1):
            at = top == tier
            sending[at] = senders[tier - 1][domain[tier - 1, source][at]]
        rows.append(np.stack([top, sending], axis=-1))
    if not rows:
        return {}, ()
    signature, distinct = _distinct(np.stack(rows))
    parts = _part_by(signature, np.stack(alike))
    columns = tuple(
        _pair_columns(int(t), int(n), cluster, held, part)
        for (t, n), part in zip(distinct, parts, strict=True)
    )
    return dict(zip(pairs, signature, strict=True)), columns


def _senders(domain: Ints, pairs: Sequence[tuple[int, int]]) -> Ints:
    """Ranks of each domain that send out of it along these pairs of stages."""
    found = np.zeros(int(domain.max()) + 1, np.int64)
    for source, target in pairs:
        out = domain[source] != domain[target]
        found += np.bincount(domain[source][out], minlength=len(found))
    return found


def _pair_columns(
    top: int, sending: int, cluster: Cluster, held: tuple[int, ...], alike: tuple[float, ...]
) -> Columns:
    far = [k < top for k in range(len(held))]
    share = min(1.0, sending / held[top - 1]) if top else 1.0
    return {
        "group_ranks": 2,
        "group_nodes": 2 if top else 1,
        "nic_share": 1.0 / cluster.devices_per_node,
        "span": Span(
            tuple(2 if out else 1 for out in far),
            tuple(1 if out else 2 for out in far),
            tuple(1.0 if out else 0.0 for out in far),
            held,
            share,
            alike,
        ),
    }


# ---- classes ----------------------------------------------------------------------------------


def _classes(
    groups: Mapping[str, ProcessGroup],
    signature: Mapping[str, Ints],
    pair: Mapping[tuple[int, int], Ints],
    ranks: int,
) -> Classes:
    """The coarsest equitable partition of the ranks of a stage."""
    numbers = {name: group.number(ranks) for name, group in groups.items()}
    colour = np.zeros(ranks, np.int64)
    for name, of in signature.items():
        for stage in np.unique(of, axis=0):
            colour = _joined(colour, stage[numbers[name]])
    for of in pair.values():
        colour = _joined(colour, of)
    kinds = {}
    while True:
        refined = colour
        for name, number in numbers.items():
            members = np.sort(_by_group(colour, groups[name]), axis=1)
            kinds[name], _ = _distinct(members)
            refined = _joined(refined, kinds[name][number])
        if refined.max() == colour.max():
            break
        colour = refined
    _, representatives = np.unique(colour, return_index=True)
    first = {name: np.unique(kind, return_index=True)[1] for name, kind in kinds.items()}
    return Classes(
        of=colour,
        representatives=representatives,
        copy_of={name: kinds[name][numbers[name][representatives]] for name in groups},
        number=first,
        count={name: np.bincount(kind) for name, kind in kinds.items()},
    )


def _joined(one: Ints, other: Ints) -> Ints:
    """Numbers of equal pairs, in the order of the pairs."""
    if (other == other[0]).all():
        return one
    pairs = one * (int(other.max()) + 1) + other
    return np.asarray(np.unique(pairs, return_inverse=True)[1], np.int64)


def _by_group(values: Ints, group: ProcessGroup) -> Ints:
    """Values of the members of each group. int64[groups, size]."""
    parts = values.reshape(-1, group.size, group.stride)
    return np.asarray(parts.swapaxes(1, 2).reshape(-1, group.size))


def _alone(group: ProcessGroup, classes: Classes) -> bool:
    members = _by_group(classes.of, group)
    return bool((members == members[:, :1]).all())
