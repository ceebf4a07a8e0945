"""Every Python block of README.md and docs/*.md runs, and the site builds without a warning or the network."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CONFIG = ROOT / "docs" / "mkdocs" / "mkdocs.yml"
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
COMMANDS = re.compile(r"structlearn (\w+)(?: [^\n`]*?--config[ =](configs/[\w/.-]+))?")


def blocks(path: Path, language: str) -> list[tuple[int, str]]:
    """The blocks of a page with the lines they start at."""
    text = path.read_text()
    found = ((match.start(2), *match.groups()) for match in FENCED.finditer(text))
    return [(text.count("\n", 0, start), code) for start, name, code in found if name == language]


@pytest.mark.parametrize("path", [path for path in PAGES if blocks(path, "python")], ids=lambda path: path.name)
def test_python_blocks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order and in one namespace, as a reader pastes them, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    scope: dict[str, Any] = {"__name__": "__main__"}
    try:
        for line, code in blocks(path, "python"):
            # Blank lines in front make tracebacks point into the page.
            exec(compile("\n" * line + code, str(path), "exec"), scope)
    finally:
        torch.set_num_threads(threads)
    for picture in re.findall(r"!\[[^\]]*\]\((pictures/[\w-]+\.png)\)", path.read_text()):
        assert (tmp_path / picture).is_file(), f"{path.name}: no block draws {picture}"


def test_commands_named_in_the_pages_exist() -> None:
    from structlearn import cli

    (commands,) = (action for action in cli.parser()._actions if action.dest == "command")
    assert commands.choices is not None
    for path in PAGES:
        shell = "".join(code for _, code in blocks(path, "sh"))
        inline = " ".join(re.findall(r"`(structlearn [^`]+)`", FENCED.sub("", path.read_text())))
        for name, config in COMMANDS.findall(shell + inline):
            assert name in commands.choices, f"{path.name}: structlearn {name} is no command"
            assert not config or (ROOT / config).is_file(), f"{path.name}: there is no {config}"


def test_the_nav_names_pages_that_exist() -> None:
    named = set(re.findall(r"[\w/-]+\.md", CONFIG.read_text()))
    made = {"contributing.md", "changelog.md", "kernels.md", "index.md"}
    pages = {path.name for path in PAGES[1:]}
    assert {name for name in named if "/" not in name} - made <= pages


def test_how_to_pages_name_shapes_and_an_api_that_exists() -> None:
    import structlearn as sl

    for path in PAGES:
        for name in re.findall(r"`sl\.([\w.]+)", path.read_text()):
            found: Any = sl
            for part in name.rstrip(".").split("."):
                found = getattr(found, part, None)
                assert found is not None, f"{path.name}: there is no sl.{name}"


def test_every_public_name_says_what_it_is() -> None:
    """In its own words: not the signature that a dataclass makes up, and one sentence on its first line or lines."""
    for init in sorted((ROOT / "structlearn").glob("[a-z]*/__init__.py")):
        if init.parent.name in ("gpu", "commands"):
            continue
        package = importlib.import_module(f"structlearn.{init.parent.name}")
        for node in ast.walk(ast.parse(init.read_text())):
            for name in (a.name for a in node.names if a.asname == a.name) if isinstance(node, ast.ImportFrom) else ():
                found = getattr(package, name)
                text = (found.__doc__ or "").strip()
                first = text.split("\n\n")[0]
                assert not callable(found) or (first and not first.startswith(f"{name}(")), f"{package.__name__}.{name}"
                assert not callable(found) or first.endswith((".", ":")), f"{package.__name__}.{name}: {first}"


def test_site_builds_strictly(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", str(CONFIG), "-d", str(tmp_path)]
    # A proxy that nobody listens on: whatever would be fetched fails.
    closed = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, env={**os.environ, **closed}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    exported = ast.parse((ROOT / "structlearn" / "losses" / "__init__.py").read_text()).body[1:]
    names = [item.name for node in exported if isinstance(node, ast.ImportFrom) for item in node.names]
    page = (tmp_path / "api" / "losses.html").read_text()
    assert all(f'id="structlearn.losses.{name}"' in page for name in names)
    assert "max_y H(y)" in page
    assert (tmp_path / "notebooks" / "laso_1.png").read_bytes().startswith(b"\x89PNG")
    for file in tmp_path.rglob("*.html"):
        for source in re.findall(r'(?:src|rel="stylesheet" href)="(https?://[^"]+)"', file.read_text()):
            raise AssertionError(f"{file.name} loads {source}")
