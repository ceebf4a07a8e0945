"""doctor: what works here, and what to install for the rest."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import sys

# What each package is for; the extra that brings it, or none for those that structlearn needs itself.
PACKAGES: tuple[tuple[str, str, str | None], ...] = (
    ("torch", "tensors and gradients", None),
    ("pytorch-lightning", "fit, validate, test", None),
    ("torchmetrics", "scores", None),
    ("jsonargparse", "configurations", None),
    ("safetensors", "saved models", None),
    ("torch-struct", "backend torch-struct", None),
    ("qpth", "differentiable exact solver", None),
    ("scikit-learn", "reranking", None),
    ("triton", "backend triton", "gpu"),
    ("matplotlib", "pictures", "viz"),
    ("transformers", "Hugging Face encoders", "text"),
    ("highspy", "integer linear programs", "ilp"),
    ("piqp", "another solver of dual programs", "qp"),
    ("shtab", "shell completion", "cli"),
)


def report() -> list[tuple[str, str, str]]:
    """Rows (what, state, advice)."""
    rows = [
        ("structlearn", _version("structlearn") or "from source", ""),
        ("python", platform.python_version(), "" if sys.version_info >= (3, 11) else "3.11 or newer"),
        ("machine", f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores", ""),
    ]
    for name, use, extra in PACKAGES:
        found = _version(name)
        install = f"pip install 'structlearn[{extra}]'" if extra else "pip install structlearn"
        rows.append((name, found or "missing", "" if found else f"for {use}: {install}"))
    return rows + _torch_rows()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch_rows() -> list[tuple[str, str, str]]:
    if importlib.util.find_spec("torch") is None:
        return []
    import torch

    from structlearn.ops import _backends, _native

    rows = []
    for name in _backends.BACKENDS:
        reason = _backends._missing(name)
        rows.append((f"backend {name}", "works" if reason is None else "not here", reason or ""))
    for what, missing in (
        ("direct calls", _native.missing),
        ("calls and gradients for this torch", _native.missing_node),
    ):
        slower = missing and f"short inputs take longer: {missing}"
        rows.append((what, "not here" if slower else "work", slower or ""))
    if torch.cuda.is_available():
        rows += [(f"cuda:{i}", torch.cuda.get_device_name(i), "") for i in range(torch.cuda.device_count())]
    else:
        rows.append(("cuda", "none", "chains, trees and alignments run on the CPU kernels"))
    rows.append(("cpu", f"{torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads", ""))
    distributed = torch.distributed.is_available()
    rows.append(("distributed", "works" if distributed else "not here", "" if distributed else "a torch with gloo"))
    return rows


def run() -> None:
    """Print the report."""
    rows = report()
    width, states = (max(len(row[i]) for row in rows) for i in (0, 1))
    for what, state, advice in rows:
        print(f"{what:<{width}}  {state:<{states}}  {advice}".rstrip())
