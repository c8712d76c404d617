"""The SSD tier from outside, in short: each promise of ssd_scenarios.py once, with small sizes."""
import os
import time
import unittest

import ssd_damage
import ssd_scenarios as scenarios
from ssd_support import MIB, Engine, Held, WrongBytes, start, tenants_of, work_folder

SEED = int(os.environ.get("KVTIER_SEED", "1"))


class SsdTest(unittest.TestCase):
    def run(self, result=None):
        print(f"seed {SEED} (set KVTIER_SEED)", flush=True)
        return super().run(result)

    def shows(self, scenario, *sizes):
        began = time.monotonic()
        try:
            print(scenario(*sizes), f"took {time.monotonic() - began:.1f} s", flush=True)
        except scenarios.Skipped as reason:
            self.skipTest(str(reason))

    def test_kill_loses_nothing_durable(self):
        self.shows(scenarios.kill_loses_nothing_durable, SEED, 4)

    def test_kill_gives_right_or_miss_when_the_tier_is_small(self):
        self.shows(scenarios.kill_gives_right_or_miss_when_the_tier_is_small, SEED, 4)

    def test_kill_keeps_what_was_on_ssd(self):
        self.shows(scenarios.kill_keeps_what_was_on_ssd, SEED, 64)

    def test_stop_keeps_what_was_in_ram(self):
        self.shows(scenarios.stop_keeps_what_was_in_ram, SEED, 1)

    def test_disk_stays_within_the_limit(self):
        self.shows(scenarios.disk_stays_within_the_limit, SEED, 64 * MIB, 5, 1)

    def test_full_disk_is_survived(self):
        self.shows(scenarios.full_disk_is_survived)

    def test_start_on_a_full_disk(self):
        self.shows(scenarios.start_on_a_full_disk)

    def test_first_start_on_a_full_disk(self):
        self.shows(scenarios.first_start_on_a_full_disk)

    def test_first_start_on_a_full_ext4(self):
        self.shows(scenarios.first_start_on_a_full_disk, scenarios.small_ext4)

    def test_start_on_a_read_only_mount_is_refused(self):
        self.shows(scenarios.start_on_a_read_only_mount_is_refused)

    def test_read_only_mount_is_survived(self):
        self.shows(scenarios.read_only_mount_is_survived)

    def test_damage_is_a_miss(self):
        self.shows(ssd_damage.damage_is_a_miss)

    def test_newer_file_is_left_alone(self):
        self.shows(ssd_damage.newer_file_is_left_alone)

    def test_longer_than_ram_is_served_whole(self):
        self.shows(scenarios.longer_than_ram_is_served_whole, 16 * MIB)

    def test_tier_in_use_takes_new_blocks(self):
        self.shows(scenarios.tier_in_use_takes_new_blocks)

    def test_write_limit_never_blocks(self):
        self.shows(scenarios.write_limit_never_blocks, 128)

    def test_start_with_many_blocks(self):
        self.shows(scenarios.start_is_quick, 20_000, 60)  # how quick is for ssd_endurance.py

    def test_the_checks_can_fail(self):
        with work_folder() as folder, start(folder, 64 * MIB) as daemon, Engine(daemon) as engine:
            [tenant] = tenants_of("x", 1)
            tenant.model_id = engine.register(tenant.PART_BYTES)
            content = tenant.content(1)
            engine.must_store(content)
            with self.assertRaises(WrongBytes):
                engine.fetch(content._replace(generation=1))
            with self.assertRaisesRegex(AssertionError, "blocks that nobody stored"):
                tenant.check(engine, must_be_durable=True)
            tenant.held = {1: Held(content.blocks), 2: Held(content.blocks, 1)}
            with self.assertRaisesRegex(AssertionError, "of 1 durable blocks"):
                tenant.check(engine, must_be_durable=True)
            tenant.held = {1: Held(content.blocks, content.blocks)}
            tenant.check(engine, must_be_durable=True)


if __name__ == "__main__":
    unittest.main(verbosity=2)
