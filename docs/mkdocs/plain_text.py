"""Docstrings are plain text with equations; this makes Markdown of them that shows the same characters."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr):`~?([^`]+)`")
_CODE = re.compile(r"(``[^`]*``|`[^`]*`)")
_SPECIAL = re.compile(r"([\\*_\[\]])")
_NAMES = re.compile(r"^    (?! )[\w*, ]+:")
_RULE = re.compile(r"^=+(  =+)+$")
_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Attributes after `?fit`?):$")


class PlainText(griffe.Extension):
    """Escapes what Markdown would read as marks, outside code and indented equations."""

    def on_object(self, *, obj: griffe.Object, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(docstring: str) -> str:
    """The Markdown of a docstring; lines of an ``Args`` section, whose indentation is meant, are escaped too."""
    lines, in_section, rules = [], False, 0
    for line in docstring.splitlines():
        if _RULE.match(line) or rules % 3:
            # A table: three rules, and what stands between them. Shown as it is written.
            rules += bool(_RULE.match(line))
            lines.append("    " + line)
            continue
        if line and not line.startswith(" "):
            in_section = _SECTION.match(line) is not None
        is_example = line.lstrip().startswith(">>>")
        is_equation = line.startswith("    ") and not in_section
        names = found.group() if in_section and (found := _NAMES.match(line)) else ""
        lines.append(line if is_example or is_equation else names + _escaped(line.removeprefix(names)))
    return "\n".join(lines)


def _escaped(line: str) -> str:
    parts = _CODE.split(_ROLE.sub(r"`\1`", line))
    return "".join(part if i % 2 else _SPECIAL.sub(r"\\\1", part).replace("<", "&lt;") for i, part in enumerate(parts))
