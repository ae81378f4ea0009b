"""The event loop of the fluid play, in the common part of Python and numba.

The functions work on lists, as ordinary Python, and on arrays, compiled: one text, so the two
agree bit for bit.

An instant is handled whole: everything that ends at it ends, everything that can starts, and only
then do the rates change. They change only near what happened: on the ranks where communication
began or ceased, and among the operators that crowded links connect to the cause.
"""

from __future__ import annotations

import math

from seer.fluid.state import Column, Network, Overlap, Queue, Scratch, Work

SLOWEST = 1e-300
"""Keeps a rate from being zero in rounding."""


def push(stack: Column, value: int) -> None:
    """Add to a stack."""
    stack[0] += 1
    stack[stack[0]] = value


def earlier(queue: Queue, a: int, b: int) -> bool:
    """Whether a comes before b; the lower index on ties."""
    key_a, key_b = queue.key[a], queue.key[b]
    return key_a < key_b or (key_a == key_b and a < b)


def rise(queue: Queue, at: int) -> None:
    """Move an item up to where it belongs."""
    i = queue.item[at]
    while at > 0:
        above = (at - 1) >> 1
        j = queue.item[above]
        if not earlier(queue, i, j):
            break
        queue.item[at] = j
        queue.place[j] = at
        at = above
    queue.item[at] = i
    queue.place[i] = at


def sink(queue: Queue, at: int) -> None:
    """Move an item down to where it belongs."""
    i, size = queue.item[at], queue.size[0]
    while 2 * at + 1 < size:
        below = 2 * at + 1
        if below + 1 < size and earlier(queue, queue.item[below + 1], queue.item[below]):
            below += 1
        j = queue.item[below]
        if not earlier(queue, j, i):
            break
        queue.item[at] = j
        queue.place[j] = at
        at = below
    queue.item[at] = i
    queue.place[i] = at


def schedule(queue: Queue, i: int, key: float) -> None:
    """Put i into the queue, or move it to another key."""
    sooner = key < queue.key[i]
    queue.key[i] = key
    if queue.place[i] < 0:
        at = queue.size[0]
        queue.item[at] = i
        queue.size[0] = at + 1
        rise(queue, at)
    elif sooner:
        rise(queue, queue.place[i])
    else:
        sink(queue, queue.place[i])


def pop(queue: Queue) -> int:
    """Take out the first; its key stays readable."""
    i = queue.item[0]
    size = queue.size[0] - 1
    queue.size[0] = size
    queue.place[i] = -1
    if size > 0:
        queue.item[0] = queue.item[size]
        sink(queue, 0)
    return i  # type: ignore[no-any-return]


def retime(work: Work, queue: Queue, i: int, rate: float, now: float) -> None:
    """Let operator i go on at `rate`. Its end is always its start plus its length, to the bit."""
    old = work.rate[i]
    if rate == old:
        return
    start = work.start_s[i]
    if old > 0.0:
        work.left_s[i] = max(work.left_s[i] - (now - work.since_s[i]) * old, 0.0)
    work.rate[i] = rate
    work.since_s[i] = now
    if old == 0.0 and rate == 1.0:  # exactly the plain play, as long as nothing slows it
        schedule(queue, i, start + work.duration_s[i])
        return
    length = (now - start) + work.left_s[i] / rate
    while start + length < now:  # rounding; the clock does not go back
        length = length * (1.0 + 2.3e-16) + 5e-324
    work.length_s[i] = length
    schedule(queue, i, start + length)


def touch_rank(overlap: Overlap, rank: int) -> None:
    """Remember that the operators of a rank may change their rate."""
    if overlap.is_touched[rank] == 0:
        overlap.is_touched[rank] = 1
        push(overlap.touched, rank)


def communicate(overlap: Overlap, i: int, change: int) -> None:
    """Count one communication more, or less, on each rank that operator i runs on."""
    for k in range(overlap.member_ptr[i], overlap.member_ptr[i + 1]):
        rank = overlap.member[k]
        overlap.communicating[rank] += change
        if overlap.communicating[rank] == (change + 1) >> 1:  # the first began, the last ended
            touch_rank(overlap, rank)


def attach(overlap: Overlap, i: int) -> None:
    """Operator i, which can be slowed, runs on its rank from now on."""
    rank = overlap.rank[i]
    j = overlap.first[rank]
    overlap.after[i] = j
    overlap.before[i] = -1
    if j >= 0:
        overlap.before[j] = i
    overlap.first[rank] = i
    touch_rank(overlap, rank)


def detach(overlap: Overlap, i: int) -> None:
    """Operator i has ended."""
    before, after = overlap.before[i], overlap.after[i]
    if after >= 0:
        overlap.before[after] = before
    if before >= 0:
        overlap.after[before] = after
    else:
        overlap.first[overlap.rank[i]] = after


def touch_link(net: Network, scratch: Scratch, link: int) -> None:
    """Remember to share a link again, if it is crowded."""
    if net.load[link] > net.limit[link] and scratch.is_touched[link] == 0:
        scratch.is_touched[link] = 1
        push(scratch.touched, link)


def swap(net: Network, row: int, to: int) -> None:
    """Exchange a row with the one at place `to` among the rows of its link."""
    at, other = net.place[row], net.link_row[to]
    net.link_row[to] = row
    net.place[row] = to
    net.link_row[at] = other
    net.place[other] = at


def join(net: Network, scratch: Scratch, i: int) -> None:
    """The flows of operator i begin."""
    for row in range(net.row_ptr[i], net.row_ptr[i + 1]):
        link = net.row_link[row]
        swap(net, row, net.link_ptr[link] + net.active[link])
        net.active[link] += 1
        net.load[link] += net.row_use[row]
        touch_link(net, scratch, link)
    push(scratch.fresh, i)


def leave(net: Network, scratch: Scratch, i: int) -> None:
    """The flows of operator i end."""
    for row in range(net.row_ptr[i], net.row_ptr[i + 1]):
        link = net.row_link[row]
        touch_link(net, scratch, link)
        net.active[link] -= 1
        swap(net, row, net.link_ptr[link] + net.active[link])
        net.load[link] -= net.row_use[row]
        if net.active[link] == 0:
            net.load[link] = 0.0  # and no rounding is carried on


def enter(net: Network, fill: Queue, scratch: Scratch, link: int) -> None:
    """Take a link, and the operators with flows on it, among those to be shared anew."""
    stamp = scratch.stamp[0]
    if scratch.seen_link[link] == stamp:
        return
    scratch.seen_link[link] = stamp
    if net.load[link] > net.limit[link]:
        scratch.stale[link] = 1
        schedule(fill, link, 0.0)
    first = net.link_ptr[link]
    for k in range(first, first + net.active[link]):
        i = net.row_operator[net.link_row[k]]
        if scratch.seen_operator[i] != stamp:
            scratch.seen_operator[i] = stamp
            scratch.settled[i] = 0
            scratch.goal[i] = 1.0
            push(scratch.operators, i)


def gather(net: Network, fill: Queue, scratch: Scratch) -> None:
    """Find what the touched links can affect: all that crowded links connect to them."""
    scratch.stamp[0] += 1
    scratch.operators[0] = 0
    for k in range(1, scratch.touched[0] + 1):
        link = scratch.touched[k]
        scratch.is_touched[link] = 0
        enter(net, fill, scratch, link)
    scratch.touched[0] = 0
    k = 1
    while k <= scratch.operators[0]:
        i = scratch.operators[k]
        for row in range(net.row_ptr[i], net.row_ptr[i + 1]):
            if net.load[net.row_link[row]] > net.limit[net.row_link[row]]:
                enter(net, fill, scratch, net.row_link[row])
        k += 1


def find_level(net: Network, scratch: Scratch, link: int) -> float:
    """The bandwidth per operator at which those not settled fill a link; -1 where all are."""
    used = slope = 0.0
    first = net.link_ptr[link]
    for k in range(first, first + net.active[link]):
        row = net.link_row[k]
        i = net.row_operator[row]
        if scratch.settled[i] == 1:
            used += net.row_use[row] * scratch.goal[i]
        else:
            slope += net.row_use[row] / net.widest[i]
    return max((net.capacity[link] - used) / slope, 0.0) if slope > 0.0 else -1.0


def settle(net: Network, scratch: Scratch, i: int, rate: float) -> None:
    """Operator i gets this rate and no more."""
    scratch.settled[i] = 1
    scratch.goal[i] = rate
    for row in range(net.row_ptr[i], net.row_ptr[i + 1]):
        scratch.stale[net.row_link[row]] = 1


def settle_full(net: Network, scratch: Scratch, level: float) -> float:
    """Settle those that need no more than `level` to run at rate 1.

    Answers the least that another one needs; the level when some were settled, to look again.
    """
    found = False
    least = math.inf
    for k in range(1, scratch.operators[0] + 1):
        i = scratch.operators[k]
        if scratch.settled[i] == 0:
            if net.widest[i] <= level:
                settle(net, scratch, i, 1.0)
                found = True
            else:
                least = min(least, net.widest[i])
    return level if found else least


def share(net: Network, fill: Queue, scratch: Scratch) -> None:
    """Max-min fair rates of the gathered operators: again and again, the link that fills first.

    The levels at which links fill only rise while operators settle, so a level is found anew no
    sooner than it is the lowest, and an operator that needs no more than the lowest has all it
    needs.
    """
    least = 0.0
    while fill.size[0] > 0:
        link = fill.item[0]
        level = fill.key[link]
        if scratch.stale[link] == 1:
            scratch.stale[link] = 0
            found = find_level(net, scratch, link)
            if found < 0.0:
                pop(fill)
            else:
                schedule(fill, link, max(level, found))
        elif level >= least:
            least = settle_full(net, scratch, level)
        else:
            first = net.link_ptr[link]
            for k in range(first, first + net.active[link]):
                i = net.row_operator[net.link_row[k]]
                if scratch.settled[i] == 0:
                    settle(net, scratch, i, max(level / net.widest[i], SLOWEST))


def pace_ranks(work: Work, queue: Queue, overlap: Overlap, now: float) -> None:
    """New rates on the ranks where communication began or ceased, or an operator started."""
    for k in range(1, overlap.touched[0] + 1):
        rank = overlap.touched[k]
        overlap.is_touched[rank] = 0
        i = overlap.first[rank]
        while i >= 0:
            slowed = overlap.communicating[rank] > 0
            retime(work, queue, i, overlap.slowed_rate[i] if slowed else 1.0, now)
            i = overlap.after[i]
    overlap.touched[0] = 0


def pace_flows(
    work: Work, queue: Queue, net: Network, fill: Queue, scratch: Scratch, now: float
) -> None:
    """New rates of the flows that something touched, and of those that began."""
    if scratch.touched[0] > 0:
        gather(net, fill, scratch)
        share(net, fill, scratch)
        for k in range(1, scratch.operators[0] + 1):
            i = scratch.operators[k]
            retime(work, queue, i, scratch.goal[i], now)
    for k in range(1, scratch.fresh[0] + 1):
        if work.rate[scratch.fresh[k]] == 0.0:
            retime(work, queue, scratch.fresh[k], 1.0, now)
    scratch.fresh[0] = 0


def begin(
    work: Work, queue: Queue, overlap: Overlap, net: Network, scratch: Scratch, i: int
) -> None:
    """Operator i starts. One whose rate never changes gets its end at once."""
    own_pace = True
    if work.duration_s[i] > 0.0:
        communicate(overlap, i, 1)
        if overlap.slowed_rate[i] < 1.0:
            attach(overlap, i)
            own_pace = False
        if net.row_ptr[i] < net.row_ptr[i + 1]:
            join(net, scratch, i)
            own_pace = False
    if own_pace:
        retime(work, queue, i, 1.0, work.start_s[i])


def finish(
    work: Work, queue: Queue, overlap: Overlap, net: Network, scratch: Scratch, i: int
) -> None:
    """Operator i ends, and those start that waited for nothing else."""
    if work.duration_s[i] > 0.0:
        communicate(overlap, i, -1)
        if overlap.slowed_rate[i] < 1.0:
            detach(overlap, i)
        leave(net, scratch, i)
    end = queue.key[i]
    for e in range(work.follower_ptr[i], work.follower_ptr[i + 1]):
        j = work.follower[e]
        if end > work.start_s[j]:
            work.start_s[j] = end
            work.waited_for[j] = i
        elif end == work.start_s[j] and i < work.waited_for[j]:
            work.waited_for[j] = i
        work.unmet[j] -= 1
        if work.unmet[j] == 0:
            begin(work, queue, overlap, net, scratch, j)


def run(
    work: Work, queue: Queue, overlap: Overlap, net: Network, fill: Queue, scratch: Scratch
) -> None:
    """Play from the first start to the last end."""
    for i in range(len(work.unmet)):
        if work.unmet[i] == 0:
            begin(work, queue, overlap, net, scratch, i)
    now = 0.0
    pace_ranks(work, queue, overlap, now)
    pace_flows(work, queue, net, fill, scratch, now)
    while queue.size[0] > 0:
        now = queue.key[queue.item[0]]
        finish(work, queue, overlap, net, scratch, pop(queue))
        while queue.size[0] > 0 and queue.key[queue.item[0]] == now:
            finish(work, queue, overlap, net, scratch, pop(queue))
        pace_ranks(work, queue, overlap, now)
        pace_flows(work, queue, net, fill, scratch, now)


LINKED = (
    push, earlier, rise, sink, schedule, pop, retime, touch_rank, communicate, attach, detach,
    touch_link, swap, join, leave, enter, gather, find_level, settle, settle_full,
    share, pace_ranks, pace_flows, begin, finish, run,
)  # fmt: skip
"""Every function, each after those that it calls."""
