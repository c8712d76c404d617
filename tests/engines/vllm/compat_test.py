"""What the connector makes of vLLM's configuration and of files, without an engine: settings, identity,
statistics."""
import json
import os
import pathlib
import random
import shutil
import struct
import sys
import tempfile
import types
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "client" / "python"))

from kvtier import Tier  # noqa: E402
from kvtier.engines import vllm_compat as compat  # noqa: E402
from kvtier.engines.paged import SchedulerCounters  # noqa: E402
from kvtier.engines.vllm import KvtierStats, Settings  # noqa: E402

SEED = 20


def write_weights(path: pathlib.Path, tensors: int, tensor_bytes: int) -> None:
    """A safetensors file of random bytes."""
    source = random.Random(SEED)
    heads = {}
    for i in range(tensors):
        span = [i * tensor_bytes, (i + 1) * tensor_bytes]
        heads[f"layer.{i}"] = {"dtype": "U8", "shape": [tensor_bytes], "data_offsets": span}
    head = json.dumps(heads).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + source.randbytes(tensors * tensor_bytes))


def fill(path: pathlib.Path, at: int, size: int) -> None:
    with path.open("r+b") as file:
        file.seek(at, 0 if at >= 0 else 2)
        file.write(b"\x55" * size)


class SettingsTest(unittest.TestCase):

    def refused(self, words: str, **extra) -> None:
        with self.assertRaisesRegex(ValueError, words):
            Settings.read(extra)

    def test_defaults_and_all_keys(self):
        self.assertEqual(Settings.read({"address": "unix:/x"}), Settings("unix:/x"))
        given = Settings.read({"address": "h:1", "tenant": "t", "revision": "r", "load": "sync",
                               "lookup_budget": 1, "load_budget": 0.5, "save_budget": 2})
        self.assertEqual((given.load, given.save_budget), ("sync", 2))

    def test_loads_within_the_step_where_asked_for_and_in_the_users_process(self):
        def config(ranks: int) -> types.SimpleNamespace:
            return types.SimpleNamespace(parallel_config=types.SimpleNamespace(world_size=ranks))

        def inline(load: str, ranks: int) -> bool:
            return Settings.read({"address": "unix:/x", "load": load}).inline(config(ranks))
        self.assertEqual([inline(load, 1) for load in ("sync", "async", "auto")], [True, False, True])
        self.assertFalse(inline("auto", 2))

    def test_what_is_wrong_is_named(self):
        self.refused("address")
        self.refused("unknown keys.*adress", adress="unix:/x", address="unix:/x")
        self.refused("tenant is 3", address="unix:/x", tenant=3)
        self.refused("load is \"later\"", address="unix:/x", load="later")
        self.refused("lookup_budget is 0", address="unix:/x", lookup_budget=0)
        self.refused("load_budget is True", address="unix:/x", load_budget=True)


class SupportedTest(unittest.TestCase):
    """With a configuration of only what is looked at."""

    def check(self, algorithm: str = "sha256", policy: str = "recompute", groups: int = 1, context: int = 1,
              seed: str | None = None) -> list[str]:
        config = types.SimpleNamespace(
            parallel_config=types.SimpleNamespace(prefill_context_parallel_size=context),
            cache_config=types.SimpleNamespace(prefix_caching_hash_algo=algorithm),
            kv_transfer_config=types.SimpleNamespace(kv_load_failure_policy=policy))
        environment = {} if seed is None else {"PYTHONHASHSEED": seed}
        with unittest.mock.patch.dict(os.environ, environment):
            if seed is None:
                os.environ.pop("PYTHONHASHSEED", None)
            return compat.check_supported(config, types.SimpleNamespace(kv_cache_groups=[None] * groups))

    def test_hashes_that_differ_by_process_need_a_seed(self):
        for algorithm in ("xxhash", "xxhash_cbor"):
            with self.assertRaisesRegex(ValueError, "PYTHONHASHSEED"):
                self.check(algorithm)
            self.check(algorithm, seed="0")
        self.check("sha256")
        self.check("sha256_cbor")

    def test_the_failing_policy_is_warned_about(self):
        self.assertEqual([w for w in self.check() if "kv_load_failure_policy" in w], [])
        self.assertEqual(len([w for w in self.check(policy="fail") if "kv_load_failure_policy" in w]), 1)

    def test_another_version_is_warned_about(self):
        with unittest.mock.patch.object(compat, "TESTED", "0.1.2"):
            self.assertIn("0.1.2", self.check()[0])

    def test_what_cannot_work_is_refused(self):
        with self.assertRaisesRegex(ValueError, "2 groups"):
            self.check(groups=2)
        with self.assertRaisesRegex(ValueError, "prefill_context_parallel_size is 2"):
            self.check(context=2)


class DigestTest(unittest.TestCase):

    def setUp(self):
        print(f"seed {SEED}")
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="kvtier_digest_"))
        self.addCleanup(shutil.rmtree, self.root)
        self.folder = self.root / "model"
        self.folder.mkdir()
        self.file = self.folder / "model.safetensors"
        write_weights(self.file, tensors=40, tensor_bytes=8192)

    def test_a_copy_elsewhere_is_the_same(self):
        copy = shutil.copytree(self.folder, self.root / "elsewhere")
        self.assertEqual(compat.folder_digest(self.folder), compat.folder_digest(copy))

    def test_another_tensor_shows_wherever_it_is(self):
        before = compat.folder_digest(self.folder)
        for tensor in (1, 20, 40):
            copy = shutil.copytree(self.folder, self.root / f"tensor{tensor}")
            fill(copy / self.file.name, -tensor * 8192, 8192)
            self.assertNotEqual(compat.folder_digest(copy), before, tensor)

    def test_size_name_and_number_of_files_show(self):
        seen = {compat.folder_digest(self.folder)}
        shutil.copy(self.file, self.folder / "more.safetensors")
        seen.add(compat.folder_digest(self.folder))
        (self.folder / "more.safetensors").rename(self.folder / "other.safetensors")
        seen.add(compat.folder_digest(self.folder))
        (self.folder / "other.bin").write_bytes(b"x" * 1000)
        seen.add(compat.folder_digest(self.folder))
        self.assertEqual(len(seen), 4)

    def test_weights_that_nobody_can_identify_are_refused(self):
        model = types.SimpleNamespace(model="org/name", hf_config=types.SimpleNamespace(_commit_hash=None))
        with self.assertRaisesRegex(ValueError, "revision"):
            compat.weights_digest(model)
        model.hf_config._commit_hash = "0123abcd"
        self.assertEqual(compat.weights_digest(model), "0123abcd")


class AdaptersTest(unittest.TestCase):

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvtier_adapter_"))
        self.addCleanup(shutil.rmtree, self.folder)
        write_weights(self.folder / "adapter_model.safetensors", tensors=4, tensor_bytes=512)

    def name(self, adapters: compat.Adapters, name: str = "a", folder: pathlib.Path | None = None) -> str:
        return adapters.name(types.SimpleNamespace(lora_name=name, lora_path=str(folder or self.folder)))

    def test_none_has_no_name(self):
        self.assertEqual(compat.Adapters().name(None), "")

    def test_same_name_and_files_are_the_same_in_every_process(self):
        self.assertEqual(self.name(compat.Adapters()), self.name(compat.Adapters()))

    def test_name_and_files_both_count(self):
        adapters = compat.Adapters()
        first = self.name(adapters)
        self.assertNotEqual(self.name(adapters, "b"), first)
        fill(self.folder / "adapter_model.safetensors", -2048, 2048)
        self.assertNotEqual(self.name(adapters), first)

    def test_one_that_is_not_in_files_is_shared_with_nobody(self):
        missing = self.folder / "missing"
        adapters = compat.Adapters()
        self.assertEqual(self.name(adapters, folder=missing), self.name(adapters, folder=missing))
        self.assertNotEqual(self.name(adapters, folder=missing), self.name(compat.Adapters(), folder=missing))


class StatsTest(unittest.TestCase):

    def test_an_interval_has_increases_and_the_last_gauge(self):
        before = SchedulerCounters(lookups=3, blocks_loaded=4, pinned_blocks=2)
        after = SchedulerCounters(lookups=5, blocks_loaded=4, pinned_blocks=7)
        stats = KvtierStats.between(before, after)
        seen = [stats.data[name] for name in ("lookups", "blocks_loaded", "pinned_blocks")]
        self.assertEqual(seen, [2, 0, 7])
        self.assertIsNone(KvtierStats.between(after, after))

    def test_intervals_add_up(self):
        one = KvtierStats(data={"lookups": 2, "bytes_loaded": 10**9, "load_seconds": 0.5, "pinned_blocks": 3})
        both = one.aggregate(KvtierStats(data={"lookups": 1, "bytes_loaded": 10**9, "load_seconds": 0.5,
                                               "pinned_blocks": 0}))
        self.assertEqual((both.data["lookups"], both.data["pinned_blocks"]), (3, 0))
        self.assertEqual(both.reduce()["kvtier load GB/s"], 2.0)


class SourcesTest(unittest.TestCase):

    def test_tiers_have_vllms_names(self):
        self.assertEqual(compat.HIT_SOURCES[Tier.RAM].value, "host")
        self.assertEqual(compat.HIT_SOURCES[Tier.SSD].value, "disk")


if __name__ == "__main__":
    unittest.main()
