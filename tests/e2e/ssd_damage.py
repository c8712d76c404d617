"""Damage done to the SSD tier's files between two runs of the daemon, and what may come of it."""
import pathlib
import shutil
import typing

from ssd_support import KIB, MIB, Content, Engine, need, progress, start, work_folder
from daemon import checksum, run_to_end

SSD_BYTES = 256 * MIB
PART_BYTES = 64 * KIB
PROMPTS, BLOCKS = 12, 4  # each prompt in a file of its own
# Of a record, as docs/FORMATS.md draws it: a header, which begins with a magic number, and the
# identity; the payload is elsewhere in the file.
MAGIC = b"KVTR"
LIST_MAGIC = b"KVTS"  # the format version follows
HEADER_BYTES = 136
MODEL_AT, CHECKSUM_AT = 8, 112


class Place(typing.NamedTuple):
    """Where one block lies."""
    file: pathlib.Path
    header: int
    identity: int
    payload: int


def find(data_dir, content, block):
    for file in sorted((data_dir / "ssd").rglob("*.sst")):
        image = file.read_bytes()
        payload = image.find(content.payload(block))
        identity = image.find(content.tokens_bytes(block))
        while identity >= 0 and image[identity - HEADER_BYTES:][:len(MAGIC)] != MAGIC:
            identity = image.find(content.tokens_bytes(block), identity + 1)
        if payload >= 0 and identity >= 0:
            return Place(file, identity - HEADER_BYTES, identity, payload)
    raise AssertionError(f"block {block} of {content[1:]} is in no file")


def flip(file, offset):
    with open(file, "r+b") as image:
        image.seek(offset)
        byte = image.read(1)[0]
        image.seek(offset)
        image.write(bytes([byte ^ 0x10]))


def swap(one, other, size):
    images = {place.file: bytearray(place.file.read_bytes()) for place in (one, other)}
    first = bytes(images[one.file][one.payload:one.payload + size])
    second = bytes(images[other.file][other.payload:other.payload + size])
    images[one.file][one.payload:one.payload + size] = second
    images[other.file][other.payload:other.payload + size] = first
    for file, image in images.items():
        file.write_bytes(image)


# Of RocksDB's tables.
FOOTER_BYTES = 53
XXH3_CHECKSUMS = 4
LAST_BYTE_FACTOR = 0x6b9083d9


def _varint(image, at):
    value = shift = 0
    while True:
        byte = image[at]
        at += 1
        value |= (byte & 0x7f) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _handle(image, at):
    offset, at = _varint(image, at)
    size, _ = _varint(image, at)
    return offset, size


def _properties(image):
    """Offset and size of the block that has the list of records."""
    footer = len(image) - FOOTER_BYTES
    need(image[footer] == XXH3_CHECKSUMS, "other checksums")
    offset, size = _handle(image, footer + 1)
    name = b"rocksdb.properties"
    return _handle(image, image.index(name, offset, offset + size) + len(name))


def _block_checksum(image, offset, size):
    """With the byte that says how the block is compressed."""
    return (checksum(bytes(image[offset:offset + size])) & 0xffffffff) ^ (
        image[offset + size] * LAST_BYTE_FACTOR & 0xffffffff)


def as_newer(image):
    """The same file as of the next format version: all of RocksDB's checksums hold."""
    image = bytearray(image)
    offset, size = _properties(image)
    trailer = slice(offset + size + 1, offset + size + 5)
    need(int.from_bytes(image[trailer], "little") == _block_checksum(image, offset, size),
         "this is not how RocksDB's checksums work")
    image[image.index(LIST_MAGIC, offset, offset + size) + len(LIST_MAGIC)] += 1
    image[trailer] = _block_checksum(image, offset, size).to_bytes(4, "little")
    return bytes(image)


class Damage(typing.NamedTuple):
    name: str
    do: typing.Callable  # with the data directory and the contents
    lost: set            # blocks, by (prompt, block): these and no others
    logged: str = ""
    counted: bool = False  # as failures to read; else it is a loss at the start


def _damage_records(data_dir, contents):
    """A byte of each region of a record; and two records whose payloads change places."""
    place = find(data_dir, contents[1], 1)
    flip(place.file, place.header + MODEL_AT)
    place = find(data_dir, contents[2], 1)
    flip(place.file, place.header + CHECKSUM_AT)
    place = find(data_dir, contents[3], 1)
    flip(place.file, place.identity + 5)
    place = find(data_dir, contents[4], 1)
    flip(place.file, place.payload + PART_BYTES // 2)
    swap(find(data_dir, contents[5], 1), find(data_dir, contents[6], 2), PART_BYTES)


def _damage_files(data_dir, contents):
    """Two change names, one is cut short, one is deleted."""
    files = {prompt: find(data_dir, contents[prompt], 0).file for prompt in (1, 3, 5, 7)}
    between = files[1].with_suffix(".between")
    files[1].rename(between)
    files[3].rename(files[1])
    between.rename(files[3])
    with open(files[5], "r+b") as image:
        image.truncate(files[5].stat().st_size // 2)
    files[7].unlink()


def _empty_manifest(data_dir, _):
    for file in (data_dir / "ssd").glob("MANIFEST-*"):
        file.write_bytes(b"")


def _garbage_current(data_dir, _):
    (data_dir / "ssd" / "CURRENT").write_bytes(b"\xff\x00garbage")


def _blocks_of(prompts):
    return {(prompt, block) for prompt in prompts for block in range(BLOCKS)}


DAMAGES = [
    Damage("records", _damage_records, {(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 2)},
           counted=True),
    Damage("files", _damage_files, _blocks_of((1, 3, 5, 7)), "a file is lost"),
    Damage("an empty MANIFEST", _empty_manifest, _blocks_of(range(PROMPTS)),
           "set aside, starting empty"),
    Damage("garbage in CURRENT", _garbage_current, _blocks_of(range(PROMPTS)),
           "set aside, starting empty"),
]


def newer_file_is_left_alone():
    """What a newer version wrote is a miss, not misread; and there again for who can read it."""
    with work_folder() as folder:
        contents = _fill(folder)
        file = find(folder / "data", contents[3], 0).file
        written = file.read_bytes()
        file.write_bytes(as_newer(written))
        with start(folder, SSD_BYTES) as daemon, Engine(daemon) as engine:
            need(not engine.fetch(contents[3]) and engine.lookup(contents[3]).blocks == 0, "misread")
            for content in contents[:3] + contents[4:]:
                engine.must_fetch(content)
            need("a file is left alone" in daemon.log(), "not logged")
            need(daemon.stop() == 0, "exit code")
        need(file.read_bytes() == as_newer(written), "the file was changed")
        file.write_bytes(written)
        with start(folder, SSD_BYTES) as daemon, Engine(daemon) as engine:
            for content in contents:
                engine.must_fetch(content)
    return {"prompts": PROMPTS}


def damage_is_a_miss():
    """Right bytes or a miss; the neighbours are right; what is lost can be stored again."""
    figures = {}
    with work_folder() as folder:
        contents = _fill(folder / "whole")
        for number, damage in enumerate(DAMAGES):
            copy = folder / str(number)
            shutil.copytree(folder / "whole" / "data", copy / "data")
            damage.do(copy / "data", contents)
            with start(copy, SSD_BYTES) as daemon, Engine(daemon) as engine:
                _check(engine, contents, damage)
                need(damage.logged in daemon.log(), damage.name, "is not logged")
                _refuses_a_second_daemon(daemon)
                need(daemon.stop() == 0, "exit code after", damage.name)
            with start(copy, SSD_BYTES) as daemon, Engine(daemon) as engine:
                for content in contents:
                    engine.must_fetch(content)
            figures[damage.name] = f"{len(damage.lost)} of {PROMPTS * BLOCKS} blocks missed"
            progress(damage.name, figures[damage.name])
    return figures


def _fill(folder):
    folder.mkdir(exist_ok=True)
    with start(folder, SSD_BYTES) as daemon, Engine(daemon) as engine:
        model_id = engine.register(PART_BYTES)
        contents = [Content(model_id, "t", seed, BLOCKS, PART_BYTES) for seed in range(PROMPTS)]
        for content in contents:
            engine.must_store(content, durable=True)
        need(daemon.stop() == 0, "exit code")
    return contents


def _check(engine, contents, damage):
    there = set()
    for prompt, content in enumerate(contents):
        there |= {(prompt, block) for block in engine.fetch(content)}
    missed = _blocks_of(range(PROMPTS)) - there
    need(missed == damage.lost, damage.name, "lose", sorted(missed), "not", sorted(damage.lost))
    status = engine.status().ssd
    need(not damage.counted or status.checksum_failures + status.read_errors >= len(missed),
         damage.name, "are not counted:", status)
    for content in contents:
        engine.must_store(content, durable=True)
        engine.must_fetch(content)


def _refuses_a_second_daemon(daemon):
    code, _, err = run_to_end("--data-dir", daemon.data_dir, "--ram-bytes", "16MiB",
                              "--ssd-bytes", str(SSD_BYTES))
    need(code == 1 and f"in use by process {daemon.process.pid}" in err, "second daemon:", code, err)
