"""Faults and controls that are planted in the engine's process (engine_host.py calls plant()).

None of this is in the package: some of its methods are replaced, and behave until the file that
KVTIER_PLANTED_SWITCH names holds the name of a fault. So one engine shows them all, with a hit before and
after each; that it struck is told by the file with .met at its name's end.
"""
import dataclasses
import os
import pathlib

SWITCH = "KVTIER_PLANTED_SWITCH"
MESSAGE = "planted by the test"
CONTROL_TENANT = "control"


def struck(fault: str) -> bool:
    try:
        return pathlib.Path(os.environ[SWITCH]).read_text(encoding="utf-8") == fault
    except FileNotFoundError:
        return False


def plant() -> None:
    """load, save, pages, match: the connector meets a bug there. nothing: see plant_control."""
    from kvtier.engines.paged import HostPages, SchedulerHalf, WorkerHalf

    planted(WorkerHalf, "_fetch", "load")
    planted(WorkerHalf, "_store", "save")
    planted(HostPages, "targets", "pages")
    planted(HostPages, "gather", "pages")
    planted(SchedulerHalf, "_match", "match")
    plant_control()


def plant_control() -> None:
    """nothing: a load says it worked and has written no byte. What is computed from it is wrong, and is
    saved; so under this switch all is stored and found under a name of its own, where nobody else looks. It
    has to be stored there first, by a request that finds nothing and is answered right."""
    from kvtier.engines.paged import LoadOutcome, SchedulerHalf, WorkerHalf

    fetch, named = WorkerHalf._fetch, SchedulerHalf._named

    def fetch_nothing(half, job, *rest):
        if struck("nothing"):
            return LoadOutcome(ranks=1, verified=len(job.block_ids), bytes=0, seconds=0.0)
        return fetch(half, job, *rest)

    def of_its_own(half, namespace):
        name = named(half, namespace)
        return dataclasses.replace(name, tenant=CONTROL_TENANT) if struck("nothing") else name

    WorkerHalf._fetch, SchedulerHalf._named = fetch_nothing, of_its_own


def planted(owner: type, name: str, fault: str) -> None:
    true = getattr(owner, name)

    def method(*args, **kwargs):
        if struck(fault):
            pathlib.Path(os.environ[SWITCH] + ".met").touch()
            raise RuntimeError(MESSAGE)
        return true(*args, **kwargs)
    setattr(owner, name, method)
