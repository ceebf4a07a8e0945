"""Substitution tables as data: BLOSUM62 and PAM250, integers over the 20 amino acids, B, Z, X and *."""

from __future__ import annotations

from importlib import resources

import torch
from torch import Tensor

from structlearn.errors import ArgumentError

AMINO_ACIDS = "ARNDCQEGHILKMFPSTWYV"
TABLES = ("BLOSUM62", "PAM250")


def substitution_table(name: str, alphabet: str = AMINO_ACIDS) -> Tensor:
    """(A, A) scores of aligning two letters of ``alphabet``, in its order.

    >>> substitution_table("BLOSUM62", "WA").tolist()
    [[11.0, -3.0], [-3.0, 4.0]]
    """
    if name not in TABLES:
        raise ArgumentError("name", f"one of {TABLES}", repr(name), "give a tensor of scores for any other table")
    text = (resources.files("structlearn.data") / "matrices" / f"{name.lower()}.txt").read_text()
    header, *lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    if unknown := set(alphabet) - set(header):
        letter = min(unknown)
        raise ArgumentError("alphabet", f"letters of {''.join(header)}", repr(letter), "leave it out, or use X")
    order = [header.index(letter) for letter in alphabet]
    table = torch.tensor([[float(value) for value in line[1:]] for line in lines])
    return table[order][:, order]
