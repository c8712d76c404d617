"""The tiny models, each made once and kept beside the venv."""
import dataclasses
import hashlib
import os
import pathlib
import shutil
import tempfile

import tiny_model

HERE = pathlib.Path(__file__).resolve().parent


def folder() -> pathlib.Path:
    root = os.environ.get("KVTIER_ENGINES_MODELS") or HERE.parents[2] / "build" / "engines" / "models"
    return pathlib.Path(root)


def made(name: str, write) -> pathlib.Path:
    """The folder of that name; write(folder) makes it when it is not there yet, or not by this code."""
    code = hashlib.sha256(pathlib.Path(tiny_model.__file__).read_bytes()).hexdigest()[:12]
    target = folder() / f"{name}-{code}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = pathlib.Path(tempfile.mkdtemp(dir=target.parent))
    try:
        write(scratch / "made")
        os.rename(scratch / "made", target)
    except OSError:
        if not target.exists():  # else another run was first
            raise
    finally:
        shutil.rmtree(scratch)
    return target


def model(shape: tiny_model.Shape = tiny_model.TINY) -> pathlib.Path:
    name = "-".join(str(value) for value in dataclasses.astuple(shape))
    return made("llama-" + name, lambda target: tiny_model.write_model(target, shape))


def adapter(shape: tiny_model.Shape = tiny_model.TINY, seed: int = 1) -> pathlib.Path:
    return made(f"adapter-{seed}", lambda target: tiny_model.write_adapter(target, shape, seed=seed))
