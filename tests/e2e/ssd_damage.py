"""Damage done to the SSD tier's files between two runs of the daemon, and what may come of it."""
import pathlib
import shutil
import typing

from ssd_support import KIB, MIB, Content, Engine, need, progress, start, work_folder
from daemon import run_to_end

SSD_BYTES = 256 * MIB
PART_BYTES = 64 * KIB
PROMPTS, BLOCKS = 12, 4  # each prompt in a file of its own
# Of a record, as docs/FORMATS.md draws it: a header, which begins with a magic number, and the
# identity; the payload is elsewhere in the file.
MAGIC = b"KVTR"
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


class Damage(typing.NamedTuple):
    name: str
    do: typing.Callable    # with the data directory and the contents
    lost: typing.Callable  # blocks that may be missed, by (prompt, block)
    logged: str
    counted: bool          # as a failure to read; else as a loss at the start


def _flip_region(name, offset):
    def do(data_dir, contents):
        place = find(data_dir, contents[3], 1)
        flip(place.file, offset(place))
    return Damage(f"a byte of the {name}", do, lambda prompt, block: (prompt, block) == (3, 1),
                  "", True)


def _swap_records(data_dir, contents):
    swap(find(data_dir, contents[3], 1), find(data_dir, contents[5], 2), PART_BYTES)


def _swap_files(data_dir, contents):
    one, other = find(data_dir, contents[3], 0).file, find(data_dir, contents[5], 0).file
    between = one.with_suffix(".between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


def _truncate_file(data_dir, contents):
    file = find(data_dir, contents[3], 0).file
    with open(file, "r+b") as image:
        image.truncate(file.stat().st_size // 2)


def _delete_file(data_dir, contents):
    find(data_dir, contents[3], 0).file.unlink()


def _empty_manifest(data_dir, _):
    for file in (data_dir / "ssd").glob("MANIFEST-*"):
        file.write_bytes(b"")


def _garbage_current(data_dir, _):
    (data_dir / "ssd" / "CURRENT").write_bytes(b"\xff\x00garbage")


DAMAGES = [
    _flip_region("header", lambda place: place.header + MODEL_AT),
    _flip_region("record's checksum", lambda place: place.header + CHECKSUM_AT),
    _flip_region("identity", lambda place: place.identity + 5),
    _flip_region("payload", lambda place: place.payload + PART_BYTES // 2),
    Damage("two records' bytes swapped", _swap_records,
           lambda prompt, block: (prompt, block) in ((3, 1), (5, 2)), "", True),
    Damage("two files swapped", _swap_files, lambda prompt, block: prompt in (3, 5), "", False),
    Damage("a file cut short", _truncate_file, lambda prompt, block: prompt == 3,
           "a file is lost", False),
    Damage("a file deleted", _delete_file, lambda prompt, block: prompt == 3,
           "a file is lost", False),
    Damage("an empty MANIFEST", _empty_manifest, lambda prompt, block: True,
           "set aside, starting empty", False),
    Damage("garbage in CURRENT", _garbage_current, lambda prompt, block: True,
           "set aside, starting empty", False),
]


def damage_is_a_miss():
    """Right bytes or a miss; the neighbours are right; what is lost can be stored again."""
    with work_folder() as folder:
        contents = _fill(folder / "whole")
        for number, damage in enumerate(DAMAGES):
            copy = folder / str(number)
            shutil.copytree(folder / "whole" / "data", copy / "data")
            damage.do(copy / "data", contents)
            with start(copy, SSD_BYTES) as daemon, Engine(daemon) as engine:
                missed = _check(engine, contents, damage)
                need(damage.logged in daemon.log(), damage.name, "is not logged")
                _refuses_a_second_daemon(daemon)
                need(daemon.stop() == 0, "exit code after", damage.name)
            with start(copy, SSD_BYTES) as daemon, Engine(daemon) as engine:
                for content in contents:
                    engine.must_fetch(content)
            progress(f"{damage.name}: {missed} of {PROMPTS * BLOCKS} blocks missed")
            shutil.rmtree(copy)
    return {"damages": len(DAMAGES)}


def _fill(folder):
    folder.mkdir()
    with start(folder, SSD_BYTES) as daemon, Engine(daemon) as engine:
        model_id = engine.register(PART_BYTES)
        contents = [Content(model_id, "t", seed, BLOCKS, PART_BYTES) for seed in range(PROMPTS)]
        for content in contents:
            engine.must_store(content, durable=True)
        need(daemon.stop() == 0, "exit code")
    return contents


def _check(engine, contents, damage):
    missed = set()
    for prompt, content in enumerate(contents):
        found = engine.fetch(content)
        missed |= {(prompt, block) for block in range(BLOCKS) if block not in found}
    need(missed, damage.name, "is not noticed: is it done at all?")
    for prompt, block in missed:
        need(damage.lost(prompt, block), damage.name, "loses block", block, "of prompt", prompt)
    status = engine.status().ssd
    failures = status.checksum_failures + status.read_errors
    need((failures > 0) >= damage.counted, damage.name, "is not counted:", status)
    for content in contents:
        engine.must_store(content, durable=True)
        engine.must_fetch(content)
    return len(missed)


def _refuses_a_second_daemon(daemon):
    code, _, err = run_to_end("--data-dir", daemon.data_dir, "--ram-bytes", "16MiB",
                              "--ssd-bytes", str(SSD_BYTES))
    need(code == 1 and f"in use by process {daemon.process.pid}" in err, "second daemon:", code, err)
