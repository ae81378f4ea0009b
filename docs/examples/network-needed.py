"""How slow may the network between nodes be before a step takes 5 % longer?"""

import seer

JOB = "llama3-70b-1024xh100"
BANDWIDTH = "cluster.tiers[1].bandwidth_bytes_per_s"


def main() -> None:
    """Print a line for each bandwidth, and the least that is enough."""
    speeds = [400, 200, 100, 50, 25]
    grid = {BANDWIDTH: [f"{speed} Gbit/s" for speed in speeds]}
    found = seer.sweep(JOB, grid, on="here")
    time_s = {plan.edits[BANDWIDTH]: plan.iteration_time_s for plan in found.plans}
    fastest = time_s["400 Gbit/s"]
    for speed, seconds in time_s.items():
        print(f"{speed:>10}  {seconds:5.2f} s  {seconds / fastest - 1:+.1%}")
    enough = [s for s in speeds if time_s[f"{s} Gbit/s"] <= 1.05 * fastest]
    print(f"{min(enough)} Gbit/s for each GPU are enough")
    assert list(time_s.values()) == sorted(time_s.values())


if __name__ == "__main__":
    main()
