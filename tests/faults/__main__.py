"""Play rounds of faults and print the findings.

python -m tests.faults --rounds 200 --seed 1 [--kinds "kill both" "slow links"]     a seed replays a round:
python -m tests.faults --rounds 1 --seed SEED
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.faults.plan import KINDS, Plan, plan
from tests.faults.rounds import Round, run_round
from tests.faults.world import World, why_not


def main() -> int:
    """Play the rounds that the arguments select; return 1 if any promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--rounds", type=int, default=len(KINDS))
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the next has the next")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--folder", type=Path, help="where logs and evidence of failed rounds stay")
    given = parser.parse_args()
    kinds = []
    for kind in given.kinds:
        reason = why_not(kind)
        if reason:
            print(f"left out: {kind} ({reason})")
        else:
            kinds.append(kind)
    # every kind is as frequent as the others, and a seed has the same kind whatever --rounds is
    plans = [plan(seed, kinds, kinds[seed % len(kinds)]) for seed in range(given.seed, given.seed + given.rounds)]
    return play(plans, given.folder)


def play(plans: list[Plan], folder: Path | None = None) -> int:
    """Play rounds on the same servers; print each round and a summary; return the exit code."""
    home = Path(tempfile.mkdtemp(prefix="tailrace-faults-", dir=folder))
    os.chmod(home, 0o755)
    world = World(home)
    began = time.monotonic()
    results: list[Round] = []
    try:
        for each in plans:
            results.append(run_round(world, each))
            print(line(results[-1]), flush=True)
    finally:
        world.close()
        summary(results, time.monotonic() - began)
    if any(result.violations for result in results):
        return 1
    shutil.rmtree(home)
    return 0


def line(result: Round) -> str:
    """Describe a round and its violations."""
    plan = result.plan
    faults = ", ".join(f"{kind} {count}" for kind, count in sorted(result.faults.items()))
    text = f"seed {plan.seed}: {plan.kind}: {result.changes} changes, {result.seconds:.1f} s ({faults})"
    if result.violations:
        text += f"\n  {len(result.violations)} VIOLATIONS, see {result.folder}\n  {plan}"
        text += "".join(f"\n  {each.promise}: {each.detail[:400]}" for each in result.violations[:10])
    return text


def summary(results: list[Round], seconds: float) -> None:
    """Print the numbers of a run."""
    faults: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    for result in results:
        faults += result.faults
        broken += Counter(violation.promise for violation in result.violations)
    print(f"{len(results)} rounds in {seconds:.0f} s, seeds {[r.plan.seed for r in results[:1]]} and up")
    print(f"changes checked: {sum(result.changes for result in results)}")
    print(f"faults: {sum(faults.values())}")
    for kind, count in sorted(faults.items()):
        print(f"  {kind}: {count}")
    print(f"violations: {sum(broken.values())} {dict(broken) or ''}")


if __name__ == "__main__":
    sys.exit(main())
