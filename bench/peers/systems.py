"""The systems that are compared: how each server is started, and how a client of it is.

All run at once and take turns. A server's memory is taken and touched at its start or in the round that warms up,
where the system lets one say so. Nothing outlives the driver.
"""
import contextlib
import ctypes
import os
import pathlib
import re
import select
import shutil
import signal
import socket
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
START_SECONDS = 120
STOP_SECONDS = 20
PAUSE_SECONDS = 0.05
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _end_with_parent():
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def environment(extra=None):
    """This process's, without the settings of some other daemon."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("KVTIER_")}, **(extra or {})}


def start(argv, log, env=None, **options):
    """A child that ends with this process, its messages in `log`."""
    options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("stdout", log)
    return subprocess.Popen([str(word) for word in argv], stderr=log, preexec_fn=_end_with_parent,
                            env=environment(env), text=True, **options)


def stop(process):
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_for(condition, process, what):
    """Until the condition holds, or the process has ended, or for START_SECONDS."""
    for _ in range(int(START_SECONDS / PAUSE_SECONDS)):
        if condition():
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=PAUSE_SECONDS)
            raise RuntimeError(f"{what} has ended with status {process.returncode}")
    raise RuntimeError(f"{what} is not ready after {START_SECONDS} s")


def wait_for_line(process, start_of_line, what):
    """The line of its stdout that begins so; what comes before it is read over."""
    while select.select([process.stdout], [], [], START_SECONDS)[0]:
        line = process.stdout.readline()
        if line.startswith(start_of_line):
            return line
        if not line:
            break
    raise RuntimeError(f"{what} did not say '{start_of_line}'")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(address):
    """Whether somebody accepts connections there."""
    family = socket.AF_UNIX if address.startswith("unix:") else socket.AF_INET
    with socket.socket(family) as probe:
        if family == socket.AF_UNIX:
            return probe.connect_ex(address[5:]) == 0
        host, port = address.rsplit(":", 1)
        return probe.connect_ex((host, int(port))) == 0


def only_loopback():
    return [name for _, name in socket.if_nameindex()] == ["lo"]


class Arm:
    """One way to use one system, as rows of the table. calls: the transport of its calls, where payload goes
    another way."""

    def __init__(self, name, system, transport, argv, verified, env=None, transfers=True, lookups=True, calls=None):
        self.name, self.system, self.transport = name, system, transport
        self.calls = calls or transport
        self.argv = argv  # the client's number is added
        self.verified = verified
        self.env = env
        self.transfers, self.lookups = transfers, lookups


class System:
    """A server with its arms. `start` may fail; `missing` tells why it cannot even be tried."""

    name = ""

    def __init__(self, where):
        self.where = where
        self.processes = []
        self.arms = []

    def missing(self):
        return None

    def version(self):
        return ""

    def run(self, argv, env=None, **options):
        process = start(argv, self.where.log(self.name), env, **options)
        self.processes.append(process)
        return process

    def stop(self):
        for process in reversed(self.processes):
            if process.stdin is not None:
                process.stdin.close()
            stop(process)

    def forget(self, model):
        """Removes what Put stored, where the server does that."""


class Where:
    """Folders and programs of a run."""

    def __init__(self, folder, bin_folder, peers_folder, memory_bytes):
        self.folder = pathlib.Path(folder)
        self.bin = pathlib.Path(bin_folder).resolve()
        self.peers = pathlib.Path(peers_folder).resolve()
        self.memory_bytes = memory_bytes

    def log(self, name):
        return open(self.folder / f"{name}.log", "ab")

    def log_tail(self, name):
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace")[-2000:] if path.exists() else ""

    def libraries(self):
        root = self.peers / "root"
        folders = [str(root / "usr/lib/x86_64-linux-gnu"), str(root / "lib/x86_64-linux-gnu")]
        return {"LD_LIBRARY_PATH": ":".join(folders)}

    def client(self, system, address):
        return [self.bin / "kvtier_peer_arm", system, address]

    def version_of_package(self, venv, package):
        found = list((self.peers / venv).glob(f"lib/python3*/site-packages/{package}-*.dist-info"))
        return found[0].name.split("-")[1].removesuffix(".dist") if found else None


class Raw(System):
    """The same bytes over a bare socket: what every other arm's figure is held against."""

    name = "raw"

    def start(self):
        addresses = {"unix": f"unix:{self.where.folder}/raw.sock", "tcp": f"127.0.0.1:{free_port()}"}
        for transport, address in addresses.items():
            process = self.run([self.where.bin / "kvtier_peer_arm", "serve-raw", address])
            wait_for(lambda there=address: answers(there), process, "the raw server")
            self.arms.append(Arm(f"raw_{transport}", self, transport, self.where.client("raw", address), "nothing"))


class BareGrpc(System):
    """gRPC with nothing behind it: how much of a figure is gRPC's own."""

    name = "grpc"

    def start(self):
        address = f"unix:{self.where.folder}/grpc.sock"
        process = self.run([self.where.bin / "kvtier", "bench-ceiling-server", "--address", address])
        wait_for(lambda: answers(address), process, "the bare gRPC server")
        self.arms.append(Arm("grpc_unix", self, "unix", self.where.client("grpc", address), "nothing"))


class Kvtier(System):
    name = "kvtier"
    VERIFIED = "tokens, XXH3-64 end to end"

    def version(self):
        out = subprocess.run([self.where.bin / "kvtierd", "--version"], capture_output=True, text=True, check=True,
                             env=environment())
        return out.stdout.split()[-1]

    def start(self):
        folder = self.where.folder
        process = self.run([self.where.bin / "kvtierd", "--data-dir", folder / "data", "--listen",
                            f"unix:{folder}/kvtier.sock,127.0.0.1:0", "--ram-bytes", self.where.memory_bytes,
                            "--log-level", "warning"], stdout=subprocess.PIPE)
        ready = dict(word.split("=", 1) for word in wait_for_line(process, "ready ", "kvtierd").split()[1:])
        self.admin = ready["admin"]
        unix, tcp = ready["listen"].split(",")
        for name, transport, calls, client, address in (
                ("kvtier_unix", "unix", "unix", "kvtier", unix),
                ("kvtier_shared", "shm", "unix", "kvtier-shared", unix),
                ("kvtier_tcp", "tcp", "tcp", "kvtier", tcp)):
            self.arms.append(Arm(name, self, transport, self.where.client(client, address), self.VERIFIED, calls=calls))

    def forget(self, model):
        subprocess.run([self.where.bin / "kvtier", "reset", "--model", model],
                       env=environment({"KVTIER_ADMIN": self.admin}), check=True, stdout=subprocess.DEVNULL)


class Redis(System):
    name = "redis"
    # Memory that was freed stays with the process: first touch of fresh pages costs more than the copy.
    KEEP_MEMORY = {"MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1"}

    def program(self):
        ours = self.where.peers / "root/usr/bin/redis-server"
        return str(ours) if ours.exists() else shutil.which("redis-server")

    def missing(self):
        return None if self.program() else "not installed: bench/peers/install.sh redis"

    def environment(self):
        return {**self.where.libraries(), **self.KEEP_MEMORY}

    def version(self):
        out = subprocess.run([self.program(), "--version"], capture_output=True, text=True, check=True,
                             env=environment(self.environment()))
        return re.search(r"v=(\S+)", out.stdout).group(1)

    def start(self):
        port, path = free_port(), f"{self.where.folder}/redis.sock"
        process = self.run([self.program(), "--bind", "127.0.0.1", "--port", port, "--unixsocket", path,
                            "--save", "", "--appendonly", "no", "--maxmemory", 2 * self.where.memory_bytes,
                            "--maxmemory-policy", "noeviction", "--dir", self.where.folder],
                           env=self.environment())
        wait_for(lambda: answers(f"127.0.0.1:{port}"), process, "redis-server")
        for transport, address in (("unix", f"unix:{path}"), ("tcp", f"127.0.0.1:{port}")):
            self.arms.append(Arm(f"redis_{transport}", self, transport, self.where.client("redis", address),
                                 "nothing"))
        self.arms.append(Arm("redis_unix_xxh3", self, "unix", self.where.client("redis-xxh3", f"unix:{path}"),
                             "XXH3-64 in the client", lookups=False))
        self.arms.append(Arm("redis_unix_each", self, "unix", self.where.client("redis-each", f"unix:{path}"),
                             "nothing", transfers=False))


class PythonPeer(System):
    """A peer from PyPI, which listens where it likes and so runs only where nothing but lo is."""

    package = ""

    def python(self):
        return self.where.peers / self.name / "bin/python"

    def missing(self):
        if not self.python().exists():
            return f"not installed: bench/peers/install.sh {self.name}"
        if not only_loopback():
            return "needs a network namespace with nothing but lo: bench/peers/run.sh makes one"
        return None

    def version(self):
        return self.where.version_of_package(self.name, self.package)

    def client(self, script, address):
        return [self.python(), HERE / script, address]


class Mooncake(PythonPeer):
    name = "mooncake"
    package = "mooncake_transfer_engine_non_cuda"

    def environment(self):
        # Without MC_STORE_MEMCPY=0 a get on the same host would be a copy within the process.
        return {**self.where.libraries(), "MC_STORE_MEMCPY": "0", "MC_TCP_BIND_ADDRESS": "127.0.0.1",
                "MC_LOG_LEVEL": "WARNING", "GLOG_minloglevel": "1"}

    def start(self):
        address = f"127.0.0.1:{free_port()}"
        program = next((self.where.peers / self.name).glob("lib/python3*/site-packages/mooncake/mooncake_master"))
        master = self.run([program, f"--rpc_address=127.0.0.1", f"--rpc_port={address.split(':')[1]}",
                           "--metrics_host=127.0.0.1", f"--metrics_port={free_port()}",
                           "--eviction_high_watermark_ratio=0.95", "--logtostderr"], env=self.environment())
        wait_for(lambda: answers(address), master, "mooncake_master")
        holder = self.run([self.python(), HERE / "mooncake_holder.py", address, self.where.memory_bytes],
                          env=self.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        wait_for_line(holder, "ready", "mooncake_holder.py")
        self.arms.append(Arm("mooncake", self, "tcp", self.client("mooncake_arm.py", address), "nothing",
                             env=self.environment()))


class Lmcache(PythonPeer):
    name = "lmcache"
    package = "lmcache"

    def environment(self):
        home = str(self.where.folder / "home")
        return {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1", "CUDA_VISIBLE_DEVICES": "",
                "HF_HUB_OFFLINE": "1", "HOME": home, "XDG_CACHE_HOME": home + "/.cache", "OMP_NUM_THREADS": "1"}

    def start(self):
        (self.where.folder / "home").mkdir(exist_ok=True)
        port, http = free_port(), free_port()
        self.shared_memory = f"kvtier_peers_{os.getpid()}"
        server = self.run([self.python(), self.python().parent / "lmcache", "server", "--host", "127.0.0.1",
                           "--port", port, "--transport", "zmq", "--http-host", "127.0.0.1", "--http-port", http,
                           "--l1-size-gb", self.where.memory_bytes / (1 << 30), "--no-l1-use-lazy",
                           "--shm-name", self.shared_memory, "--supported-transfer-mode", "auto",
                           "--eviction-policy", "LRU", "--chunk-size", 256, "--eviction-trigger-watermark", 0.95,
                           "--max-workers", 1, "--disable-metrics"], env=self.environment())
        wait_for(lambda: answers(f"127.0.0.1:{port}") and answers(f"127.0.0.1:{http}"), server, "lmcache server")
        self.arms.append(Arm("lmcache", self, "shm", self.client("lmcache_arm.py", f"tcp://127.0.0.1:{port}"),
                             "nothing", env=self.environment(), calls="tcp"))

    def stop(self):
        super().stop()
        for left_behind in pathlib.Path("/dev/shm").glob(f"*{getattr(self, 'shared_memory', '?')}*"):
            left_behind.unlink()


REFERENCES = [Raw, BareGrpc]  # nobody's peers: what figures are held against
COMPARED = [Kvtier, Redis, Mooncake, Lmcache]
