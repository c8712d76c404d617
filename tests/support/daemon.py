"""The real kvtierd as a child process, and a client made of nothing but the public .proto files.

Environment: KVTIERD (the binary), KVTIER_PROTOC, KVTIER_PROTO_DIR; ctest sets them.
"""
import ctypes
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

SKIPPED = 77  # what ctest takes for "skipped"

try:
    import grpc
except ImportError:
    print("skipped: no python3-grpcio here")
    sys.exit(SKIPPED)

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ["KVTIERD"]
PROTO_DIR = os.environ.get("KVTIER_PROTO_DIR", str(SOURCE / "proto"))
START_SECONDS = 60
STOP_SECONDS = 30
CALL_SECONDS = 30


def _take_modules():
    """Removes what is loaded of a package named kvtier, and returns it."""
    return {name: sys.modules.pop(name) for name in list(sys.modules)
            if name == "kvtier" or name.startswith("kvtier.")}


def _load_protocol():
    """protoc's Python for the contract, generated afresh. The name kvtier is left as it was: a test may
    use the package of that name, too."""
    folder = tempfile.mkdtemp(prefix="kvtier_proto_")
    package = _take_modules()
    try:
        protoc = os.environ.get("KVTIER_PROTOC", "protoc")
        subprocess.run([protoc, f"-I{PROTO_DIR}", f"--python_out={folder}",
                        "kvtier/v1/kvtier.proto", "kvtier/v1/admin.proto"], check=True)
        for package_folder in ("kvtier", "kvtier/v1"):  # else a real package of that name goes before
            pathlib.Path(folder, package_folder, "__init__.py").touch()
        sys.path.insert(0, folder)
        from kvtier.v1 import admin_pb2, kvtier_pb2
        return kvtier_pb2, admin_pb2
    finally:
        _take_modules()
        sys.modules.update(package)
        sys.path.remove(folder)
        shutil.rmtree(folder)


kv, adm = _load_protocol()
_xxhash = ctypes.CDLL("libxxhash.so.0")
_xxhash.XXH3_64bits.restype = ctypes.c_uint64
_xxhash.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def checksum(payload):
    return _xxhash.XXH3_64bits(payload, len(payload))


def environment(extra=None):
    """This process's, without the settings of some other daemon."""
    out = {k: v for k, v in os.environ.items() if not k.startswith("KVTIER_")}
    out.update(extra or {})
    return out


def run_to_end(*flags, env=None):
    """Runs kvtierd to its end; (exit code, stdout, stderr)."""
    done = subprocess.run([BINARY, *flags], env=environment(env), capture_output=True, text=True,
                          timeout=START_SECONDS, check=False)
    return done.returncode, done.stdout, done.stderr


class Daemon:
    """A kvtierd that serves. Use as a context manager: it is gone afterwards, whatever happened."""

    def __init__(self, data_dir, *flags, env=None):
        self.data_dir = str(data_dir)
        self.log_path = self.data_dir + ".log"
        if "--ram-bytes" not in flags:
            flags += ("--ram-bytes", "16MiB")
        began = time.monotonic()
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [BINARY, "--data-dir", self.data_dir, *flags],
                env=environment(env), stdout=subprocess.PIPE, stderr=log, text=True)
        # A thread, because a pipe's readline has no deadline.
        self._lines = queue.Queue()
        self._reader = threading.Thread(target=self._read_stdout, daemon=True)
        self._reader.start()
        try:
            line = self._lines.get(timeout=START_SECONDS)
        except queue.Empty:
            line = None
        if line is None or not line.startswith("ready "):
            self.close()
            raise AssertionError(f"kvtierd did not get ready: {line!r}\n{self.log()}")
        self.seconds_to_ready = time.monotonic() - began
        self.ready = dict(word.split("=", 1) for word in line.split()[1:])

    def _read_stdout(self):
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stdout.close()

    def log(self):
        return pathlib.Path(self.log_path).read_text()

    def rest_of_stdout(self):
        """What came after the ready line, once the process has ended."""
        out = []
        while (line := self._lines.get(timeout=STOP_SECONDS)) is not None:
            out.append(line)
        return "".join(out)

    def send(self, signal_number):
        self.process.send_signal(signal_number)

    def wait(self):
        return self.process.wait(timeout=STOP_SECONDS)

    def stop(self):
        self.send(signal.SIGTERM)
        return self.wait()

    def kill(self):
        self.process.kill()
        return self.wait()

    @property
    def address(self):
        return self.ready["listen"].split(",")[0]

    @property
    def admin_address(self):
        return self.ready["admin"]


class Client:
    """Generic multicallables over the generated messages: what any gRPC stack can do."""

    def __init__(self, address):
        self.channel = grpc.insecure_channel(address, options=[
            ("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)])

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.channel.close()

    def _call(self, kind, service, name, request, response):
        return getattr(self.channel, kind)(f"/kvtier.v1.{service}/{name}",
                                           request_serializer=request.SerializeToString,
                                           response_deserializer=response.FromString)

    def unary(self, name, request, **options):
        response = getattr(kv, name + "Response")
        options.setdefault("timeout", CALL_SECONDS)
        return self._call("unary_unary", "KvCache", name, type(request), response)(request, **options)

    def admin(self, name, request, **options):
        response = getattr(adm, name + "Response")
        options.setdefault("timeout", CALL_SECONDS)
        return self._call("unary_unary", "KvCacheAdmin", name, type(request), response)(
            request, **options)

    def fetch(self, request, **options):
        options.setdefault("timeout", CALL_SECONDS)
        return self._call("unary_stream", "KvCache", "Fetch", kv.FetchRequest, kv.FetchResponse)(
            request, **options)

    def store(self, requests, **options):
        options.setdefault("timeout", CALL_SECONDS)
        return self._call("stream_unary", "KvCache", "Store", kv.StoreRequest, kv.StoreResponse)(
            requests, **options)

    def store_future(self, requests, **options):
        options.setdefault("timeout", CALL_SECONDS)
        return self._call("stream_unary", "KvCache", "Store", kv.StoreRequest,
                          kv.StoreResponse).future(requests, **options)

    def serving(self, service=""):
        """The health service's answer; its messages are one field each."""
        name = service.encode()
        request = b"\x0a" + bytes([len(name)]) + name if name else b""
        answer = self.channel.unary_unary("/grpc.health.v1.Health/Check")(request,
                                                                          timeout=CALL_SECONDS)
        return {b"\x08\x01": True, b"\x08\x02": False}[answer]


BLOCK_TOKENS = 16


def opaque_spec(name="test", part_bytes=4096, parts=1):
    return kv.ModelSpec(name=name, block_tokens=BLOCK_TOKENS, tensor_parallel=parts,
                        pack_order=kv.PACK_ORDER_OPAQUE, layout_fingerprint=b"layout",
                        explicit_part_bytes=[part_bytes] * parts)


def prompt(model_id, tokens, **namespace):
    return kv.Prompt(model_id=model_id, tokens=tokens, namespace=kv.Namespace(**namespace))


def tokens_of(seed, blocks):
    """Tokens that no other seed has."""
    return [seed * 1_000_000 + i for i in range(blocks * BLOCK_TOKENS)]


def payload_of(seed, block, size):
    unit = f"{seed}/{block}|".encode()
    return (unit * (size // len(unit) + 1))[:size]


MESSAGE_PAYLOAD = 1 << 20
MESSAGE_PIECES = 4096


def pieces_of(block, payload):
    """A part in pieces of at most what a message may carry."""
    for offset in range(0, len(payload), MESSAGE_PAYLOAD):
        yield kv.Piece(block=block, offset=offset, part_bytes=len(payload),
                       checksum=checksum(payload), payload=payload[offset:offset + MESSAGE_PAYLOAD])


def store_requests(who, first, payloads, part=None, durability=kv.DURABILITY_UNSPECIFIED):
    """One Store: its header, then the pieces, small ones together in a message."""
    yield kv.StoreRequest(header=kv.StoreHeader(prompt=who, first_block=first,
                                                block_count=len(payloads), part=part or kv.Part(),
                                                durability=durability))
    pieces, room = [], MESSAGE_PAYLOAD
    for i, payload in enumerate(payloads):
        for piece in pieces_of(first + i, payload):
            if pieces and (len(piece.payload) > room or len(pieces) == MESSAGE_PIECES):
                yield kv.StoreRequest(pieces=pieces)
                pieces, room = [], MESSAGE_PAYLOAD
            pieces.append(piece)
            room -= len(piece.payload)
    if pieces:
        yield kv.StoreRequest(pieces=pieces)


def collect(responses):
    """Blocks by index from a Fetch; None is a miss. Checks the checksums."""
    blocks = {}
    sums = {}
    for response in responses:
        for piece in response.pieces:
            if piece.status == kv.BLOCK_STATUS_MISS:
                blocks[piece.block] = None
                continue
            assert piece.status == kv.BLOCK_STATUS_OK, piece.status
            got = blocks.setdefault(piece.block, b"")
            assert piece.offset == len(got), (piece.block, piece.offset, len(got))
            blocks[piece.block] = got + piece.payload
            sums[piece.block] = (piece.checksum, piece.part_bytes)
    for block, (expected, size) in sums.items():
        assert len(blocks[block]) == size and checksum(blocks[block]) == expected, block
    return blocks
