#!/usr/bin/env python3
"""Shows that the fixed seeds of CI reach every situation that isn't marked rare.

  situations_test.py TPSYNC

Runs the scenarios at TP2, all single faults at TP2 and some random plans in drawn worlds, adds up
what they reached, and prints how often each situation was. Exit status 1 names what was missed.
"""

import json
import subprocess
import sys

MINIMUM = 40
SEARCHES = [
    ["run", "--world", "sim", "--tp", "2"],
    ["explore", "--world", "sim", "--faults", "single", "--tp", "2"],
    ["explore", "--world", "sim", "--faults", "random", "--swarm", "--draw-worlds", "--seeds",
     "300"],
]


def answer_of(tpsync, arguments):
    done = subprocess.run([tpsync, *arguments, "--json"], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"tpsync {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout)


def counts_in(answer):
    return [answer] if "situations" in answer else answer["schedules"]


def main():
    tpsync = sys.argv[1]
    rows = answer_of(tpsync, ["list", "--situations"])
    if len(rows) < MINIMUM or len({row["id"] for row in rows}) != len(rows):
        sys.exit(f"there must be at least {MINIMUM} situations, each with its own id")
    total = {row["id"]: 0 for row in rows}
    for search in SEARCHES:
        for part in counts_in(answer_of(tpsync, search)):
            for name, runs in part["situations"].items():
                total[name] += runs
    for row in rows:
        print(f"{total[row['id']]:8}  {row['id']}{'  (rare)' if row['rare'] else ''}")
    missed = [row["id"] for row in rows if not row["rare"] and total[row["id"]] == 0]
    print("search further: tpsync explore --world sim --faults random --swarm --draw-worlds "
          "--first 1000000 --seeds 100000")
    if missed:
        sys.exit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
