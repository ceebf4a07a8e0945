"""The command ``structlearn``: quick help, doctor, training, prediction from files and pipes, exact solvers."""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

import structlearn as sl
from structlearn import cli

ROOT = Path(__file__).resolve().parents[1]
QUICK = [
    *("--trainer.max_epochs=1", "--trainer.logger=false", "--trainer.enable_checkpointing=false"),
    *("--trainer.enable_progress_bar=false", "--trainer.num_sanity_val_steps=0", "--data.init_args.examples=40"),
]


def test_every_public_name_is_found_and_help_needs_no_torch() -> None:
    tree = ast.parse((ROOT / "structlearn" / "__init__.py").read_text())
    named = [a.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for a in node.names if a.asname]
    for name in named:
        assert getattr(sl, name) is not None
    assert set(named) <= set(dir(sl))
    with pytest.raises(AttributeError, match="no attribute 'Chain'"):
        sl.Chain  # noqa: B018
    code = "import sys, structlearn.cli as c; c.parser().format_help(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_doctor_names_backends_and_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from structlearn.commands import doctor

    monkeypatch.setattr(doctor, "PACKAGES", (*doctor.PACKAGES, ("no-such-package", "nothing", "viz")))
    assert cli.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:3] == ["backend", "reference", "works"] for line in lines)
    missing = next(line for line in lines if line.startswith("no-such-package"))
    assert "missing" in missing
    assert "pip install 'structlearn[viz]'" in missing


def test_completion_knows_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["--print-completion", "bash"])
    assert exit_.value.code == 0
    assert "predict" in capsys.readouterr().out


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    config = ROOT / "configs" / "tagging" / "sparse.yaml"
    assert cli.main(["fit", f"--config={config}", *QUICK, f"--save_to={folder}"]) == 0
    return folder


def test_predict_reads_columns_and_writes_them(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "in.conll", tmp_path / "out.conll"
    source.write_text("the DT B-NP\ndog NN I-NP\n\nhe PRP B-NP\nslept VBD B-VP\n")
    assert cli.main(["predict", str(model), str(source), "--output", str(target)]) == 0
    rows = [line.split() for line in target.read_text().splitlines()]
    assert [row[:2] for row in rows if row] == [["the", "DT"], ["dog", "NN"], ["he", "PRP"], ["slept", "VBD"]]
    assert all(row[2] in sl.load(model).codec.tags for row in rows if row)
    bare = tmp_path / "bare.conll"
    bare.write_text("the DT\ndog NN\n")
    assert cli.main(["predict", str(model), str(bare)]) == 0
    assert capsys.readouterr().out.split() == [x for row in rows[:2] for x in row]


def test_predict_reads_standard_input_and_writes_json_with_confidences(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the dog slept\na house\n")))
    assert cli.main(["predict", str(model), "--format", "text", "--confidences"]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (len(first["tags"]), len(second["tags"])) == (3, 2)
    assert all(0 < p <= 1 for p in first["confidence"])


def test_predict_tells_what_is_wrong_with_a_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"words": ["a"]}\n{"wrods": []}\n')
    assert cli.main(["predict", str(model), str(source)]) == 2
    assert "in.jsonl:2: expected 'words', a list of at least one text, got none" in capsys.readouterr().err
    source = tmp_path / "in.conll"
    source.write_text("a DT\nb\n")
    assert cli.main(["predict", str(model), str(source)]) == 2
    assert "in.conll:2: expected 2 columns" in capsys.readouterr().err
    assert cli.main(["predict", str(model), str(source), "--format", "fasta"]) == 2
    assert "format: expected one of" in capsys.readouterr().err


def test_predict_does_not_take_a_line_of_text_for_columns(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the dog that slept has a house\n")))
    assert cli.main(["predict", str(model)]) == 2
    assert "--format text" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "remedy"),
    [("tagging/laso", "structlearn fit"), ("joint/laso", "structlearn fit"), ("reranking/crf", "--solver voting")],
)
def test_solve_refuses_what_is_not_one_dense_tensor(
    config: str, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["solve", "--config", str(ROOT / "configs" / f"{config}.yaml")]) == 2
    said = capsys.readouterr().err
    assert "expected a feature map over one dense tensor" in said
    assert remedy in said


@pytest.mark.parametrize("command", ["test", "validate"])
def test_scoring_wants_a_checkpoint(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(ROOT / "configs" / "letters" / "linear-crf.yaml")
    assert cli.main([command, "--config", config, "--trainer.default_root_dir", str(tmp_path)]) == 2
    assert "--ckpt_path: expected a checkpoint" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_told_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    config = str(ROOT / "configs" / "letters" / "linear-crf.yaml")
    options = ["--save_to", str(tmp_path / "file"), "--trainer.default_root_dir", str(tmp_path)]
    assert cli.main(["fit", "--config", config, *options]) == 2
    assert "File exists" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.ckpt"))


def test_solve_prints_a_certificate_and_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = ROOT / "configs" / "letters" / "linear-crf.yaml"
    text = config.read_text() + "\n"
    small = tmp_path / "small.yaml"
    small.write_text(text.replace("LetterData\n", "LetterData\n  init_args:\n    examples: 30\n"))
    assert (
        cli.main(["solve", "--config", str(small), "--eps", "0.2", "--C", "10", "--save-to", str(tmp_path / "svm")])
        == 0
    )
    out = capsys.readouterr().out
    assert "Certificate" in out
    assert "test/error" in out
    assert bool((sl.load(tmp_path / "svm").feature_map.emission != 0).any())
