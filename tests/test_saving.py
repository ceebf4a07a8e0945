"""Saved models: whole after kills, failures and saves that meet; loading makes listed parts alone, within limits."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import mutate_models
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import nn
from torchmetrics import Metric

import structlearn as sl
from structlearn import costs, encoders, features, losses, metrics, registry, tasks
from structlearn.data import codecs, modules
from structlearn.descriptions import build, describe
from structlearn.errors import ArgumentError, FormatError
from structlearn.experiments.base import Settings
from structlearn.experiments.kept import Kept

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
HERE = Path(__file__).parent


def new_task() -> tasks.Task:
    data = modules.TaggingData(examples=8)
    return tasks.Tagging(data.codec, encoders.BiLSTM(encoders.WordsAndLetters(4, 3, 3), hidden=6))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sl.save(new_task(), tmp_path_factory.mktemp("saved") / "model")


@pytest.fixture
def model(saved: Path, tmp_path: Path) -> mutate_models.Model:
    return mutate_models.Model(Path(shutil.copytree(saved, tmp_path / "model")))


def test_saves_that_are_killed_fail_or_meet_leave_whole_files(tmp_path: Path) -> None:
    """The same program runs with other counts by hand."""
    library = tmp_path / "failing_files.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, HERE / "failing_files.c", "-ldl"], check=True)
    command = [sys.executable, HERE / "saving_program.py", "kills=12", "together=4", "faults"]
    environment = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    assert all(f"{name} " in done.stdout for name in ("model", "checkpoint", "parts", "together"))


def test_a_save_removes_what_no_model_names_and_nothing_else(tmp_path: Path) -> None:
    folder = sl.save(new_task(), tmp_path / "model")
    (folder / "notes.txt").write_text("mine")
    (folder / "weights.safetensors").write_text("mine")
    orphans = [folder / f"weights-{'0' * 16}.safetensors", folder / f"codec-{'0' * 16}.json"]
    for orphan in orphans:
        orphan.write_text("")
    (folder / f"files-{'0' * 16}").mkdir()
    task = new_task()
    sl.save(task, folder)
    names = {path.name.partition("-")[0] for path in folder.iterdir()}
    assert names == {"model.yaml", "codec", "weights", "notes.txt", "weights.safetensors"}
    assert torch.equal(sl.load(folder).feature_map.emission, task.feature_map.emission)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_weights_keep_their_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    task = new_task().to(dtype)
    again = sl.load(sl.save(task, tmp_path / "model"))
    assert all(torch.equal(x, again.state_dict()[name]) for name, x in task.state_dict().items())
    assert again.feature_map.emission.dtype is dtype


def bad_version(model: mutate_models.Model) -> None:
    model.index["version"] = 1
    model.write()


def no_task(model: mutate_models.Model) -> None:
    del model.index["task"]
    model.write()


def list_for_a_mapping(model: mutate_models.Model) -> None:
    model.index["task"]["init_args"] = ["x"]
    model.write()


def list_for_all(model: mutate_models.Model) -> None:
    model.path("model.yaml").write_text("- a\n")


def aliases(model: mutate_models.Model) -> None:
    model.path("model.yaml").write_text(mutate_models.TEXTS[1])


def deep(model: mutate_models.Model) -> None:
    model.path("model.yaml").write_text("[" * 100_000)


def python_tag(model: mutate_models.Model) -> None:
    model.path("model.yaml").write_text("a: !!python/object/apply:os.system ['true']\n")


def command_line(model: mutate_models.Model) -> None:
    description = {"class_path": "structlearn.commands.training.LightningCLI", "init_args": {"args": ["fit"]}}
    model.index["task"]["init_args"]["encoder"] = description
    model.write()


def reached_by_import(model: mutate_models.Model) -> None:
    model.index["task"]["init_args"]["encoder"] = {"class_path": "structlearn.encoders.base.nn.LSTM", "init_args": {}}
    model.write()


def huge_layer(model: mutate_models.Model) -> None:
    model.index["task"]["init_args"]["encoder"]["init_args"]["hidden"] = 10**9
    model.write()


def many_layers(model: mutate_models.Model) -> None:
    embedding = model.index["task"]["init_args"]["encoder"]["init_args"]["embedding"]
    options = {"embedding": embedding, "hidden": 1, "layers": 10**9}
    model.index["task"]["init_args"]["encoder"] = {"class_path": "structlearn.encoders.CNN", "init_args": options}
    model.write()


def huge_number(model: mutate_models.Model) -> None:
    model.index["task"]["init_args"]["encoder"]["init_args"]["hidden"] = 10**40
    model.write()


def outside(model: mutate_models.Model) -> None:
    model.index["files"]["../codec.json"] = model.index["files"][model.index["codec"]]
    model.write()


def absolute(model: mutate_models.Model) -> None:
    model.index["codec"] = str(model.path("codec"))
    model.write()


def other_files(model: mutate_models.Model) -> None:
    description = {"class_path": "structlearn.encoders.HuggingFace", "init_args": {"folder": "/etc"}}
    model.index["task"]["init_args"]["encoder"] = description
    model.write()


def replaced(name: str, make: Callable[[Path], Any]) -> Callable[[mutate_models.Model], None]:
    def change(model: mutate_models.Model) -> None:
        path = model.path(name)
        path.unlink()
        make(path)

    return change


def with_weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[mutate_models.Model], None]:
    def write(model: mutate_models.Model) -> None:
        tensors = load_file(model.path("weights"))
        tensors = {name: x.clone() for name, x in tensors.items()}
        change(tensors)
        save_file(tensors, model.path("weights"))
        model.seal()

    return write


EMISSION = "weights.feature_map.emission"
MALFORMED: dict[str, tuple[Callable[[mutate_models.Model], Any], str]] = {
    "version 1": (bad_version, r"model\.yaml: expected the version of structlearn, such as 0\.1\.0, got 1"),
    "no task": (no_task, r"model\.yaml: expected task, a mapping, got nothing"),
    "list for a mapping": (list_for_a_mapping, r"model\.yaml: expected init_args of the task, a mapping, got list"),
    "list for all": (list_for_all, r"model\.yaml: expected a mapping with version, task and files, got list"),
    "aliases": (aliases, r"model\.yaml:1: expected YAML without anchors and aliases"),
    "nesting": (deep, r"model\.yaml: expected (at most 64 levels of nesting|YAML)"),
    "python tag": (python_tag, r"model\.yaml: expected YAML, got could not determine a constructor"),
    "command line": (command_line, r"model\.yaml: .*class_path: expected a part of structlearn"),
    "imported name": (reached_by_import, r"model\.yaml: .*class_path: expected a part of structlearn"),
    "10^9 x 10^9": (huge_layer, r"model\.yaml: .* can make, got \(task: expected at most"),
    "10^9 layers": (many_layers, r"model\.yaml: .*tensors with .* bytes, by the size of its weights"),
    "huge number": (huge_number, r"model\.yaml: expected whole numbers up to"),
    "name outside": (outside, r"model\.yaml: expected names of files inside the folder, got '\.\./codec\.json'"),
    "absolute name": (absolute, r"model\.yaml: expected codec among files"),
    "files of others": (other_files, r"expected folder among the model's own files, got '/etc'"),
    "link": (replaced("codec", lambda p: p.symlink_to("/etc/passwd")), r"codec-.*: .* got a link"),
    "dangling link": (replaced("weights", lambda p: p.symlink_to("none")), r"weights-.*: .*, got a link; copy"),
    "index a link": (replaced("model.yaml", lambda p: p.symlink_to("/dev/zero")), r"model\.yaml: .* got a link"),
    "pipe": (replaced("model.yaml", os.mkfifo), r"model\.yaml: expected a regular file, got a pipe"),
    "pipe for weights": (replaced("weights", os.mkfifo), r"weights-.*: expected a regular file, got a pipe"),
    "folder": (replaced("codec", Path.mkdir), r"codec-.*: expected a regular file, got a folder"),
    "missing": (replaced("codec", lambda p: None), r"codec-.*: .* got no such file; copy the whole model"),
    "no index": (replaced("model.yaml", lambda p: None), r"model\.yaml: expected a file, got no such file"),
    "giant index": (lambda m: os.truncate(m.path("model.yaml"), 2**40), r"model\.yaml: expected at most 262,144 bytes"),
    "giant weights": (lambda m: os.truncate(m.path("weights"), 2**40), r"weights-.*: .* 4,294,967,296 bytes"),
    "cut": (lambda m: os.truncate(m.path("weights"), 99), r"weights-.*: expected 3,736 bytes, got 99; copy it"),
    "pickle": (replaced("weights", lambda p: torch.save({}, p)), r"weights-.*: expected .* bytes, got"),
    "other size": (with_weights(lambda t: t.update({EMISSION: t[EMISSION][1:].clone()})), r"emission with shape"),
    "other type": (with_weights(lambda t: t.update({EMISSION: t[EMISSION].double()})), r"got \(.*\) of torch\.float64"),
    "other name": (with_weights(lambda t: t.update({"weights.x": t.pop(EMISSION)})), r"weights that its task has, got"),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_folder_is_refused_in_words(case: str, model: mutate_models.Model) -> None:
    change, words = MALFORMED[case]
    change(model)
    with pytest.raises(FormatError, match=words) as caught:
        sl.load(model.folder)
    assert caught.value.remedy
    assert len(str(caught.value)) < 1000


def test_no_code_no_network_no_module_of_the_working_folder(
    model: mutate_models.Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "planted.py").write_text("from pathlib import Path\nPath('ran').touch()\n\nclass Module:\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("reached the network"))
    model.index["task"]["init_args"]["encoder"] = {"class_path": "planted.Module", "init_args": {}}
    model.write()
    with pytest.raises(FormatError, match="class_path: expected a part of structlearn"):
        sl.load(model.folder)
    assert not (tmp_path / "ran").exists()
    # Whoever trusts the package says so; what it imports from elsewhere is not trusted with it.
    with pytest.raises(FormatError):
        sl.load(model.folder, trusted=("planted",))
    assert (tmp_path / "ran").exists()
    with pytest.raises(ArgumentError, match="class_path: expected a class of planted"):
        build({"class_path": "planted.Path", "init_args": {}}, trusted=("planted",))


class Evil:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("ran"),)


def checkpoint(path: Path, **changes: Any) -> Path:
    task = new_task()
    state: dict[str, Any] = {"state_dict": task.state_dict()}
    task.on_save_checkpoint(state)
    torch.save({**state, **changes}, path)
    return path


def test_a_checkpoint_runs_nothing_and_unpacks_to_its_own_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = checkpoint(tmp_path / "a.ckpt")
    assert isinstance(sl.load(path), tasks.Tagging)
    for evil in (
        lambda: checkpoint(path, callbacks=Evil()),
        lambda: path.write_bytes(pickle.dumps(Evil())),
        lambda: torch.save(Evil(), path, _use_new_zipfile_serialization=False),
    ):
        evil()
        with pytest.raises(FormatError, match=r"a\.ckpt: expected a checkpoint of structlearn, got"):
            sl.load(path)
    assert not (tmp_path / "ran").exists()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(10**7))
    with pytest.raises(FormatError, match="members of a zip file as"):
        sl.load(path)
    checkpoint(path, structlearn={"version": "0.1.0", "task": {"class_path": "os.system", "init_args": {}}})
    with pytest.raises(FormatError, match="class_path"):
        sl.load(path)
    nested: Any = "x"
    for _ in range(60):
        nested = [nested] * 10
    checkpoint(path, structlearn={"version": "0.1.0", "task": {"a": nested}})
    with pytest.raises(FormatError, match="expected at most 4,000,000 values"):
        sl.load(path)
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
    with pytest.raises(FormatError, match=r"a\.ckpt: expected a file, got no such file"):
        sl.load(path)


def test_hugging_face_folders_that_need_code_or_files_from_elsewhere_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    for options in (
        {"auto_map": {"AutoModel": "code.Model"}},
        {"_attn_implementation": "someone/kernel"},
        {"text_config": {"quantization_config": {"x": 1}}},
        {"backbone": "resnet50", "use_pretrained_backbone": True},
    ):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", **options}))
        with pytest.raises(ArgumentError, match="needs no code or files from elsewhere"):
            encoders.HuggingFace(tmp_path)
        with pytest.raises(ArgumentError, match="needs no code or files from elsewhere"):
            encoders.HuggingFace(config={"model_type": "bert", "hidden_size": 8, **options})


def test_the_registry_lists_every_part() -> None:
    """What tasks are made of; classes that describe data or build others alone are left out."""
    bases = {
        tasks: tasks.Task,
        encoders: encoders.Encoder,
        features: features.FeatureMap,
        costs: costs.Cost,
        losses: nn.Module,
        metrics: Metric,
        codecs: codecs.Codec,
    }
    for package, base in bases.items():
        for kind in vars(package).values():
            if isinstance(kind, type) and issubclass(kind, base) and not inspect.isabstract(kind) and kind is not base:
                path = registry.class_path(kind)
                assert path.rpartition(".")[0] in registry.PARTS, kind
                assert registry.class_named(path) is kind
    for module, names in registry.PARTS.items():
        assert all(isinstance(getattr(importlib.import_module(module), name), type) for name in names)


@pytest.mark.parametrize("layer", [nn.Linear(3, 2, bias=False), nn.LayerNorm(3), nn.Conv1d(2, 3, 3), nn.Dropout(0.2)])
def test_layers_of_torch_are_described(layer: nn.Module) -> None:
    again = build(describe(layer))
    assert repr(again) == repr(layer)
    assert again.state_dict().keys() == layer.state_dict().keys()


def test_mutants_of_saved_models_end_in_words(tmp_path: Path) -> None:
    """``python tests/mutate_models.py`` makes 2,000."""
    count, seed = 100, 1
    command = [sys.executable, HERE / "mutate_models.py", str(count), str(seed)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_an_interrupted_experiment_takes_its_parts_over(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path, out=tmp_path)
    first = Kept(settings, "x")
    whole = [first.part(str(i), lambda i=i: i * i) for i in range(3)]  # type: ignore[misc]
    again = Kept(settings, "x")
    assert [again.part(str(i), lambda: pytest.fail("worked out again")) for i in range(3)] == whole
    for content in ("[1]", "{", "[" * 100_000):
        (tmp_path / "x.partial.json").write_text(content)
        with pytest.raises(FormatError, match=r"x\.partial\.json: .*delete it to start again"):
            Kept(settings, "x")


def test_digests_are_of_the_content(saved: Path) -> None:
    index = yaml.safe_load((saved / "model.yaml").read_text())
    for name, entry in index["files"].items():
        content = (saved / name).read_bytes()
        assert entry == {"bytes": len(content), "sha256": sha256(content).hexdigest()}
        assert name.partition("-")[2].startswith(entry["sha256"][:16])
