"""What the README, the Makefile and the package's metadata promise is so."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import structlearn as sl

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def tracked() -> list[str]:
    """The files of the project, as paths from its root."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        command = ["git", "-c", f"safe.directory={ROOT}", "ls-files"]
        return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    found = (p.relative_to(ROOT) for top in ROOT.iterdir() if top.name not in IGNORED for p in [top, *top.rglob("*")])
    return [p.as_posix() for p in found if (ROOT / p).is_file() and "__pycache__" not in p.parts]


IGNORED = {
    ".venv",
    ".git",
    "build",
    "dist",
    "demo.png",
    "site",
    ".pytest_cache",
    ".ruff_cache",
    ".mypy_cache",
    ".hypothesis",
}


FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


def code_blocks(language: str) -> list[str]:
    return [text for name, text in FENCED.findall(README) if name == language]


def map_of_files() -> set[str]:
    """The paths in the README's map; a folder ends in a slash, indentation is nesting."""
    (text,) = (block for block in code_blocks("") if "pyproject.toml" in block)
    paths, folder = set(), ""
    for line in text.splitlines():
        name = line.split()[0]
        if not line.startswith(" "):
            folder = name if name.endswith("/") else ""
            paths.add(name)
        else:
            paths.add(folder + name)
    return paths


def test_example_has_twelve_lines_and_learns(capsys: pytest.CaptureFixture[str]) -> None:
    example = code_blocks("python")[0]
    assert sum(bool(line.strip()) for line in example.splitlines()) == 12
    scope: dict[str, Any] = {}
    exec(compile(example, "README.md", "exec"), scope)
    test, model = scope["test"], scope["model"]
    predicted = model(test.images, test.lengths).argmax()
    wrong = (predicted != test.labels)[test.labels >= 0].double().mean()
    assert float(wrong) < 0.25
    assert capsys.readouterr().out == f"{list(zip(test.spell(), test.spell(predicted), strict=True))[:5]}\n"


def test_commands_of_the_readme_are_in_the_makefile() -> None:
    inline = re.findall(r"`make ([a-z]+)`", FENCED.sub("", README))
    named = {*inline, *re.findall(r"^make ([a-z]+)", "".join(code_blocks("sh")), flags=re.MULTILINE)}
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert {"demo", "test", "lint", "bench"} <= named <= targets


@pytest.mark.parametrize("target", ["demo", "test", "lint", "bench", "sanitize", "notebooks", "docs", "help"])
def test_make_knows_how(target: str) -> None:
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_make_refuses_an_old_python(tmp_path: Path) -> None:
    old = tmp_path / "python"
    # Stands for an interpreter that says it is 3.10, whatever it is asked to run.
    old.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.version_info = (3, 10); exec(sys.argv[2])" "$@"\n'
    )
    old.chmod(0o755)
    command = ["make", f"PYTHON={old}", f"VENV={tmp_path}/venv", f"{tmp_path}/venv/bin/python"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "structlearn needs Python >= 3.11" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_ci_runs_lint_tests_and_sanitizers() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = script.read_text().splitlines()
    assert "set -euo pipefail" in lines
    assert lines[-3:] == ["make lint", "make test", "make sanitize SECONDS_EACH=40 SEED=0"]


def test_map_names_files_that_exist() -> None:
    missing = [path for path in sorted(map_of_files()) if not (ROOT / path).exists()]
    assert not missing, f"README.md, Map of files: {missing} are not there"


def test_map_is_complete() -> None:
    """Everything at the top and directly below structlearn/ and kernels/, hidden files and __init__ aside."""
    expected = set()
    for path in tracked():
        top, *rest = path.split("/")
        expected.add(f"{top}/" if rest else top)
        if top in ("structlearn", "kernels"):
            expected.add(f"{top}/{rest[0]}/" if len(rest) > 1 else path)
    named = map_of_files()
    missing = {path for path in expected if not path.startswith(".")} - named
    assert not missing, f"README.md, Map of files: add {sorted(missing)}"


def test_links_of_documents_lead_somewhere() -> None:
    for path in tracked():
        if path.endswith(".md"):
            for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / path).read_text()):
                assert link.startswith("https://") or (ROOT / path).parent.joinpath(link).exists(), f"{path}: {link}"


def test_version_is_one() -> None:
    version = PROJECT["project"]["version"]
    assert sl.__version__ == importlib.metadata.version("structlearn") == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert not released or released[0] == version


def test_metadata() -> None:
    metadata = importlib.metadata.metadata("structlearn")
    assert metadata["License-Expression"] == PROJECT["project"]["license"] == "MIT"
    assert (ROOT / "LICENSE").read_text().startswith("MIT License\n")
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="structlearn")
    assert callable(script.load())


def test_kernels_are_in_the_package() -> None:
    assert "cpu" in sl.ops.backends()
    folders = [Path(folder) for folder in sl.__path__]
    assert any(list(folder.glob("_kernels_base*")) for folder in folders)
    gpu = importlib.import_module("structlearn.gpu")
    assert gpu.__doc__


def test_constraints_give_their_reasons() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert any(line.startswith("torch<2.14") for line in lines)
    named = {re.split("[<>=!~ ]", line)[0] for line in lines if line and not line.startswith("#")}
    explained = {
        name for name in named if any(line.startswith("#") and name.removesuffix("lib") in line for line in lines)
    }
    assert named == explained
