"""Saved models: a folder that needs nothing else, and checkpoints without pickled code.

A folder holds ``model.yaml`` (the version, the task, its encoder and options), ``codec.json`` (vocabularies, tags) and
``weights.safetensors``; under ``files`` what else a module needs, such as the tokenizer of a pretrained encoder. A
Lightning checkpoint of a task holds the same description beside its weights, as plain data, so ``torch.load(...,
weights_only=True)`` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from structlearn import __version__
from structlearn.descriptions import build, describe
from structlearn.errors import DependencyError, FormatError

FILES = ("model.yaml", "codec.json", "weights.safetensors")


def checkpoint_state(task: Any) -> dict[str, Any]:
    """What a checkpoint holds beside the weights."""
    return {"version": __version__, "task": describe(task)}


def save(task: Any, folder: str | Path) -> Path:
    """Write a task to a folder, made if need be; optimizer and trainer are left out."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state = checkpoint_state(task)
    tensors: dict[str, Tensor] = {f"weights.{k}": v.detach().clone().contiguous() for k, v in task.state_dict().items()}
    codec = _set_aside(state["task"]["init_args"].pop("codec"), "codec", tensors)
    for name, module in task.named_modules():
        keep = getattr(module, "keep_files", None)
        if callable(keep) and (given := keep(folder / "files" / name)) is not None:
            state["task"] = _replaced(state["task"], given, {"files": f"files/{name}"})
    state["task"] = _set_aside(state["task"], "task", tensors)
    (folder / FILES[0]).write_text(yaml.safe_dump(state, sort_keys=False, allow_unicode=True), encoding="utf-8")
    (folder / FILES[1]).write_text(json.dumps(codec, ensure_ascii=False), encoding="utf-8")
    _safetensors().save_file(tensors, folder / FILES[2])
    return folder


def load(path: str | Path, *, trusted: Iterable[str] = ()) -> Any:
    """The task of a saved folder, or of a Lightning checkpoint, ready to predict.

    Args:
        trusted: packages of your own whose classes the model uses; others than these, structlearn's and torch.nn's are
            refused, so a folder from elsewhere cannot run code.
    """
    path = Path(path)
    state, weights = _read_folder(path) if path.is_dir() else _read_checkpoint(path)
    check_version(state["version"], str(path))
    task = build(migrated(state["task"], state["version"]), trusted=trusted)
    task.load_state_dict(weights)
    return task.eval()


def check_version(version: str, source: str) -> None:
    """Models of this and of older versions load."""
    ours, theirs = ([int(part) for part in v.split(".")[:2]] for v in (__version__, version))
    if theirs > ours:
        remedy = f"upgrade structlearn, which is {__version__} here"
        raise FormatError(source, f"a model of structlearn <= {ours[0]}.{ours[1]}", version, remedy)


def migrated(description: Any, version: str) -> Any:
    """A description of an older version in the terms of this one: ``RENAMED`` says what moved since."""
    if isinstance(description, list):
        return [migrated(item, version) for item in description]
    if not isinstance(description, dict):
        return description
    found = {key: migrated(item, version) for key, item in description.items()}
    if isinstance(found.get("class_path"), str):
        found["class_path"] = RENAMED.get(found["class_path"], found["class_path"])
    return found


# Class paths of older versions, by the path that they have in this one.
RENAMED: dict[str, str] = {"structlearn.search.ChainBeamLoss": "structlearn.search.StructureBeamLoss"}


def _set_aside(description: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """``description`` with every tensor put into ``tensors`` and its name in its place."""
    if isinstance(description, Tensor):
        tensors[place] = description.detach().clone().contiguous()
        return {"tensor": place}
    if isinstance(description, list):
        return [_set_aside(item, f"{place}.{i}", tensors) for i, item in enumerate(description)]
    if isinstance(description, dict):
        return {key: _set_aside(item, f"{place}.{key}", tensors) for key, item in description.items()}
    return description


def _replaced(description: Any, old: str, new: Any) -> Any:
    if isinstance(description, list):
        return [_replaced(item, old, new) for item in description]
    if isinstance(description, dict):
        return {key: _replaced(item, old, new) for key, item in description.items()}
    return new if description == old else description


def _with_files(description: Any, folder: Path) -> Any:
    """``description`` with the paths of files that a saved folder holds."""
    if isinstance(description, list):
        return [_with_files(item, folder) for item in description]
    if isinstance(description, dict):
        if set(description) == {"files"}:
            return str(folder / description["files"])
        return {key: _with_files(item, folder) for key, item in description.items()}
    return description


def _put_back(description: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(description, list):
        return [_put_back(item, tensors) for item in description]
    if isinstance(description, dict):
        if set(description) == {"tensor"}:
            return tensors[description["tensor"]]
        return {key: _put_back(item, tensors) for key, item in description.items()}
    return description


def _read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    missing = [name for name in FILES if not (folder / name).exists()]
    if missing:
        raise FormatError(str(folder), f"the files {', '.join(FILES)}", f"no {missing[0]}", "write it with save()")
    tensors = _safetensors().load_file(folder / FILES[2])
    state = yaml.safe_load((folder / FILES[0]).read_text(encoding="utf-8"))
    state["task"] = _with_files(_put_back(state["task"], tensors), folder)
    state["task"]["init_args"]["codec"] = _put_back(json.loads((folder / FILES[1]).read_text("utf-8")), tensors)
    return state, {k.removeprefix("weights."): v for k, v in tensors.items() if k.startswith("weights.")}


def _read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    found = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(found, dict) or "structlearn" not in found:
        raise FormatError(
            str(path), "a checkpoint of a structlearn task", "another", "train it with a structlearn task"
        )
    return found["structlearn"], found["state_dict"]


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        remedy = "pip install safetensors"
        raise DependencyError("safetensors", "an installed package", "none", remedy) from error
    return safetensors.torch
