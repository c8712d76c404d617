"""What protoc makes of the contract is what is committed."""

import os
import pathlib
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = SOURCE / "client/python"
FILES = ("kvtier/v1/kvtier_pb2.py", "kvtier/v1/kvtier_pb2.pyi")


class GeneratedCodeTest(unittest.TestCase):
    def test_it_is_current(self):
        version = subprocess.run(
            [os.environ.get("KVTIER_PROTOC", "protoc"), "--version"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        if " 3.21." not in version:
            self.skipTest(f"made with protoc 3.21, here is {version.strip()}")
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([PACKAGE / "make_protocol.sh", folder], check=True)
            for name in FILES:
                fresh = pathlib.Path(folder, name).read_text()
                self.assertTrue(
                    fresh == (PACKAGE / name).read_text(),
                    f"{name} is not what the .proto says: run client/python/make_protocol.sh",
                )


if __name__ == "__main__":
    unittest.main(verbosity=2)
