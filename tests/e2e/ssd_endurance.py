"""The SSD tier from outside, at length: by hand, on a host with time and a real disk.

usage: KVTIERD=build/release/service/kvtierd /usr/bin/python3 tests/e2e/ssd_endurance.py [flags]

Progress goes to stderr; figures to stdout, with --json as one document. Exits 0 only when every
promise that was asked about holds; what this host cannot do (mounts without root) is named as
skipped.
"""
import argparse
import json
import random
import sys
import time

import ssd_damage
import ssd_scenarios as scenarios
from ssd_support import GIB, MIB, progress


def all_scenarios(seed, rounds):
    """By name, each with the sizes of its long form."""
    return {
        "kill_loses_nothing_durable": (scenarios.kill_loses_nothing_durable, seed, rounds),
        "kill_gives_right_or_miss_when_the_tier_is_small":
            (scenarios.kill_gives_right_or_miss_when_the_tier_is_small, seed, rounds),
        "kill_keeps_what_was_on_ssd": (scenarios.kill_keeps_what_was_on_ssd, seed, 1024),
        "stop_keeps_what_was_in_ram": (scenarios.stop_keeps_what_was_in_ram, seed, 30),
        "disk_stays_within_the_limit":
            (scenarios.disk_stays_within_the_limit, seed, 256 * MIB, 20, 20),
        "full_disk_is_survived": (scenarios.full_disk_is_survived,),
        "read_only_mount_is_survived": (scenarios.read_only_mount_is_survived,),
        "damage_is_a_miss": (ssd_damage.damage_is_a_miss,),
        "newer_file_is_left_alone": (ssd_damage.newer_file_is_left_alone,),
        "start_is_quick_with_100_000_blocks": (scenarios.start_is_quick, 100_000, 1),
        "start_is_quick_with_1_000_000_blocks": (scenarios.start_is_quick, 1_000_000, 4),
        "reads_do_not_drift": (scenarios.reads_do_not_drift, seed, 60, GIB),
        "longer_than_ram_is_served_whole": (scenarios.longer_than_ram_is_served_whole, 128 * MIB),
        "tier_in_use_takes_new_blocks": (scenarios.tier_in_use_takes_new_blocks,),
        "write_limit_never_blocks": (scenarios.write_limit_never_blocks, 1024),
    }


def outcome_of(scenario, *sizes):
    began = time.monotonic()
    try:
        outcome = {"result": "holds", "figures": scenario(*sizes)}
    except scenarios.Skipped as reason:
        outcome = {"result": "skipped", "reason": str(reason)}
    except Exception as error:  # whatever it is, the others are still to be asked
        outcome = {"result": "broken", "reason": f"{type(error).__name__}: {error}"}
    outcome["took_seconds"] = round(time.monotonic() - began, 1)
    return outcome


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--rounds", type=int, default=100, help="of kill -9")
    parser.add_argument("--only", action="append", metavar="NAME", help="may be given repeatedly")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    known = all_scenarios(given.seed, given.rounds)
    unknown = set(given.only or ()) - set(known)
    if unknown:
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    progress(f"seed {given.seed}")
    outcomes = {}
    for name in given.only or known:
        progress(f"--- {name}")
        outcomes[name] = outcome_of(*known[name])
        progress(f"--- {name}: {outcomes[name]['result']}")
        if not given.json:
            print(name, json.dumps(outcomes[name]), flush=True)
    if given.json:
        print(json.dumps({"seed": given.seed, "scenarios": outcomes}, indent=2))
    return int(any(outcome["result"] == "broken" for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
