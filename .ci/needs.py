"""Prints what an extra needs, one requirement a line, so that pip can fetch it while the kernels compile."""

import re
import sys
import tomllib
from collections.abc import Iterator

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]


def needs(extra: str) -> Iterator[str]:
    """The requirements of an extra and of those it names."""
    for requirement in project["optional-dependencies"][extra]:
        named = re.fullmatch(r"structlearn\[(.+)\]", requirement)
        if named is None:
            yield requirement
        else:
            for name in named[1].split(","):
                yield from needs(name)


print(*project["dependencies"], *needs(sys.argv[1]), sep="\n")
