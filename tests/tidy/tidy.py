#!/usr/bin/env python3
"""The rules of this tree that no compiler checks. Prints path:line: [rule] reason; exits 1 on any.

usage: tidy.py [ROOT]

Each rule is a function from a Tree to the violations it finds; tidy_test.py plants one of each kind.
"""

import bisect
import fnmatch
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Iterator, NamedTuple

MAX_FUNCTION_LINES = 70

# What a folder may include. docs/ARCHITECTURE.md draws it.
MAY_INCLUDE = {
    "common": {"common"},
    "gpu": {"common", "gpu"},
    "storage": {"common", "gpu", "storage"},
    "service": {"common", "gpu", "storage", "proto", "service"},
    "client": {"common", "proto", "client"},
    "bench": {"common", "gpu", "storage", "proto", "client", "bench"},
    "cli": {"common", "gpu", "storage", "proto", "client", "bench", "cli"},
}

# (rule, headers, where they may be included)
CONFINED_HEADERS = [
    ("cuda", r"(cuda|cub/|thrust/|nvml|nvrtc)", r"gpu/|tests/gpu/"),
    ("rocksdb", r"rocksdb/", r"storage/(rocksdb_|ssd_tier)|tests/"),
    ("grpc", r"(grpc|grpc\+\+|grpcpp|google/protobuf)/|.*\.pb\.h$",
     r"service/|client/(?!include/)|cli/|bench/|tests/"),
]

# Sources that may name what the rule forbids everywhere else, each with its reason.
ALLOWED = {
    "threads": {
        "common/mutex.h": "the annotated mutex is made of std::mutex",
        "common/executor.h": "the one maker of threads",
        "common/executor.cc": "the one maker of threads",
    },
    "sleep": {
        "cli/replay.cc": "--speed holds a request back until its recorded time",
    },
}

THREADS = re.compile(
    r"\bstd::(?:recursive_|shared_|timed_|recursive_timed_|shared_timed_)?mutex\b"
    r"|\bstd::(?:condition_variable(?:_any)?|lock_guard|unique_lock|shared_lock|scoped_lock|async)\b"
    r"|\bstd::j?thread\b(?!::(?:hardware_concurrency|id)\b)"
    r"|\babsl::(?:Mutex|MutexLock|CondVar)\b|\bpthread_(?:create|mutex_\w+)\b"
)
SLEEP = re.compile(
    r"\b(?:sleep_for|sleep_until|usleep|nanosleep|SleepFor|time\.sleep|asyncio\.sleep)\b"
    r"|(?<![\w.:])sleep\s*\("
)
SHELL_SLEEP = re.compile(r"(?:^|[;&|(]|\bdo|\bthen)\s*sleep\s+[\d.$\"]")
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX)\b|(?i:not (?:yet )?implemented)")
DISABLED_TEST = re.compile(r"\bDISABLED_\w+")

CXX_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
TEXT_SUFFIXES = CXX_SUFFIXES | {".py", ".sh", ".proto", ".cmake", ".md", ".txt", ".toml", ".service"}
TEXT_NAMES = {"CMakeLists.txt", "Dockerfile", "run"}
SKIPPED_FOLDERS = {"build", ".git", "__pycache__", ".venv", ".cache"}
# This checker and its test name what they look for.
SELF = "tests/tidy/"


class Violation(NamedTuple):
    path: str
    line: int
    rule: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: [{self.rule}] {self.reason}"


class Tree:
    """The text files under a root, by path relative to it."""

    def __init__(self, root: pathlib.Path):
        self.root = root
        self.text: dict[str, str] = {}
        self._code: dict[str, str] = {}
        for path in sorted(self._walk(root)):
            name = path.relative_to(root).as_posix()
            self.text[name] = path.read_text(encoding="utf-8", errors="replace")

    def _walk(self, folder: pathlib.Path) -> Iterator[pathlib.Path]:
        for path in folder.iterdir():
            if path.is_symlink() or path.name in SKIPPED_FOLDERS:
                continue
            if path.is_dir():
                yield from self._walk(path)
            elif path.suffix in TEXT_SUFFIXES or path.name in TEXT_NAMES:
                yield path

    def files(self, *suffixes: str) -> list[str]:
        return [name for name in self.text if pathlib.PurePosixPath(name).suffix in suffixes]

    def sources(self) -> list[str]:
        return self.files(*CXX_SUFFIXES)

    def code(self, name: str) -> str:
        """C++ without comments and literals; every line keeps its number."""
        if name not in self._code:
            self._code[name] = strip_cxx(self.text[name])
        return self._code[name]


CXX_NOISE = re.compile(
    r'R"(?P<delimiter>[^\s()\\]{0,16})\(.*?\)(?P=delimiter)"'  # raw string
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'"  # not the separator of 1'000
    r"|//(?:[^\n\\]|\\\n|\\)*"
    r"|/\*.*?\*/",
    re.DOTALL,
)


def strip_cxx(text: str) -> str:
    def blank(match: re.Match) -> str:
        quoted = match.group(0)[0] in "R\"'"
        return ('""' if quoted else " ") + "\n" * match.group(0).count("\n")

    return CXX_NOISE.sub(blank, text)


def line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def grep(pattern: re.Pattern, text: str) -> Iterator[tuple[int, str]]:
    for match in pattern.finditer(text):
        yield line_of(text, match.start()), match.group(0).strip()


# --------------------------------------------------------------------------------------------------
# Includes

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)


def owner_of(header: str) -> str | None:
    """The folder a header of ours belongs to; None for a header of somebody else."""
    if header.endswith(".pb.h"):
        return "proto" if header.startswith(("kvtier/", "grpc/health/")) else None
    if header.startswith("kvtier/"):
        return "client"
    folder = header.split("/")[0]
    return folder if folder in MAY_INCLUDE or folder == "tests" else None


def check_layers(tree: Tree) -> Iterator[Violation]:
    for name in tree.sources():
        folder = name.split("/")[0]
        if folder not in MAY_INCLUDE:
            continue
        for line, header in includes(tree.text[name]):
            owner = owner_of(header)
            if owner and owner not in MAY_INCLUDE[folder]:
                yield Violation(name, line, "layers", f"{folder}/ may not include {header} of {owner}/")


def check_confined_headers(tree: Tree) -> Iterator[Violation]:
    for name in tree.sources():
        for line, header in includes(tree.text[name]):
            for rule, headers, places in CONFINED_HEADERS:
                ours = header.split("/")[0] in MAY_INCLUDE
                if not ours and re.match(headers, header) and not re.match(places, name):
                    yield Violation(name, line, rule, f"{header} is confined to {places}")


def includes(text: str) -> Iterator[tuple[int, str]]:
    for match in INCLUDE.finditer(text):
        yield line_of(text, match.start()), match.group(1)


# --------------------------------------------------------------------------------------------------
# Functions

PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n\\]|\\\n|\\)*", re.MULTILINE)
TYPE_HEAD = re.compile(
    r"^(?:template\s*<.*>\s*(?:requires\b.*)?)?(?:typedef\s+|static\s+|constexpr\s+|const\s+|inline\s+)*"
    r"(?:namespace|inline\s+namespace|class|struct|union|enum|extern\s*\"\")\b",
    re.DOTALL,
)
RETURNS_TYPE = re.compile(r"^(?:class|struct|union|enum)\s[\w:]+[\s*&]+\w+\s*\(")


class Function(NamedTuple):
    line: int
    lines: int
    head: str


def functions(code: str) -> list[Function]:
    """Outermost functions of code that strip_cxx has cleaned, signature through closing brace.

    A brace that opens where only namespaces and types are open, after a head with parentheses, opens a
    function, unless it is a braced member initialiser or default argument: then the head goes on after it
    with a comma, a parenthesis or another brace.
    """
    code = PREPROCESSOR.sub(lambda m: "\n" * m.group(0).count("\n"), code)
    newlines = [m.start() for m in re.finditer("\n", code)]
    found: list[Function] = []
    scopes = 0          # open namespaces and types
    depth = 0           # open braces inside the outermost non-scope
    start = 0           # where the current head begins
    kind = ""           # of that outermost non-scope
    for match in re.finditer(r"[{};]", code):
        at, char = match.start(), match.group(0)
        if depth:
            depth += {"{": 1, "}": -1, ";": 0}[char]
            if depth == 0 and not re.match(r"\s*[,{)]", code[at + 1:at + 200]):
                head = code[start:at]
                if kind == "function":
                    first = start + len(head) - len(head.lstrip())
                    begin, end = (bisect.bisect(newlines, i) for i in (first, at))
                    found.append(Function(begin + 1, end - begin + 1, head.split("{")[0].strip()))
                start = at + 1
        elif char == ";":
            start = at + 1
        elif char == "}":
            scopes -= 1
            start = at + 1
        else:
            head = re.sub(r"\b(?:public|private|protected)\s*:", "", code[start:at]).strip()
            if TYPE_HEAD.match(head) and not RETURNS_TYPE.match(head):
                scopes += 1
                start = at + 1
            else:
                depth = 1
                kind = "function" if "(" in head and not re.search(r"=\s*$", head) else "value"
    if scopes or depth:
        raise ValueError(f"braces do not match: {scopes} scopes and {depth} blocks left open")
    return found


def check_function_length(tree: Tree) -> Iterator[Violation]:
    for name in tree.sources():
        try:
            found = functions(tree.code(name))
        except ValueError as error:
            yield Violation(name, 1, "function-length", str(error))
            continue
        for function in found:
            if function.lines > MAX_FUNCTION_LINES:
                head = " ".join(function.head.split())[-80:]
                yield Violation(name, function.line, "function-length",
                                f"{function.lines} lines, the limit is {MAX_FUNCTION_LINES}: {head}")


# --------------------------------------------------------------------------------------------------
# Words

def check_words(tree: Tree) -> Iterator[Violation]:
    for name in tree.text:
        if name.startswith(SELF):
            continue
        suffix = pathlib.PurePosixPath(name).suffix
        if suffix in CXX_SUFFIXES:
            yield from forbid(name, "threads", THREADS, tree.code(name),
                              "use kvtier::Mutex and common/executor.h, not")
            yield from forbid(name, "sleep", SLEEP, tree.code(name), "wait for a condition, no")
            yield from forbid(name, "disabled-test", DISABLED_TEST, tree.code(name),
                              "a test that does not run:")
        elif suffix == ".py":
            yield from forbid(name, "sleep", SLEEP, tree.text[name], "wait for a condition, no")
        elif suffix == ".sh" or name == ".ci/run":
            yield from forbid(name, "sleep", SHELL_SLEEP, tree.text[name], "wait for a condition, no")
        yield from forbid(name, "unfinished", UNFINISHED, tree.text[name], "finish it:")


def forbid(name: str, rule: str, pattern: re.Pattern, text: str, reason: str) -> Iterator[Violation]:
    if name in ALLOWED.get(rule, {}):
        return
    for line, found in grep(pattern, text):
        yield Violation(name, line, rule, f"{reason} {found}")


# --------------------------------------------------------------------------------------------------
# CMake

GLOB = re.compile(r"\bGLOB(?:_RECURSE)?\b|\baux_source_directory\b")
COMMENTED_OUT = re.compile(r"#[ \t]*(?:add_test|add_subdirectory|kvtier_\w+)[ \t]*\(")


def check_cmake(tree: Tree) -> Iterator[Violation]:
    lists = [n for n in tree.text if n.endswith(("CMakeLists.txt", ".cmake"))]
    for name in lists:
        for line, found in grep(GLOB, tree.text[name]):
            yield Violation(name, line, "glob", f"list sources by name, no {found}")
        for line, found in grep(COMMENTED_OUT, tree.text[name]):
            if f"function({found.strip('# (')} " not in tree.text[name]:  # else it shows how to call it
                yield Violation(name, line, "commented-out", f"take it out or let it run: {found}")
    for name in tree.files(".cc", ".cu"):
        if not listed(tree, name):
            yield Violation(name, 1, "unlisted", "no CMakeLists.txt above it names this source")


def listed(tree: Tree, name: str) -> bool:
    path = pathlib.PurePosixPath(name)
    if name.startswith("tests/support/"):  # belongs to the suites that share it
        return any(n.startswith("tests/") and f"support/{path.name}" in re.sub(r"#.*", "", text)
                   for n, text in tree.text.items() if n.endswith("CMakeLists.txt"))
    for folder in path.parents:
        text = tree.text.get((folder / "CMakeLists.txt").as_posix())
        if text is not None:
            relative = re.escape(path.relative_to(folder).as_posix())
            return re.search(rf"(?<![\w./#-]){relative}(?![\w.])", re.sub(r"#.*", "", text)) is not None
    return False


# --------------------------------------------------------------------------------------------------
# Documents

LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")


def check_documents(tree: Tree) -> Iterator[Violation]:
    top = sorted(p.name for p in tree.root.iterdir() if p.is_dir() and p.name not in SKIPPED_FOLDERS)
    named = re.compile(r"(?<![\w./@$-])(?:" + "|".join(re.escape(t) for t in top) + r")/[\w./*{},+-]*")
    for name in tree.files(".md"):
        if name != "README.md" and not name.startswith("docs/"):
            continue
        text = tree.text[name]
        for line, path in grep(named, text):
            if not exists(tree.root, path):
                yield Violation(name, line, "document-path", f"{path} is not there")
        for match in LINK.finditer(text):
            target = tree.root / pathlib.PurePosixPath(name).parent / match.group(1)
            if not target.exists():
                yield Violation(name, line_of(text, match.start()), "document-path",
                                f"{match.group(1)} is not there")


def exists(root: pathlib.Path, path: str) -> bool:
    """Takes a sentence's punctuation off the end; knows `*` and one `{h,cc}`."""
    path = path.rstrip(".,")
    braces = re.fullmatch(r"([^{]*)\{([^}]*)\}(.*)", path)
    if braces:
        before, choices, after = braces.groups()
        return all(exists(root, before + choice + after) for choice in choices.split(","))
    if "*" in path:
        folder, _, pattern = path.rpartition("/")
        return (root / folder).is_dir() and any(
            fnmatch.fnmatch(p.name, pattern) for p in (root / folder).iterdir())
    return (root / path).exists()


# --------------------------------------------------------------------------------------------------
# Format

def clang_format() -> str | None:
    """Version 14 only: another version lays some lines out otherwise."""
    for name in ("clang-format-14", "clang-format"):
        path = shutil.which(name)
        if path and " 14." in subprocess.run([path, "--version"], capture_output=True, text=True,
                                             check=True).stdout:
            return path
    return None


def check_format(tree: Tree) -> Iterator[Violation]:
    tool = clang_format()
    if not tool:
        print("tidy: clang-format 14 is not installed, the format was not checked")
        return
    if not tree.sources():
        return
    done = subprocess.run([tool, "--dry-run", "-Werror", "--style=file", *tree.sources()],
                          cwd=tree.root, capture_output=True, text=True)
    found = re.findall(r"^(\S+?):(\d+):\d+: error: code should be", done.stderr, re.MULTILINE)
    for name, line in sorted(dict(reversed(found)).items()):  # the first of each file
        yield Violation(name, int(line), "format", f"run clang-format -i {name}")
    if done.returncode and not found:
        yield Violation(".clang-format", 1, "format", done.stderr.strip())


RULES = [check_layers, check_confined_headers, check_function_length, check_words, check_cmake,
         check_documents, check_format]


def violations(root: pathlib.Path) -> list[Violation]:
    tree = Tree(root)
    return [violation for rule in RULES for violation in rule(tree)]


def main() -> int:
    if len(sys.argv) > 2 or "-h" in sys.argv or "--help" in sys.argv:
        print(__doc__)
        return 2
    root = pathlib.Path(sys.argv[1] if len(sys.argv) == 2 else pathlib.Path(__file__).parents[2])
    found = violations(root)
    for violation in found:
        print(violation)
    sources = len(Tree(root).sources())
    print(f"tidy: {len(found)} violations in {sources} sources")
    return 1 if found or sources == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
