"""A kvtierd for one test, and what it says of itself."""
import contextlib
import tempfile
from typing import Iterator

import daemon
from waiting import wait_until


class Kvtierd:
    """The daemon and its admin API; restart() keeps its data folder."""

    def __init__(self, folder: str, *flags: str):
        self._folder, self._flags = folder, flags
        self.start()

    def start(self) -> None:
        self.process = daemon.Daemon(f"{self._folder}/data", *self._flags)

    @property
    def address(self) -> str:
        return self.process.address

    def kill(self) -> None:
        self.process.kill()
        self.process.close()

    def status(self):
        with daemon.Client(self.process.admin_address) as client:
            return client.admin("GetStatus", daemon.adm.GetStatusRequest())

    def wait_blocks(self, count: int) -> None:
        """Returns when the daemon holds at least so many blocks."""
        wait_until(lambda: self.status().blocks >= count, f"{count} blocks in kvtierd")

    def wait_idle(self) -> None:
        """Returns when no call and no lease is open."""
        def idle() -> bool:
            now = self.status()
            return now.open_streams == 0 and now.leases == 0
        wait_until(idle, "kvtierd without open streams and leases")


@contextlib.contextmanager
def kvtierd(*flags: str, ram: str = "512MiB") -> Iterator[Kvtierd]:
    with tempfile.TemporaryDirectory(prefix="kvtier_engine_") as folder:
        one = Kvtierd(folder, "--ram-bytes", ram, *flags)
        try:
            yield one
        finally:
            one.process.close()
