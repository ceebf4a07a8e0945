"""Pages that are made while building: the API from the packages, notebooks, and documents outside docs/.

A link in any page is written as a reader of the repository follows it; here it is led to the page of the site, or to
nothing but its text where the site has no such page.
"""

from __future__ import annotations

import ast
import base64
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from plain_text import markdown as plain

ROOT = Path(__file__).resolve().parents[2]
# Where a document of the repository is found on the site; those in docs/ keep their places.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "kernels/README.md": "kernels.md",
    "benchmarks/README.md": "speed/index.md",
    **{f"benchmarks/results/{path.name}": f"speed/{path.name}" for path in (ROOT / "benchmarks/results").glob("*.md")},
    **{f"notebooks/{path.name}": f"notebooks/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")},
}
SOURCES = {page: source for source, page in PAGES.items()}
# The kernels, and what the command line does: nothing to import from.
INTERNAL = {"gpu", "commands"}
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s]+)(#[^)]*)?\)")
_FENCED = re.compile(r"(^```.*?^```$)", flags=re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Adds the made pages."""
    for source, page in PAGES.items():
        path = ROOT / source
        if path.suffix == ".ipynb":
            text, pictures = notebook_page(json.loads(path.read_text()), path.stem)
            for name, content in pictures.items():
                files.append(File.generated(config, f"notebooks/{name}", content=content))
        else:
            text = path.read_text()
        files.append(File.generated(config, page, content=text))
    for name, text in api_pages().items():
        files.append(File.generated(config, f"api/{name}.md", content=text))
    return files


def on_config(config: Any) -> Any:
    """Lists the pages of the API, the speeds, and what docs/ has that the nav does not name."""
    api = [{"Overview": "api/index.md"}]
    api += [{name: f"api/{name}.md"} for name in api_pages() if name != "index"]
    speeds = [{Path(page).stem.capitalize(): page} for page in sorted(SOURCES) if page.startswith("speed/")]
    named = set(re.findall(r"[\w/-]+\.md", str(config.nav)))
    more = sorted(path.name for path in (ROOT / "docs").glob("*.md") if path.name not in named)
    results = [{name.removesuffix(".md").replace("-", " ").capitalize(): name} for name in more]
    config.nav = [*config.nav[:-1], {"API": api}, {"Results and speed": [*results, *speeds]}, config.nav[-1]]
    return config


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    """Leads links to pages of the site; code is left alone."""
    here = page.file.src_uri
    source = SOURCES.get(here, f"docs/{here}")

    def lead(match: re.Match[str]) -> str:
        text, target, anchor = match.groups()
        if "://" in target or here.startswith("api/"):
            return match.group()
        found = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        place = PAGES.get(found) or (found.removeprefix("docs/") if found.startswith("docs/") else None)
        if place is None or (ROOT / "docs" / place).is_dir():
            return text
        return f"[{text}]({posixpath.relpath(place, posixpath.dirname(here) or '.')}{anchor or ''})"

    parts = _FENCED.split(markdown)
    return "".join(part if i % 2 else _LINK.sub(lead, part) for i, part in enumerate(parts))


def api_pages() -> dict[str, str]:
    """A page for structlearn and for each of its public packages: every name that ``__init__`` re-exports."""
    found = {path.parent.name for path in (ROOT / "structlearn").glob("[a-z]*/__init__.py")}
    packages = sorted(found - INTERNAL)
    pages = {"index": _overview(packages)}
    for package in packages:
        folder = ROOT / "structlearn" / package
        names = exported(folder / "__init__.py")
        modules = [path.stem for path in sorted(folder.glob("[a-z]*.py"))] if not names else []
        entries = [f"::: structlearn.{package}.{name}" for name in names or modules]
        for inner in sorted(folder.glob("[a-z]*/__init__.py")) if not names else ():
            entries += [f"::: structlearn.{package}.{inner.parent.name}.{name}" for name in exported(inner)]
        head = f"# structlearn.{package}\n\n{_summary(folder / '__init__.py')}\n\n"
        pages[package] = head + "\n\n".join(entries) + "\n"
    singles = ("saving", "semirings", "errors", "tags", "taxonomy", "brackets", "trees")
    entries = [f"::: structlearn.{name}" for name in singles]
    pages["modules"] = "# Single modules\n\n" + "\n\n".join(entries) + "\n"
    return pages


def exported(path: Path) -> dict[str, str]:
    """The names ``X`` of ``from module import X as X``, each with its module, and those defined there, in order."""
    found: dict[str, str] = {}
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {item.name: node.module for item in node.names if item.asname == item.name}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            found[node.name] = ""
    return found


def _summary(path: Path) -> str:
    return plain(ast.get_docstring(ast.parse(path.read_text())) or "")


def _overview(packages: list[str]) -> str:
    lines = ["# The public API", "", "`import structlearn as sl`, then:", "", "| name | from |", "|---|---|"]
    for name, module in exported(ROOT / "structlearn" / "__init__.py").items():
        package = module.split(".")[1] if "." in module else name
        page = package if package in packages else "modules"
        shown = f"structlearn.{package}" if "." in module else "package" if package in packages else "module"
        lines.append(f"| [`sl.{name}`]({page}.md) | {shown} |")
    lines += ["", "Packages, each with a page of its own:", ""]
    lines += [f"- [structlearn.{p}]({p}.md): {_first(p)}" for p in packages]
    return "\n".join([*lines, ""])


def _first(package: str) -> str:
    return _summary(ROOT / "structlearn" / package / "__init__.py").splitlines()[0]


def notebook_page(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as stored: its text, code and outputs as Markdown, and its pictures by file name."""
    parts, pictures = [], {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            if "image/png" in output.get("data", {}):
                file = f"{name}_{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode("".join(output["data"]["image/png"]))
                parts.append(f"![what the cell draws]({file})")
            elif text := "".join(output.get("text", "")):
                parts.append(f"```text\n{text.rstrip()}\n```")
    where = f"This page is the notebook `notebooks/{name}.ipynb`; open it to run and change it."
    return "\n\n".join([*parts[:1], f"*{where}*", *parts[1:]]) + "\n", pictures
