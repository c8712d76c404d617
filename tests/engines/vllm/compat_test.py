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

from kvtier import Client, DType, GroupedAttention, LayerGroup, ModelSpec, Namespace, Tier  # noqa: E402
from kvtier.engines import vllm_compat as compat  # noqa: E402
from kvtier.engines.paged import LoadJob, ModelHandle, SchedulerCounters, StepPlan  # noqa: E402
from kvtier.engines.vllm import KvtierStats, Settings, _Scheduler  # noqa: E402

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
        self.refused("tenant: namespace.tenant has 129 bytes.* 128", address="unix:/x", tenant="x" * 129)
        self.refused("tenant: namespace.tenant ", address="unix:/x", tenant="\ud800")
        self.assertEqual(Settings.read({"address": "unix:/x", "tenant": "x" * 128}).namespace("a"),
                         Namespace(tenant="x" * 128, adapter="a"))

    def test_what_is_no_object_of_named_keys(self):
        for extra, words in ((None, "extra_config is None"), ([1], "must be an object"),
                             ({}, "lacks address"),
                             ({"address": "unix:/x", 5: 1, "z": 2}, r"unknown keys \[5, 'z'\]")):
            with self.subTest(extra=extra), self.assertRaisesRegex(ValueError, words):
                Settings.read(extra)


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


def of_headers(headers: object, data: bytes = bytes(4)) -> bytes:
    head = json.dumps(headers).encode()
    return struct.pack("<Q", len(head)) + head + data


# What an adapter's file may be while it is written, or for good.
BROKEN = {
    "empty": b"", "header begun": of_headers({"w": {"data_offsets": [0, 4]}})[:20], "garbage": b"\xff" * 100,
    "no offsets": of_headers({"w": {}}), "a list": of_headers([1]), "a number": of_headers({"w": 1}),
    "offsets of one": of_headers({"w": {"data_offsets": [0]}}),
    "nested": struct.pack("<Q", 99999) + b"[" * 99999,
    "offsets of words": of_headers({"w": {"data_offsets": ["0", "4"]}}),
    "data begun": of_headers({"w": {"data_offsets": [0, 4]}}, b"12"),
    "backwards": of_headers({"w": {"data_offsets": [4, 0]}}),
}


class AdapterFiles(unittest.TestCase):

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvtier_adapter_"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.file = self.folder / "adapter_model.safetensors"
        write_weights(self.file, tensors=4, tensor_bytes=512)

    def adapter(self, name: str = "a", folder: pathlib.Path | None = None, number: int = 1):
        return types.SimpleNamespace(lora_name=name, lora_path=str(folder or self.folder), lora_int_id=number)

    def broken(self):
        """One kind after the other, and the whole file after each."""
        whole = self.file.read_bytes()
        for what, content in BROKEN.items():
            self.file.write_bytes(content)
            yield what
            self.file.write_bytes(whole)
        for what, make in (("dangling link", lambda: self.file.symlink_to("/nonexistent")),
                           ("folder", self.file.mkdir)):
            self.file.unlink()
            make()
            yield what
            self.file.rmdir() if self.file.is_dir() else self.file.unlink()
            self.file.write_bytes(whole)


class AdaptersTest(AdapterFiles):

    def name(self, adapters: compat.Adapters, *adapter, **named) -> str:
        return adapters.name(self.adapter(*adapter, **named))

    def test_none_has_no_name(self):
        self.assertEqual(compat.Adapters().name(None), "")

    def test_same_name_and_files_are_the_same_in_every_process(self):
        self.assertEqual(self.name(compat.Adapters()), self.name(compat.Adapters()))

    def test_name_and_files_both_count(self):
        adapters = compat.Adapters()
        first = self.name(adapters)
        self.assertNotEqual(self.name(adapters, "b", number=2), first)
        fill(self.file, -2048, 2048)
        self.assertNotEqual(self.name(adapters, number=3), first)

    def test_an_id_that_came_with_other_files_or_another_name_has_none(self):
        """vLLM computes with what it loaded first. For good: nobody here knows when it loads again."""
        for change in (lambda: fill(self.file, -2048, 2048), lambda: shutil.rmtree(self.folder)):
            adapters, whole = compat.Adapters(), self.file.read_bytes()
            first = self.name(adapters)
            os.utime(self.file, (1, 1))
            self.assertEqual(self.name(adapters), first)
            change()
            with self.assertRaisesRegex(compat.UnknownAdapter, "id 1 came with other files"):
                self.name(adapters)
            self.folder.mkdir(exist_ok=True)
            self.file.write_bytes(whole)
            with self.assertRaisesRegex(compat.UnknownAdapter, "id 1 came with other files"):
                self.name(adapters)
            self.assertEqual(self.name(adapters, number=2), first)
        with self.assertRaisesRegex(compat.UnknownAdapter, "another name"):
            self.name(adapters, "b", number=2)

    def test_files_that_cannot_be_read_have_no_name_until_they_can(self):
        adapters = compat.Adapters()
        first = self.name(compat.Adapters())
        for what in self.broken():
            with self.subTest(what), \
                    self.assertRaisesRegex(compat.UnknownAdapter, "cannot be read.*adapter_model"):
                self.name(adapters)
        self.assertEqual(self.name(adapters), first)

    def test_one_that_is_not_in_files_is_shared_with_nobody(self):
        missing = self.folder / "missing"
        adapters = compat.Adapters()
        self.assertEqual(self.name(adapters, folder=missing), self.name(adapters, folder=missing))
        self.assertNotEqual(self.name(adapters, folder=missing), self.name(compat.Adapters(), folder=missing))


class SchedulerTest(AdapterFiles):
    """vLLM's calls, with what vLLM gives them cut down to what is looked at. No kvtierd."""

    def setUp(self):
        super().setUp()
        client = Client("unix:/nonexistent/kvtier.sock")
        self.addCleanup(client.close)
        heads = LayerGroup(GroupedAttention(kv_heads=1, head_dim=8), 1)
        spec = ModelSpec(name="m", block_tokens=16, dtype=DType.BF16, layer_groups=[heads])
        config = types.SimpleNamespace(
            parallel_config=types.SimpleNamespace(world_size=1, decode_context_parallel_size=1),
            cache_config=types.SimpleNamespace(block_size=16),
            kv_transfer_config=types.SimpleNamespace(is_kv_consumer=True, is_kv_producer=True))
        group = types.SimpleNamespace(kv_cache_spec=types.SimpleNamespace(dcp_sharded=False))
        cache = types.SimpleNamespace(kv_cache_groups=[group], num_blocks=1024)
        settings = Settings("unix:/x", load="async", lookup_budget=60.0)
        self.scheduler = _Scheduler(client, ModelHandle(client, spec), settings, config, cache)
        self.addCleanup(self.scheduler.close)
        self.scheduler.bind(types.SimpleNamespace(blocks=list(range(64)), touch=lambda blocks: None,
                                                  free_blocks=lambda blocks: list(blocks)))

    def request(self, name: str, lora=None) -> types.SimpleNamespace:
        return types.SimpleNamespace(
            request_id=name, lora_request=lora, block_hashes=[f"{name} {i}".encode() * 4 for i in range(3)],
            num_tokens=50, num_prompt_tokens=50, num_computed_tokens=0, skip_reading_prefix_cache=False)

    def step(self, *names: str) -> types.SimpleNamespace:
        blocks = types.SimpleNamespace(get_block_ids=lambda name: ([1, 2, 3],))
        return types.SimpleNamespace(
            num_scheduled_tokens=dict.fromkeys(names, 50), kv_connector_block_state=blocks,
            total_num_scheduled_tokens=50 * len(names))

    def saved(self, request) -> int:
        """Blocks of a request that is matched, computed and finished."""
        self.scheduler.match(request, 0)
        plan = self.scheduler.plan(self.step(request.request_id))
        self.scheduler.finished(request, [1, 2, 3])
        return sum(len(job.block_ids) for job in plan.saves)

    def looked_up(self) -> int:
        return self.scheduler.half.counters().lookups

    def test_an_adapter_that_cannot_be_read_is_not_cached(self):
        with self.assertLogs("vllm.kvtier", "WARNING") as logged:
            for what in self.broken():
                request = self.request(what, self.adapter())
                with self.subTest(what):
                    before = self.looked_up()
                    self.assertEqual(self.scheduler.match(request, 0), (0, False))
                    self.assertEqual(self.saved(request), 0)
                    self.assertEqual(self.looked_up(), before)
                    self.assertEqual(self.saved(self.request("beside " + what)), 3)
                    self.assertEqual(self.looked_up(), before + 1)
        self.assertEqual(len(logged.output), 1)
        self.assertRegex(logged.output[0], "'a' are not cached: its files cannot be read: .*adapter_model")
        before = self.looked_up()
        self.assertEqual(self.saved(self.request("whole", self.adapter())), 3)
        self.assertEqual(self.looked_up(), before + 1)

    def test_an_adapter_that_changes_while_its_request_is_computed(self):
        request = self.request("r", self.adapter())
        self.scheduler.match(request, 0)
        self.assertEqual(self.looked_up(), 1)
        fill(self.file, -2048, 2048)
        self.assertEqual(self.saved(request), 0)
        self.assertEqual(self.saved(self.request("other", self.adapter(number=2))), 3)
        self.scheduler.reset()
        self.assertEqual(self.saved(self.request("after a reset", self.adapter())), 3)

    def test_nothing_that_vllm_calls_raises(self):
        """With objects that have nothing of what is looked for, as another vLLM's might."""
        strange = types.SimpleNamespace(request_id="strange")
        with self.assertLogs("vllm.kvtier", "WARNING") as logged:
            for _ in range(2):
                self.assertEqual(self.scheduler.match(strange, 0), (0, False))
                self.scheduler.allocated(strange, types.SimpleNamespace(), 16)
                self.assertEqual(self.scheduler.sources(strange, 16), {})
                self.assertEqual(self.scheduler.plan(types.SimpleNamespace()), StepPlan())
                self.scheduler.absorb(types.SimpleNamespace())
                self.scheduler.finished(strange, [1])
        self.assertEqual(len(logged.output), 1)

    def test_a_strange_request_leaves_a_plans_other_work(self):
        good, strange = self.request("good"), types.SimpleNamespace(request_id="strange")
        self.scheduler.match(strange, 0)
        self.scheduler.allocated(good, types.SimpleNamespace(get_block_ids=lambda: ([7, 8, 9],)), 48)
        self.scheduler.match(other := self.request("other"), 0)
        plan = self.scheduler.plan(self.step("strange", other.request_id))
        self.assertEqual([type(job) for job in plan.loads], [LoadJob])
        self.assertEqual([job.block_ids for job in plan.saves], [(1, 2, 3)])


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
