"""Faults and controls that are planted in the engine's process (engine_host.py calls plant()).

None of this is in the package: some of its methods are replaced, and behave until the file that
KVTIER_PLANTED_SWITCH names holds the name of a fault. So one engine shows them all, with a hit before and
after each; that it struck is told by the file with .met at its name's end.
"""
import os
import pathlib

SWITCH = "KVTIER_PLANTED_SWITCH"
MESSAGE = "planted by the test"


def struck(fault: str) -> bool:
    try:
        return pathlib.Path(os.environ[SWITCH]).read_text(encoding="utf-8") == fault
    except FileNotFoundError:
        return False


def plant() -> None:
    """load, save, pages, match: the connector meets a bug there. nothing: the control, a load that says it
    worked and has written no byte."""
    from kvtier.engines.paged import HostPages, SchedulerHalf, WorkerHalf

    planted(WorkerHalf, "_fetch", "load")
    planted(WorkerHalf, "_store", "save")
    planted(HostPages, "targets", "pages")
    planted(HostPages, "gather", "pages")
    planted(SchedulerHalf, "_match", "match")
    fetch = WorkerHalf._fetch
    WorkerHalf._fetch = lambda half, job, *rest: (
        len(job.block_ids) if struck("nothing") else fetch(half, job, *rest))


def planted(owner: type, name: str, fault: str) -> None:
    true = getattr(owner, name)

    def method(*args, **kwargs):
        if struck(fault):
            pathlib.Path(os.environ[SWITCH] + ".met").touch()
            raise RuntimeError(MESSAGE)
        return true(*args, **kwargs)
    setattr(owner, name, method)
