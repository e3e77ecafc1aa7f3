"""Play rounds of random schema changes and print the findings.

python -m tests.ddl --rounds 300 --seed 1 [--kinds names types] [--steps 12]     a seed replays a round:
python -m tests.ddl --rounds 1 --seed SEED
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.ddl.rounds import Round, play
from tests.ddl.statements import KINDS
from tests.support.servers import own_servers


def main() -> int:
    """Play the rounds that the arguments select; return 1 if a state was wrong or the daemon stopped."""
    parser = argparse.ArgumentParser(prog="python -m tests.ddl", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the next has the next")
    parser.add_argument("--steps", type=int, default=0, help="of a round; default: as the seed says")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no round after so many")
    parser.add_argument("--only-end", action="store_true", help="compare the topics at the end of a round only")
    given = parser.parse_args()
    began = time.monotonic()
    rounds: list[Round] = []
    with own_servers() as (servers, _):
        for seed in range(given.seed, given.seed + given.rounds):
            if time.monotonic() - began > given.seconds:
                break
            rounds.append(play(servers, seed, tuple(given.kinds), given.steps, only_end=given.only_end))
            print(rounds[-1], flush=True)
    broken = [each.seed for each in rounds if each.findings]
    states = sum(each.states for each in rounds)
    print(f"{len(rounds)} rounds in {time.monotonic() - began:.0f} s, {states} states; {len(broken)} broken: {broken}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
