"""What a parser of options says of a mistake: the mistake and the remedy, without a page of usage."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

from pytorch_lightning.cli import LightningArgumentParser

from structlearn.storage.reading import check_yaml, read_bytes

_MAX_BYTES = 1 << 20  # of a configuration

_OPTION = re.compile(r"class_path '([\w.]+)':\s+(?:Option|Key|Group key)? *'([\w.]+)' is not (?:accepted|expected)")
_CLASS = re.compile(r"class_path '([\w.]+)':\s+module '[\w.]+' has no attribute '(\w+)'")
_NOISE = re.compile(
    r"^ *(Subtypes:|- Expected a <class 'NoneType'>|Given value type|Does not validate against any).*$\n?", re.M
)


class Parser(LightningArgumentParser):
    """Errors in two lines, and configurations checked before they are built."""

    def parse_path(self, path: Any, *args: Any, **options: Any) -> Any:
        source = Path(path)
        check_yaml(read_bytes(source, _MAX_BYTES, follow=True, remedy="check the path"), str(source), "mend the file")
        return super().parse_path(path, *args, **options)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:  # type: ignore[override]
        if not self.exit_on_error:  # a part of a larger attempt, which has more to say
            super().error(message, ex)
        program = (getattr(ex, "subcommand_parser", None) or self).prog.replace(" [options]", "")
        sys.stderr.write(f"{program}: {explained(message)}\nAll options: {program} --help\n")
        sys.exit(2)


def explained(message: str) -> str:
    """A parser's message in words for who wrote the configuration.

    >>> explained("the following arguments are required: fit.data, fit.model")
    'no model and data; give a configuration, such as --config configs/tagging/crf.yaml'
    """
    if "arguments are required" in message and "model" in message:
        return "no model and data; give a configuration, such as --config configs/tagging/crf.yaml"
    if found := _OPTION.search(message):
        path, option = found.groups()
        known = _arguments(path)
        return f"{path} has no option {option!r}{_nearest(option, known)} It has {', '.join(known)}."
    if found := _CLASS.search(message):
        path, name = found.groups()
        module = importlib.import_module(path.rpartition(".")[0])
        known = [k for k, v in vars(module).items() if isinstance(v, type)]
        return f"{module.__name__} has no class {name!r}{_nearest(name, known)}"
    if names := re.findall(r"'([\w-]+)'", " ".join(re.findall(r"typing\.Literal\[(.*?)\]", message))):
        key = re.findall(r'Parser key "([\w.]+)"', message)[-1:] or ["an option"]
        got = re.findall(r"Given value: (\S+)", message)[:1] or ["another"]
        return f"{key[0]}: expected one of {', '.join(dict.fromkeys(names))}, got {got[0]}"
    return _NOISE.sub("", message).strip()


def _arguments(path: str) -> list[str]:
    module, _, name = path.rpartition(".")
    kind = getattr(importlib.import_module(module), name)
    # The codec comes from the data.
    return [p for p in inspect.signature(kind).parameters if p not in ("codec", "args", "kwargs")]


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]!r}?" if close else "."
