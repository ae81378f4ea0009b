"""How many switches and equal paths lie between two GPUs of a fabric, by a closed rule."""

from __future__ import annotations

from dataclasses import dataclass

from seer.fabric.sizes import FabricSize

SWITCHES = {1: 1, 2: 3, 3: 5}
"""Switches on the way up to the lowest tier that two GPUs share, and down again."""


@dataclass(frozen=True)
class Route:
    """The shortest way between two GPUs.

    Attributes
    ----------
    name : str
        How they lie to each other.
    same_rail, same_block, same_pod : bool
    pxn : bool
        Whether the sender first hands its data, over NVLink, to the GPU of its host that is on the
        receiver's rail (NCCL's PXN).
    switches : int or None
        On the way; None where the fabric does not join the two.
    paths : int
        Ways with so few switches.
    """

    name: str
    same_rail: bool
    same_block: bool
    same_pod: bool
    pxn: bool
    switches: int | None
    paths: int

    @property
    def hops(self) -> int | None:
        """Links of the fabric on the way."""
        return None if self.switches is None else self.switches + 1


PAIRS = (
    ("same_rail_same_block", True, True, True),
    ("same_rail_same_pod", True, False, True),
    ("other_rail_same_block", False, True, True),
    ("other_rail_same_pod", False, False, True),
    ("same_rail_other_pod", True, False, False),
    ("other_rail_other_pod", False, False, False),
)
"""Name, same rail, same block, same Pod."""


def routes(size: FabricSize) -> tuple[Route, ...]:
    """Every way in which two GPUs of different hosts can lie to each other.

    The lowest common tier is 1 on the same rail of a block; 2 in a Pod on the same rail, or on any
    where tier 2 joins all rails; else 3. With one switch there is a path for each plane; with
    three, one for each tier-2 switch of each plane; with five, for each tier-2 switch of a plane
    and each of its up-links, and down to each plane, since a Core joins the planes.

    >>> from seer.fabric import FabricPlan, size_of
    >>> [(r.name, r.switches) for r in routes(size_of(FabricPlan(radix=128)))][2:4]
    [('other_rail_same_block', 5), ('other_rail_same_block_pxn', 1)]
    """
    plan, found = size.plan, []
    for name, same_rail, same_block, same_pod in PAIRS:
        exists = same_rail or plan.rails > 1
        exists &= same_block or size.blocks_per_pod > 1 or not same_pod
        exists &= same_pod or size.pods > 1
        for pxn in (False, True):
            if exists and not (pxn and same_rail):
                on_rail = same_rail or pxn
                tier = _common_tier(size, on_rail, same_block, same_pod)
                suffix = "_pxn" if pxn else ""
                found.append(
                    Route(
                        name=name + suffix,
                        same_rail=same_rail,
                        same_block=same_block,
                        same_pod=same_pod,
                        pxn=pxn,
                        switches=SWITCHES[tier] if tier else None,
                        paths=_paths(size, tier),
                    )
                )
    return tuple(found)


def _common_tier(size: FabricSize, same_rail: bool, same_block: bool, same_pod: bool) -> int:
    """The lowest tier that joins two GPUs; 0 where none does."""
    if same_rail and same_block:
        return 1
    if same_pod and (same_rail or size.plan.tier2 == "all"):
        return 2
    return 3 if size.core_switches else 0


def _paths(size: FabricSize, tier: int) -> int:
    planes, up = size.plan.planes, size.plan.radix // 2
    return (0, planes, planes * up, planes * up * size.agg_up * planes)[tier]
