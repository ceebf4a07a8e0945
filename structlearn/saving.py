"""A saved model: a folder that needs nothing else.

    model.yaml                          version, task and its options; name, size and SHA-256 of every other file
    codec-<SHA-256>.json                vocabularies and tags
    weights-<SHA-256>.safetensors       weights, and the tensors of the codec
    files-<random>/<module>/...         what else a module needs, such as the tokenizer of a pretrained encoder

A save writes files under new names, then renames ``model.yaml`` to its place. Until then the folder holds the old
model, whole, from then on the new one. Files that no ``model.yaml`` names any more are removed afterwards.

A Lightning checkpoint of a task holds the same description beside its weights, as plain data.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import torch
import yaml
from torch import Tensor

from structlearn import __version__
from structlearn.descriptions import build, describe
from structlearn.errors import ArgumentError, DependencyError, FormatError, StructLearnError
from structlearn.registry import FILE_ARGUMENTS
from structlearn.storage.budget import AllocationBudget
from structlearn.storage.checkpoints import MAX_BYTES, read_checkpoint
from structlearn.storage.reading import AGAIN, checked, digest, parse_json, parse_yaml, read_bytes, regular_file
from structlearn.storage.writing import locked, remove_leftovers, sync, whole_file, write_file

FORMAT = 2
INDEX = "model.yaml"
# Limits of files that are parsed as a whole, in which each byte can become many.
MAX_INDEX_BYTES = 1 << 18
MAX_HEADER_BYTES = 16 << 20
_OWN = re.compile(r"codec-[0-9a-f]{16}\.json|weights-[0-9a-f]{16}\.safetensors|files-[0-9a-f]{16}")
_FILE_ENDINGS = (".json", ".jsonl", ".txt", ".model", ".jinja", ".vocab", ".bpe")
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def checkpoint_state(task: Any) -> dict[str, Any]:
    """What a checkpoint holds beside the weights."""
    return {"version": __version__, "task": describe(task)}


def save(task: Any, folder: str | Path) -> Path:
    """Write a task to a folder, made if need be; optimizer and trainer are left out.

    A save that is killed or fails leaves the model that the folder held before. Saves to one folder follow each other.
    """
    folder = Path(folder)
    state = checkpoint_state(task)
    weights = {f"weights.{name}": _whole(tensor) for name, tensor in task.state_dict().items()}
    _make_folder(folder)
    with locked(folder):
        try:
            _write(folder, task, state, weights)
        finally:
            _remove_orphans(folder)
    return folder


def load(path: str | Path, *, trusted: Iterable[str] = (), max_bytes: int = MAX_BYTES) -> Any:
    """The task of a saved folder, or of a Lightning checkpoint, ready to predict.

    Args:
        trusted: packages of your own whose classes the model uses. Of other classes only those that
            :mod:`structlearn.registry` lists are made, so a model from elsewhere cannot run code.
        max_bytes: size of the largest file that is read.
    """
    path, trusted = Path(path), (trusted,) if isinstance(trusted, str) else tuple(trusted)
    if not path.is_dir():
        return _in_words(path, lambda: _from_checkpoint(path, trusted, max_bytes))
    while True:
        before = _index_bytes(path)
        try:
            return _in_words(path / INDEX, lambda: _from_folder(path, trusted, max_bytes))
        except FormatError:
            # A save in between has removed the files of the model that was being read.
            if _index_bytes(path) == before:
                raise


def _write(folder: Path, task: Any, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    codec = _set_aside(state["task"]["init_args"].pop("codec"), "codec", tensors)
    files = _write_module_files(folder, task, state)
    state["task"] = _set_aside(state["task"], "task", tensors)
    encoded = json.dumps(codec, ensure_ascii=False).encode()
    codec_name = f"codec-{hashlib.sha256(encoded).hexdigest()[:16]}.json"
    parse_json(encoded, "codec")  # what could not be loaded is not saved
    write_file(folder / codec_name, encoded)
    weights_name = _write_weights(folder, tensors)
    index = {
        "format": FORMAT,
        **state,
        "codec": codec_name,
        "weights": weights_name,
        "files": {name: _entry(folder / name) for name in (codec_name, weights_name, *files)},
    }
    text = yaml.dump(index, Dumper=_Plain, sort_keys=False, allow_unicode=True).encode()
    parse_yaml(text, "task")
    if len(text) > MAX_INDEX_BYTES:
        raise ArgumentError("task", f"a description of at most {MAX_INDEX_BYTES:,} bytes", len(text), "shorten it")
    sync(folder)
    write_file(folder / INDEX, text)


class _Plain(yaml.SafeDumper):
    """Writes what occurs twice twice: aliases are refused where models are read."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _write_weights(folder: Path, tensors: dict[str, Tensor]) -> str:
    """Writes the tensors to a file named by its content; the name."""
    beside = folder / f"weights-{secrets.token_hex(8)}.safetensors"
    try:
        with whole_file(beside) as part:
            try:
                _safetensors().save_file(tensors, part)
            except _safetensor_error() as error:
                raise OSError(f"{part}: {error}") from error
        name = f"weights-{digest(beside, MAX_BYTES << 20)[1][:16]}.safetensors"
        os.replace(beside, folder / name)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    return name


def _write_module_files(folder: Path, task: Any, state: dict[str, Any]) -> list[str]:
    """Writes what modules keep beside weights, and puts it into their description; the names of the files."""
    place = f"files-{secrets.token_hex(8)}"
    for name, module in task.named_modules():
        keep = getattr(module, "keep_files", None)
        if callable(keep) and (path := keep(folder / place / name)) is not None:
            state["task"] = _replaced(state["task"], path, {"files": f"{place}/{name}"})
    names = []
    for parent, _, entries in os.walk(folder / place):
        for entry in sorted(entries):
            sync(Path(parent, entry))
            names.append(Path(parent, entry).relative_to(folder).as_posix())
        sync(Path(parent))
    return sorted(names)


def _entry(path: Path) -> dict[str, Any]:
    size, sha256 = digest(path, MAX_BYTES << 20)
    return {"bytes": size, "sha256": sha256}


def _make_folder(folder: Path) -> None:
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for parent in missing:
        sync(parent.parent)


def _remove_orphans(folder: Path) -> None:
    """Removes the files of models that the folder does not hold any more; none where that cannot be known."""
    try:
        index = _index(folder)[0] if (folder / INDEX).exists() else {"files": {}}
        used = {PurePosixPath(name).parts[0] for name in index["files"]}
        for name in os.listdir(folder):
            if _OWN.fullmatch(name) and name not in used:
                orphan = folder / name
                shutil.rmtree(orphan) if orphan.is_dir() else orphan.unlink()
    except (FormatError, OSError):
        return
    remove_leftovers(folder)


def _index_bytes(folder: Path) -> bytes:
    return read_bytes(folder / INDEX, MAX_INDEX_BYTES)


def _index(folder: Path) -> tuple[dict[str, Any], str]:
    """``model.yaml`` with its members checked; its name."""
    source = str(folder / INDEX)
    index = parse_yaml(_index_bytes(folder), source)
    if not isinstance(index, dict):
        raise FormatError(source, "a mapping with version, task and files", type(index).__name__, AGAIN)
    _check_version(index.get("version"), source)
    if index.get("format") != FORMAT:
        raise FormatError(source, f"format {FORMAT}, with sizes and checksums", index.get("format"), AGAIN)
    for name, kind in (("task", dict), ("files", dict), ("codec", str), ("weights", str)):
        if not isinstance(index.get(name), kind):
            raise FormatError(source, f"{name}, a {_WORDS[kind]}", _said(index.get(name)), AGAIN)
    for name, entry in index["files"].items():
        if not _inside(name):
            raise FormatError(source, "names of files inside the folder", repr(name), AGAIN)
        if not (isinstance(entry, dict) and type(entry.get("bytes")) is int and isinstance(entry.get("sha256"), str)):
            raise FormatError(source, f"bytes and sha256 of {name}", _said(entry), AGAIN)
    for name in ("codec", "weights"):
        if index[name] not in index["files"]:
            raise FormatError(source, f"{name} among files", repr(index[name]), AGAIN)
    return index, source


_WORDS = {dict: "mapping", str: "text"}


def _said(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__


def _inside(name: str) -> bool:
    """Whether a name leads to a file in the folder: codec and weights at its top, all others below files-..."""
    parts = name.split("/")
    plain = all(part not in ("", ".", "..") and "\\" not in part and "\0" not in part for part in parts)
    return plain and len(parts) < 10 and _OWN.fullmatch(parts[0]) is not None


def _check_version(version: Any, source: str) -> None:
    """Newer versions may mean something else by the same words."""
    if not (isinstance(version, str) and re.fullmatch(r"\d{1,6}\.\d{1,6}(\.\w{1,20})*", version)):
        raise FormatError(source, "the version of structlearn, such as 0.1.0", repr(version)[:40], AGAIN)
    ours, theirs = ([int(part) for part in v.split(".")[:2]] for v in (__version__, version))
    if theirs > ours:
        remedy = f"upgrade structlearn, which is {__version__} here"
        raise FormatError(source, f"a model of structlearn <= {ours[0]}.{ours[1]}", version, remedy)


def _verify(folder: Path, files: Mapping[str, Mapping[str, Any]], max_bytes: int) -> None:
    """Every file is the one that was saved."""
    for name, entry in files.items():
        path = folder / name
        for parent in path.relative_to(folder).parents:
            if (folder / parent).is_symlink() and parent != Path():
                raise FormatError(str(folder / parent), "a folder", "a link", "copy the folder itself into its place")
        if name.startswith("files-") and path.suffix not in _FILE_ENDINGS:
            raise FormatError(str(path), f"a file {', '.join(_FILE_ENDINGS)}", path.suffix or "another", AGAIN)
        with regular_file(path, max_bytes) as file:
            size = os.fstat(file.fileno()).st_size
        if size != entry["bytes"]:
            raise FormatError(str(path), f"{entry['bytes']:,} bytes", f"{size:,}", f"copy it again, or {AGAIN}")
        if digest(path, max_bytes)[1] != entry["sha256"]:
            raise FormatError(str(path), "the SHA-256 that model.yaml names", "another", f"copy it again, or {AGAIN}")


def _from_folder(folder: Path, trusted: tuple[str, ...], max_bytes: int) -> Any:
    index, source = _index(folder)
    _verify(folder, index["files"], max_bytes)
    tensors = _read_tensors(folder / index["weights"])
    # The codec is parsed as a whole, and takes many times its bytes.
    codec_path = folder / index["codec"]
    codec = parse_json(read_bytes(codec_path, max_bytes // 128), str(codec_path))
    task = _with_files(index["task"], source, folder, index["files"])
    if not isinstance(task.get("init_args"), dict):
        raise FormatError(source, "init_args of the task, a mapping", _said(task.get("init_args")), AGAIN)
    task["init_args"]["codec"] = codec
    weights = {name.removeprefix("weights."): x for name, x in tensors.items() if name.startswith("weights.")}
    return _built(_put_back(task, tensors), weights, str(folder / index["weights"]), trusted)


def _from_checkpoint(path: Path, trusted: tuple[str, ...], max_bytes: int) -> Any:
    remedy = "give a folder written by structlearn.save, or train a structlearn task to get a checkpoint"
    found = read_checkpoint(path, remedy=remedy, max_bytes=max_bytes)
    state, weights = found.get("structlearn"), found.get("state_dict")
    if not (isinstance(state, dict) and isinstance(state.get("task"), dict) and isinstance(weights, dict)):
        raise FormatError(str(path), "a checkpoint of a structlearn task", "another", remedy)
    _check_version(state.get("version"), str(path))
    checked(state, str(path), tensors=True)
    plain = all(isinstance(name, str) and type(x) is Tensor for name, x in weights.items())
    if not plain or any(x.layout is not torch.strided or x.device.type != "cpu" for x in weights.values()):
        raise FormatError(str(path), "weights that are plain tensors", "others", remedy)
    return _built(_with_files(state["task"], str(path)), weights, str(path), trusted)


def _built(description: Any, weights: dict[str, Tensor], source: str, trusted: tuple[str, ...]) -> Any:
    """The task that a description tells of, with its weights."""
    from structlearn.tasks import Task

    size = sum(x.untyped_storage().nbytes() for x in weights.values())
    # Tables and masks that follow from the codec, initial values, and temporaries of the constructors.
    with AllocationBudget(4 * size + (128 << 20), 20 * len(weights) + 2000):
        task = build(description, trusted=trusted)
    if not isinstance(task, Task):
        raise FormatError(source, "the weights of a task", f"those of a {type(task).__name__}", AGAIN)
    kinds = {x.dtype for x in weights.values() if x.is_floating_point()}
    if len(kinds) == 1 and kinds <= set(_FLOATS):
        task.to(next(iter(kinds)))
    expected = task.state_dict()
    if different := sorted(expected.keys() ^ weights.keys()):
        got = f"{'no ' if different[0] in expected else ''}{different[0][:80]!r}"
        raise FormatError(source, f"the {len(expected)} weights that its task has", got, AGAIN)
    for name, x in weights.items():
        wanted = expected[name]
        if (wanted.shape, wanted.dtype) != (x.shape, x.dtype):
            kind = f"{tuple(wanted.shape)} of {wanted.dtype}"
            raise FormatError(source, f"{name} with shape {kind}", f"{tuple(x.shape)} of {x.dtype}", AGAIN)
    task.load_state_dict(weights)
    return task.eval()


def _in_words(path: Path, read: Any) -> Any:
    """What ``read`` gives; whatever a constructor says of arguments that are none becomes a FormatError."""
    try:
        return read()
    except (FormatError, DependencyError):
        raise
    except StructLearnError as error:
        expected = f"a model that structlearn {__version__} can make"
        raise FormatError(str(path), expected, f"({error.args[0]})", AGAIN) from error
    except Exception as error:
        got = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise FormatError(str(path), f"a model that structlearn {__version__} can make", got, AGAIN) from error


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file of safetensors, backed by the file."""
    library = _safetensors()
    with regular_file(path, MAX_BYTES << 20) as file:
        start = file.read(8)
    if len(start) < 8 or struct.unpack("<Q", start)[0] > MAX_HEADER_BYTES:
        raise FormatError(str(path), f"a header of at most {MAX_HEADER_BYTES:,} bytes", "another", AGAIN)
    try:
        tensors: dict[str, Tensor] = library.load_file(path)
    except Exception as error:  # of the library, or torch's on kinds of numbers that it does not have
        raise FormatError(
            str(path), "tensors as safetensors stores them", " ".join(str(error).split()), AGAIN
        ) from None
    # Weights are copied into the model; what it is built from must not hang on a file.
    return {name: x if name.startswith("weights.") else x.clone() for name, x in tensors.items()}


def _whole(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone().contiguous()


def _mapped(description: Any, change: Any) -> Any:
    """``description`` with ``change`` of every part that it changes; None leaves a part to its own parts."""
    changed = change(description)
    if changed is not None:
        return changed
    if isinstance(description, list | tuple):
        return [_mapped(item, change) for item in description]
    if isinstance(description, dict):
        return {key: _mapped(item, change) for key, item in description.items()}
    return description


def _set_aside(description: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """``description`` with every tensor put into ``tensors`` and its name in its place."""
    count = iter(range(2**62))

    def change(item: Any) -> Any:
        if not isinstance(item, Tensor):
            return None
        name = f"{place}.{next(count)}"
        tensors[name] = _whole(item)
        return {"tensor": name}

    return _mapped(description, change)


def _put_back(description: Any, tensors: dict[str, Tensor]) -> Any:
    def change(item: Any) -> Any:
        return tensors[item["tensor"]] if isinstance(item, dict) and set(item) == {"tensor"} else None

    return _mapped(description, change)


def _replaced(description: Any, old: str, new: Any) -> Any:
    return _mapped(description, lambda item: new if isinstance(item, str) and item == old else None)


def _with_files(description: Any, source: str, folder: Path | None = None, names: Iterable[str] = ()) -> Any:
    """``description`` with the paths of the model's own files; other paths are refused."""

    def change(item: Any) -> Any:
        if not isinstance(item, dict):
            return None
        if set(item) == {"files"} and folder is not None:
            place = item["files"]
            if not (isinstance(place, str) and any(name.startswith(f"{place}/") for name in names)):
                raise FormatError(source, "files of the model itself", repr(place)[:80], AGAIN)
            return str(folder / place)
        for argument in FILE_ARGUMENTS.get(str(item.get("class_path")), ()):
            options = item.get("init_args")
            if isinstance(options, dict) and not isinstance(options.get(argument), dict | None):
                expected = f"{argument} among the model's own files"
                remedy = "write the model with structlearn.save, which copies such files, and load that folder"
                raise FormatError(source, expected, repr(options[argument])[:80], remedy)
        return None

    return _mapped(description, change)


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        remedy = "pip install safetensors"
        raise DependencyError("safetensors", "an installed package", "none", remedy) from error
    return safetensors.torch


def _safetensor_error() -> type[Exception]:
    import safetensors

    return safetensors.SafetensorError  # type: ignore[no-any-return]
