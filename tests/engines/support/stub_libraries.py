"""Lets PyPI's CUDA build of torch load on a machine that has no CUDA: empty libraries under CUDA's names.

usage: stub_libraries.py TORCH_LIB_FOLDER

torch's own libraries find the stubs beside themselves ($ORIGIN in their run path). Which libraries,
versions and functions they want is read from them with readelf. Every stub function returns 100,
cudaErrorNoDevice, so torch finds no GPU and works on the CPU. Needs gcc.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

CUDA_LIBRARY = re.compile(r"lib(cu|nccl|nv)\w*\.so\.\d+")
CUDA_FUNCTION = re.compile(r"(__cuda|cu|nccl|nv)\w+")
NO_DEVICE = 100


def readelf(option: str, library: pathlib.Path) -> str:
    return subprocess.run(["readelf", "-W", option, str(library)], capture_output=True, text=True,
                          check=True).stdout


def wanted_libraries(library: pathlib.Path) -> set[str]:
    names = re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("-d", library))
    return {name for name in names if CUDA_LIBRARY.fullmatch(name)}


def library_by_version(library: pathlib.Path) -> dict[str, str]:
    """Symbol version -> the library that must define it."""
    out: dict[str, str] = {}
    file = ""
    for line in readelf("-V", library).splitlines():
        if needed := re.search(r"File: (\S+)", line):
            file = needed[1]
        elif version := re.search(r"Name: (\S+)\s+Flags", line):
            out[version[1]] = file
    return out


def undefined_symbols(library: pathlib.Path) -> set[tuple[str, str]]:
    """(function, version), the version empty where the symbol has none."""
    symbols = re.findall(r" UND ([\w.]+)(?:@+(\S+))?", readelf("--dyn-syms", library))
    return {(name, version) for name, version in symbols if CUDA_FUNCTION.fullmatch(name)}


def source_of(names: set[str]) -> str:
    """C for the functions; those that return a text return one, as callers print it."""
    lines = ['static char text[] = "no device";']
    for name in sorted(names):
        if re.search(r"Get(Last)?Error(String|Name)", name):
            lines.append(f"char* {name}(void) {{ return text; }}")
        else:
            lines.append(f"long {name}(void) {{ return {NO_DEVICE}; }}")
    return "\n".join(lines) + "\n"


def version_script(symbols: set[tuple[str, str]]) -> str:
    out = ""
    for version in sorted({version for _, version in symbols if version}):
        names = " ".join(f"{name};" for name, of in sorted(symbols) if of == version)
        out += f"{version} {{ global: {names} }};\n"
    return out


def build(target: pathlib.Path, symbols: set[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "stub.c")
        source.write_text(source_of({name for name, _ in symbols}), encoding="ascii")
        flags = [f"-Wl,-soname,{target.name}"]
        if script := version_script(symbols):
            pathlib.Path(folder, "stub.map").write_text(script, encoding="ascii")
            flags.append(f"-Wl,--version-script={folder}/stub.map")
        subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", "-o", str(target), str(source),
                        *flags], check=True)


def main() -> int:
    folder = pathlib.Path(sys.argv[1])
    own = [path for path in sorted(folder.glob("*.so")) if not CUDA_LIBRARY.fullmatch(path.name)]
    libraries = set().union(*(wanted_libraries(path) for path in own))
    if not libraries:
        print(f"{folder}: no library here wants CUDA")
        return 0
    stubs: dict[str, set[tuple[str, str]]] = {name: set() for name in libraries}
    # A symbol without a version may come from any library that is loaded: one stub has them all.
    anywhere = min(libraries)
    for path in own:
        versions = library_by_version(path)
        for name, version in undefined_symbols(path):
            stubs[versions.get(version, anywhere) if version else anywhere].add((name, version))
    for name, symbols in stubs.items():
        build(folder / name, symbols)
    print(f"{folder}: {len(stubs)} stub libraries, {sum(map(len, stubs.values()))} functions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
