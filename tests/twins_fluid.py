"""A slow twin of the fluid play in exact fractions, and networks to draw.

Nothing is kept from one moment to the next but what is left of each operator: at every event all
rates are found from scratch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st
from strategies import Program, programs
from twins import predecessors, stream_queues

from seer.fluid import FluidRates
from seer.graph import COMMUNICATION, COMPUTE, OperatorGraph, OperatorKind
from seer.timeline import Timeline


def fluid_play(
    graph: OperatorGraph, duration_s: Sequence[float], rates: FluidRates
) -> list[tuple[float, float]]:
    """(start, end) of each operator."""
    needs = predecessors(graph)
    left = [Fraction(d) for d in duration_s]
    start: dict[int, Fraction] = {}
    end: dict[int, Fraction] = {}
    now = Fraction(0)
    while len(end) < len(graph):
        for i in range(len(graph)):
            if i not in start and needs[i] <= end.keys():
                start[i] = now
        running = [i for i in start if i not in end]
        rate = rates_now(graph, [i for i in running if left[i] > 0], rates)
        step = min(left[i] / rate.get(i, 1) for i in running)
        now += step
        for i in running:
            left[i] -= step * rate.get(i, 1)
            if left[i] == 0:
                end[i] = now
    return [(float(start[i]), float(end[i])) for i in range(len(graph))]


def rates_now(graph: OperatorGraph, running: list[int], rates: FluidRates) -> dict[int, Fraction]:
    """The rate of every running operator."""
    kind = [OperatorKind(k) for k in graph.work.kind[graph.work_id]]
    talking = {
        int(graph.stream_rank[s])
        for s, queue in enumerate(stream_queues(graph))
        if any(i in running and kind[i] in COMMUNICATION for i in queue)
    }
    result = max_min(graph, running, rates)
    for i in running:
        if kind[i] in COMPUTE and int(graph.rank[i]) in talking:
            slowdown = rates.slowdown_by_kind.get(kind[i], rates.slowdown)
            result[i] = Fraction(1.0 / (1.0 + slowdown))
    return result


def max_min(graph: OperatorGraph, running: list[int], rates: FluidRates) -> dict[int, Fraction]:
    """Progressive filling: let all rise in step until one is full or a link is; fix; go on."""
    use: dict[int, dict[int, Fraction]] = {i: {} for i in running}
    widest: dict[int, Fraction] = {}
    for f, i in enumerate(rates.flow_operator.tolist()):
        if i in use:
            link, one = int(rates.flow_link[f]), Fraction(float(rates.flow_bytes_per_s[f]))
            count = Fraction(float(rates.flow_count[f])) if len(rates.flow_count) else Fraction(1)
            if len(rates.link_pooled) and rates.link_pooled[link]:
                count *= int(graph.multiplicity[i])
            use[i][link] = use[i].get(link, Fraction(0)) + one * count
            widest[i] = max(widest.get(i, Fraction(0)), one)
    free = [Fraction(float(c)) for c in rates.link_bytes_per_s]
    rate = {i: Fraction(0) for i in widest}
    rising = set(widest)
    while rising:
        slope = [sum(use[i].get(link, 0) / widest[i] for i in rising) for link in range(len(free))]
        rise = min(
            [(1 - rate[i]) * widest[i] for i in rising]
            + [free[link] / slope[link] for link in range(len(free)) if slope[link]]
        )
        for i in rising:
            rate[i] += rise / widest[i]
        for link in range(len(free)):
            free[link] -= rise * slope[link]
        full = {link for link in range(len(free)) if free[link] == 0}
        rising = {i for i in rising if rate[i] < 1 and not full & use[i].keys()}
    return rate


def work_done(graph: OperatorGraph, timeline: Timeline, rates: FluidRates) -> np.ndarray:
    """float64[N]: the progress of each operator if `timeline` is what happened. Seconds alone.

    Cuts time at every start and end, so it shares nothing with a play but the timeline.
    """
    start, end = timeline.start_s, timeline.end_s
    cuts = np.unique(np.concatenate([start, end]))
    done = np.zeros(len(graph))
    for low, high in itertools.pairwise(cuts.tolist()):
        running = [i for i in range(len(graph)) if start[i] <= low and end[i] >= high]
        rate = rates_now(graph, running, rates)
        for i in running:
            done[i] += (high - low) * float(rate.get(i, 1))
    return done


@dataclass(frozen=True)
class Fluid:
    """A program with what slows it."""

    program: Program
    rates: FluidRates

    @property
    def graph(self) -> OperatorGraph:
        return self.program.graph


bandwidths = st.one_of(
    st.sampled_from([0.5, 1.0, 2.0, 3.0]),  # ties, and links that are exactly full
    st.floats(0.125, 8.0),
)
slowdowns = st.sampled_from([0.0, 0.25, 0.5, 1.0])


@st.composite
def fluids(draw: st.DrawFn, max_operators: int = 14) -> Fluid:
    """Programs whose communication shares up to three links, pooled or not, often too narrow."""
    program = draw(programs(max_operators))
    graph = program.graph
    multiplicity = draw(st.lists(st.integers(1, 4), min_size=len(graph), max_size=len(graph)))
    graph = replace(graph, multiplicity=np.array(multiplicity, np.int32))
    links = draw(st.integers(1, 3))
    talking = np.flatnonzero(np.isin(graph.work.kind[graph.work_id], list(COMMUNICATION)))
    pair = st.tuples(
        st.sampled_from(talking.tolist() or [0]), st.integers(0, links - 1), bandwidths
    )
    rows = draw(st.lists(pair, max_size=2 * len(talking)))
    many = {"min_size": links, "max_size": links}
    rates = FluidRates(
        slowdown=draw(slowdowns),
        slowdown_by_kind=draw(st.dictionaries(st.just(OperatorKind.memory), slowdowns)),
        link_name=tuple(f"link {i}" for i in range(links)),
        link_bytes_per_s=np.array(draw(st.lists(bandwidths, **many))),
        link_pooled=np.array(draw(st.lists(st.booleans(), **many))),
        flow_operator=np.array([i for i, _, _ in rows], np.int32),
        flow_link=np.array([link for _, link, _ in rows], np.int32),
        flow_bytes_per_s=np.array([b for _, _, b in rows], float),
        flow_count=np.array(
            draw(st.lists(st.integers(1, 3), min_size=len(rows), max_size=len(rows))), float
        ),
    )
    return Fluid(replace(program, graph=graph), rates)


def wide(fluid: Fluid) -> FluidRates:
    """The same flows on links that all of them together do not fill, and no slowdown."""
    rates = fluid.rates
    total = float(np.sum(rates.uses(fluid.graph)))
    capacity = np.full(len(rates.link_name), max(total, 1.0))
    return replace(rates, slowdown=0.0, slowdown_by_kind={}, link_bytes_per_s=capacity)
