"""Clients beside kvtierd that share its memory: restarts, other users, many at once, many that die.

Every payload says whose it is, so a byte of another block shows. KVTIER_LIVES sets the number of client
processes of the last test (60; by hand 10,000), KVTIER_SEED its seed.
"""
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from daemon import Client, Daemon, adm  # noqa: E402

CLIENT = os.environ["KVTIER_SHARED_CLIENT"]
LIVES = int(os.environ.get("KVTIER_LIVES", "60"))
NOBODY = 65534
USERS = (1000, 1001)
WAIT_SECONDS = 30
MIB = 1 << 20

# Prints which of the first regions a process is handed, whoever told it of them.
OPEN_REGIONS = """
import socket, sys
daemon = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
daemon.connect(sys.argv[1])
socket.recv_fds(daemon, 65536, 1)  # the welcome
for region in range(1, 128):
    daemon.send(bytes([8, region]))  # SharedMemoryRequest.open_region
    if socket.recv_fds(daemon, 65536, 1)[1]:
        print(region)
"""


class SharedClient:
    """A kvtier_shared_client that does what it is told."""

    def __init__(self, address, **options):
        self.process = subprocess.Popen([CLIENT, address], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, **options)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def start(self, seed, turns, verb="work"):
        print(f"{verb} {seed} {turns}", file=self.process.stdin, flush=True)

    def result(self):
        """Totals since the client started."""
        line = self.process.stdout.readline()
        assert line, "the client has ended"
        return json.loads(line)

    def work(self, seed, turns=4):
        self.start(seed, turns)
        return self.result()

    def store(self, prompt):
        self.start(prompt, 1, "store")
        return self.result()

    def fetch(self, prompt):
        """What this one fetch came to."""
        self.start(prompt, 0, "fetch")
        before = self.result()
        self.start(prompt, 1, "fetch")
        return {name: count - before[name] for name, count in self.result().items()}


class SharedMemoryTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvtier_shared_"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.data = str(self.folder / "data")

    def start(self, *flags):
        # Less RAM than the prompts of the clients, so that blocks come and go.
        return self.enterContext(Daemon(self.data, "--ram-bytes", "16MiB", *flags))

    def client(self, daemon, **options):
        return self.enterContext(SharedClient(daemon.address, **options))

    def poll(self, condition):
        """Until it holds; each turn asks somebody, so there is nothing to wait for in between."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            self.assertLess(time.monotonic(), deadline)

    def assert_right(self, totals):
        self.assertEqual(totals["foreign_blocks"], 0, totals)
        self.assertEqual(totals["failures"], 0, totals)
        self.assertGreater(totals["ok_blocks"], 0, totals)

    def assert_shared(self, totals):
        self.assert_right(totals)
        self.assertGreater(totals["shared_fetched"], 0, totals)
        self.assertGreater(totals["shared_stored"], 0, totals)

    def assert_not_shared(self, totals):
        self.assert_right(totals)
        self.assertEqual((totals["shared_fetched"], totals["shared_stored"]), (0, 0), totals)

    def test_offered_on_a_unix_socket_unless_switched_off(self):
        daemon = self.start("--listen", f"unix:{self.folder}/k.sock,127.0.0.1:0")
        self.assert_shared(self.client(daemon).work(1))
        tcp = daemon.ready["listen"].split(",")[1]
        self.assert_not_shared(self.enterContext(SharedClient(tcp)).work(2))
        daemon.stop()
        daemon = self.start("--shared-memory=false")
        self.assert_not_shared(self.client(daemon).work(1))

    def test_blocks_on_ssd(self):
        daemon = self.start("--ssd-bytes", "64MiB")
        client = self.client(daemon)
        client.work(1, turns=40)
        self.assert_shared(client.work(2, turns=40))

    def test_client_outlives_its_daemon(self):
        daemon = self.start()
        client = self.client(daemon)
        before = client.work(1)
        self.assert_shared(before)
        daemon.kill()
        daemon = self.start()
        after = client.work(2)
        self.assert_right(after)
        # Back to shared memory by itself, once its patience with the lost session is over.
        self.poll(lambda: client.work(3)["shared_fetched"] > before["shared_fetched"] + 12)

    @unittest.skipUnless(os.geteuid() == 0, "needs root to be somebody else")
    def test_other_users_are_refused_unless_they_are_listed(self):
        self.folder.chmod(0o755)
        socket = self.folder / "k.sock"
        for uids, check in [("", self.assert_not_shared), ("12345", self.assert_not_shared),
                            (f"12345,{NOBODY}", self.assert_shared)]:
            with self.subTest(uids=uids):
                flags = ["--shared-memory-uids", uids] if uids else []
                daemon = self.start("--listen", f"unix:{socket}", *flags)
                socket.chmod(0o666)
                check(self.client(daemon, user=NOBODY, group=NOBODY, extra_groups=[]).work(1))
                self.assert_shared(self.client(daemon).work(2))
                daemon.stop()

    def start_for_users(self, *flags):
        self.folder.chmod(0o755)
        socket = self.folder / "k.sock"
        daemon = self.start("--listen", f"unix:{socket}", "--shared-memory-uids",
                            ",".join(map(str, USERS)), *flags)
        socket.chmod(0o666)
        return daemon

    def regions_of(self, user):
        done = subprocess.run([sys.executable, "-c", OPEN_REGIONS, self.folder / "k.shm.sock"],
                              check=True, stdout=subprocess.PIPE, text=True, user=user, group=user,
                              extra_groups=[])
        return set(done.stdout.split())

    @unittest.skipUnless(os.geteuid() == 0, "needs root to be somebody else")
    def test_a_pool_for_each_user(self):
        for pools in ("per-uid", "one"):
            with self.subTest(pools=pools):
                daemon = self.start_for_users("--shared-memory-pools", pools)
                clients = [self.client(daemon, user=user, group=user, extra_groups=[])
                           for user in USERS]
                for prompt, client in enumerate(clients):
                    self.assertEqual(client.store(prompt)["shared_stored"], 12)
                for number, client in enumerate(clients):
                    for prompt in range(len(clients)):
                        fetched = client.fetch(prompt)
                        self.assertEqual((fetched["ok_blocks"], fetched["foreign_blocks"],
                                          fetched["failures"]), (12, 0, 0), fetched)
                        shared = prompt == number or pools == "one"
                        self.assertEqual(fetched["shared_fetched"], 12 if shared else 0, fetched)
                regions = [self.regions_of(user) for user in USERS]
                self.assertGreater(len(regions[0]), 0)
                self.assertGreater(len(regions[1]), 0)
                common = regions[0] & regions[1]
                self.assertEqual(common, regions[0] if pools == "one" else set())
                daemon.stop()

    @unittest.skipUnless(os.geteuid() == 0, "needs root to be somebody else")
    def test_users_with_pools_take_memory_from_each_other(self):
        daemon = self.start_for_users("--shared-memory-pools", "per-uid", "--ssd-bytes", "64MiB")
        clients = [self.client(daemon, user=user, group=user, extra_groups=[]) for user in USERS]
        for seed, client in enumerate(clients):
            client.start(seed, turns=30)
        for client in clients:
            self.assert_shared(client.result())

    def test_eight_clients_at_once(self):
        daemon = self.start("--ssd-bytes", "64MiB")
        clients = [self.client(daemon) for _ in range(8)]
        for seed, client in enumerate(clients):
            client.start(seed, turns=15)
        for client in clients:
            self.assert_shared(client.result())

    def test_many_clients_of_which_many_die(self):
        seed = int(os.environ.get("KVTIER_SEED", random.randrange(1 << 40)))
        print(f"KVTIER_SEED={seed} KVTIER_LIVES={LIVES}", flush=True)
        daemon = self.start("--ssd-bytes", "64MiB")
        control = self.enterContext(Client(daemon.admin_address))
        self.run_lives(daemon, control, 20, seed)  # until all that is made once is there
        before = self.held(daemon)
        totals = self.run_lives(daemon, control, LIVES, seed + 1_000_000)
        self.assertEqual(totals["failed"], 0)
        self.assert_shared(totals)
        self.assertAlmostEqual(totals["killed"] / LIVES, 0.3, delta=0.2)
        after = self.held(daemon)
        print(json.dumps({"totals": totals, "before": before, "after": after}), flush=True)
        for kind in ("sockets", "memfds", "memfd_bytes"):
            self.assertLessEqual(after[kind], before[kind], kind)
        if not os.environ.get("KVTIER_SANITIZE"):  # a sanitizer keeps what is freed
            self.assertLessEqual(after["rss_bytes"], before["rss_bytes"] + 24 * MIB)

    def run_lives(self, daemon, control, lives, seed):
        done = subprocess.run([CLIENT, daemon.address, str(lives), str(seed)], check=True,
                              stdout=subprocess.PIPE, text=True)
        self.poll(lambda: self.nothing_is_held(control))
        return json.loads(done.stdout)

    @staticmethod
    def nothing_is_held(control):
        """Dead clients' sessions end with their sockets, their leases when their time is up."""
        status = control.admin("GetStatus", adm.GetStatusRequest())
        shared = status.shared_memory
        return (status.leases, status.pinned_blocks, shared.sessions, shared.open_regions,
                shared.store_bytes, shared.retired_bytes) == (0,) * 6

    @staticmethod
    def held(daemon):
        """Of the daemon's process: descriptors, memory behind its memfds, resident memory."""
        proc = pathlib.Path(f"/proc/{daemon.process.pid}")
        held = {"sockets": 0, "memfds": 0, "memfd_bytes": 0}
        for entry in (proc / "fd").iterdir():
            try:
                target = os.readlink(entry)
                held["sockets"] += target.startswith("socket:")
                if target.startswith("/memfd:"):
                    held["memfds"] += 1
                    held["memfd_bytes"] += entry.stat().st_blocks * 512
            except FileNotFoundError:
                pass  # closed meanwhile
        rss = next(line for line in (proc / "status").read_text().splitlines()
                   if line.startswith("VmRSS"))
        return held | {"rss_bytes": int(rss.split()[1]) * 1024}


if __name__ == "__main__":
    unittest.main()
