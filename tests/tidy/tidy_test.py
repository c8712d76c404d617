#!/usr/bin/env python3
"""Plants one violation of each rule in a small tree, and takes it out again."""

import pathlib
import tempfile
import unittest

import tidy

CLEAN = {
    ".clang-format": "BasedOnStyle: Google\nColumnLimit: 100\n",
    "README.md": "Start with `deploy/run.sh`; read common/{a,b}.h and [the map](docs/MAP.md).\n",
    "docs/MAP.md": "All of common/*.h, see common/a.h.\n",
    "deploy/run.sh": "read -r line\n",
    "common/CMakeLists.txt": "add_library(common a.cc)\nadd_test(NAME a COMMAND a)\n",
    "common/a.h": '#pragma once\n#include <vector>\n\n#include "common/b.h"\n',
    "common/b.h": "#pragma once\n",
    "common/a.cc": '#include "common/a.h"\n\nint F() { return 1; }\n',
    "common/mutex.h": "#pragma once\n#include <mutex>\nusing M = std::mutex;\n",
    "gpu/CMakeLists.txt": "add_library(gpu g.cc)\n",
    "gpu/g.cc": '#include <cuda_runtime.h>\n\n#include "common/a.h"\n',
    "storage/CMakeLists.txt": "add_library(storage ssd_tier.cc)\n",
    "storage/ssd_tier.cc": '#include <rocksdb/db.h>\n\n#include "gpu/g.h"\n',
    "client/CMakeLists.txt": "add_library(client client.cc)\n",
    "client/include/kvtier/client.h": '#pragma once\n#include "common/a.h"\n',
    "client/client.cc":
        '#include "kvtier/client.h"\n\n#include <grpcpp/grpcpp.h>\n\n#include "kvtier/v1/kvtier.pb.h"\n',
    "cli/CMakeLists.txt": "add_executable(cli main.cc)\n",
    "cli/main.cc": '#include "kvtier/client.h"\n#include "storage/tier.h"\n',
    "service/CMakeLists.txt": "add_library(service s.cc)\n",
    "service/s.cc": '#include "kvtier/v1/kvtier.grpc.pb.h"\n#include "storage/tier.h"\n',
}


def long_function(lines: int) -> str:
    return "int G(int x) {\n" + "  x += 1;\n" * (lines - 3) + "  return x;\n}\n"


# rule -> files that break it, each laid over the clean tree by itself.
PLANTED = {
    "layers": [
        {"common/b.h": '#pragma once\n#include "gpu/g.h"\n'},
        {"storage/ssd_tier.cc": '#include "service/s.h"\n'},
        {"client/client.cc": '#include "storage/tier.h"\n'},
        {"cli/main.cc": '#include "service/config.h"\n'},
        {"gpu/g.cc": '#include "kvtier/client.h"\n'},
    ],
    "cuda": [{"storage/ssd_tier.cc": "#include <cuda_runtime_api.h>\n"}],
    "rocksdb": [{"storage/CMakeLists.txt": "add_library(storage ssd_tier.cc tier.cc)\n",
                 "storage/tier.cc": "#include <rocksdb/db.h>\n"}],
    "grpc": [
        {"common/b.h": "#pragma once\n#include <grpcpp/grpcpp.h>\n"},
        {"gpu/g.cc": "#include <google/protobuf/message.h>\n"},
        {"client/include/kvtier/client.h": "#pragma once\n#include <grpc/slice.h>\n"},
    ],
    "function-length": [
        {"common/a.cc": long_function(tidy.MAX_FUNCTION_LINES + 1)},
        {"common/a.cc": "namespace n {\nstruct S {\n"
                        + long_function(tidy.MAX_FUNCTION_LINES + 1) + "};\n}  // namespace n\n"},
        {"common/a.cc": "int F() {\n"},
    ],
    "threads": [
        {"common/a.cc": "std::mutex m;\n"},
        {"common/a.cc": "std::thread t;\n"},
        {"common/a.cc": "absl::MutexLock l(&m);\n"},
    ],
    "sleep": [
        {"common/a.cc": "void F() { std::this_thread::sleep_for(d); }\n"},
        {"common/a.cc": "void F() { sleep(1); }\n"},
        {"common/w.py": "import time\ntime.sleep(1)\n"},
        {"deploy/run.sh": "while ! ready; do sleep 1; done\n"},
    ],
    "disabled-test": [{"common/a.cc": "TEST(A, DISABLED_Works) {}\n"}],
    "unfinished": [
        {"common/a.cc": "// TODO: write\n"},
        {"docs/MAP.md": "This is not yet implemented.\n"},
    ],
    "glob": [{"common/CMakeLists.txt": "file(GLOB s *.cc)\nadd_library(common a.cc)\n"}],
    "commented-out": [{"common/CMakeLists.txt": "add_library(common a.cc)\n# add_test(NAME a)\n"}],
    "unlisted": [
        {"common/c.cc": "int C() { return 3; }\n"},
        {"common/CMakeLists.txt": "add_library(common aa.cc # a.cc\n)\n", "common/aa.cc": "\n"},
        {"tests/support/s.cc": "\n", "tests/common/CMakeLists.txt": "add_library(s ../support/ss.cc)\n"},
    ],
    "document-path": [
        {"README.md": "Read common/gone.h.\n"},
        {"README.md": "Read common/{a,gone}.h.\n"},
        {"docs/MAP.md": "[gone](GONE.md)\n"},
        {"docs/MAP.md": "All of common/*.rs.\n"},
    ],
    "format": [{"common/a.cc": "int  F( ) { return 1; }\n"}],
}

# Look like violations and are none.
HARMLESS = [
    {"common/a.cc": long_function(tidy.MAX_FUNCTION_LINES)},
    {"common/a.cc": "// std::mutex, sleep_for\nconst char* k = \"std::thread\";\n"},
    {"common/a.cc": "int F() { return std::thread::hardware_concurrency(); }\n"},
    {"common/a.cc": "const char* k = R\"({ { // )\";\nconst char c = '{';\nconst int n = 1'000;\n"},
    {"tests/support/s.cc": "\n", "tests/common/CMakeLists.txt": "add_library(s ../support/s.cc)\n"},
    {"common/CMakeLists.txt": "add_library(common a.cc)\n# kvtier_x(NAME)\nfunction(kvtier_x name)\n"},
    {"common/a.cc": "#define OPEN(x) \\\n  if (x) {\nint F() { return 1; }\n"},
]


class TidyTest(unittest.TestCase):
    def found(self, files: dict[str, str]) -> list[tidy.Violation]:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in {**CLEAN, **files}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text, encoding="utf-8")
            return tidy.violations(root)

    def test_clean_tree_passes(self):
        self.assertEqual(self.found({}), [])

    def test_each_planted_violation_is_found_alone(self):
        for rule, plants in PLANTED.items():
            if rule == "format" and not tidy.clang_format():
                continue
            for files in plants:
                with self.subTest(rule=rule, files=files):
                    rules = {violation.rule for violation in self.found(files)}
                    self.assertIn(rule, rules)
                    # A planted file need not be laid out well, unless that is what it is planted for.
                    self.assertLessEqual(rules, {rule, "format"})

    def test_harmless_lookalikes_pass(self):
        for files in HARMLESS:
            with self.subTest(files=files):
                rest = [v for v in self.found(files) if v.rule != "format"]
                self.assertEqual(rest, [])

    def test_every_rule_has_a_plant(self):
        text = pathlib.Path(tidy.__file__).read_text(encoding="utf-8")
        for rule in tidy.re.findall(r'Violation\([^"]*"([a-z-]+)"|forbid\(name, "([a-z-]+)"', text):
            self.assertIn(rule[0] or rule[1], PLANTED)

    def test_functions_are_measured(self):
        code = tidy.strip_cxx(
            "namespace n {\n"
            "Foo::Foo(int a)\n    : a_{a}, b_{2} {\n  Call();\n}\n"
            "struct S : Base<int> {\n  void M() const;\n  int N() {\n    return 1;\n  }\n};\n"
            "const auto kF = [](int x) {\n  return x;\n};\n"
            "constexpr int kTable[] = {\n    F(1),\n    F(2),\n};\n"
            "enum class E {\n  kA,\n};\n"
            "class KVTIER_CAPABILITY(\"mutex\") M {};\n"
            "template <typename T>\nT Max(T a, T b) {\n  if (a > b) {\n    return a;\n  }\n  return b;\n}\n"
            "int D(Options o = {}, int n = 1) {\n  return n;\n}\n"
            "}  // namespace n\n")
        measured = [(f.line, f.lines) for f in tidy.functions(code)]
        self.assertEqual(measured, [(2, 4), (8, 3), (12, 3), (23, 7), (30, 3)])


if __name__ == "__main__":
    unittest.main()
