"""The classes that a description may name, so that a saved model from elsewhere makes these objects and no others.

A class is listed by the module that exports it. A name that is not listed is never looked up, so nothing that a module
merely imports can be reached. What users define themselves comes from packages that they name as trusted.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable

from structlearn.errors import ArgumentError

PARTS: dict[str, tuple[str, ...]] = {
    "structlearn": (
        *("CRFLoss", "PerceptronLoss", "SoftmaxMargin", "StructuredHinge"),
        *("Grammar", "Taxonomy"),
    ),
    "structlearn.constraints": ("ChainMask", "DFA"),
    "structlearn.costs": ("AlignedPairs", "BracketF1", "F1", "Hamming", "SegmentF1", "TreeCost", "ZeroOne"),
    "structlearn.data.codecs": (
        *("AligningCodec", "ClassificationCodec", "JointCodec", "LetterCodec", "ParsingCodec", "RerankingCodec"),
        *("SegmentationCodec", "TaggingCodec"),
    ),
    "structlearn.data.vocabulary": ("Vocabulary",),
    "structlearn.encoders": (
        *("BagOfWords", "BiLSTM", "CNN", "Dense", "HuggingFace", "LetterCNN", "MLP", "Pooled", "Transformer"),
        "WordsAndLetters",
    ),
    "structlearn.features": (
        *("AlignmentMap", "CandidateMap", "ChainMap", "EncoderAlignmentMap", "HomologueChoiceMap", "HomologueMap"),
        *("MulticlassMap", "RuleMap", "SegmentMap", "SpanScorerMap", "SparseChainMap", "SparseSegmentMap"),
        *("TagSpanMap", "TaxonomyMap"),
    ),
    "structlearn.metrics": (
        *("AlignmentScore", "BracketRules", "BracketScore", "ChosenF1", "ChunkF1", "Mean", "PositionError"),
        "SegmentScore",
    ),
    "structlearn.search": ("BeamSearchLoss", "StructureBeamLoss"),
    "structlearn.tasks": (
        *("Aligning", "Classification", "Constrained", "JointTagging", "Parsing", "Reranking", "SearchParsing"),
        *("SearchSegmentation", "SearchTagging", "Segmentation", "SparseTagging", "Tagging"),
    ),
    # Layers whose constructor arguments can be read from the layer.
    "torch.nn": (
        *("Conv1d", "Dropout", "ELU", "GELU", "LayerNorm", "LeakyReLU", "Linear", "ReLU", "Sigmoid"),
        *("SiLU", "Softplus", "Tanh"),
    ),
}
# Arguments that name files to read: in a saved model only the model's own.
FILE_ARGUMENTS: dict[str, tuple[str, ...]] = {"structlearn.encoders.HuggingFace": ("folder",)}


def class_path(kind: type) -> str:
    """The path under which descriptions name a class: of a listed one the listed path."""
    root = kind.__module__.partition(".")[0]
    for module, names in PARTS.items():
        likely = module.partition(".")[0] == root and kind.__name__ in names
        if likely and getattr(importlib.import_module(module), kind.__name__) is kind:
            return f"{module}.{kind.__name__}"
    return f"{kind.__module__}.{kind.__qualname__}"


def class_named(path: object, *, trusted: Iterable[str] = ()) -> type:
    """The class of that path: a listed one, or one that a trusted package defines."""
    trusted = tuple(trusted)
    if not isinstance(path, str):
        raise ArgumentError("class_path", "the path of a class, as text", type(path).__name__, "e.g. torch.nn.Linear")
    module, _, name = path.rpartition(".")
    if name in PARTS.get(module, ()):
        kind: type = getattr(importlib.import_module(module), name)
        return kind
    if not any(path.startswith(f"{package}.") for package in trusted):
        expected = f"a part of structlearn or a layer of torch.nn that structlearn.registry lists{_also(trusted)}"
        remedy = "pass trusted=('package',) if you trust where this comes from"
        raise ArgumentError("class_path", expected, _short(path), remedy)
    try:
        other = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise ArgumentError("class_path", "a class that can be imported", _short(path), str(error)) from error
    # What a trusted package imports from others is not trusted with it.
    if not isinstance(other, type) or not any(f"{other.__module__}.".startswith(f"{p}.") for p in trusted):
        remedy = "was it renamed? It has to be defined in the package itself"
        raise ArgumentError("class_path", f"a class of {', '.join(trusted)}", _short(path), remedy)
    return other


def _also(trusted: tuple[str, ...]) -> str:
    return f", or a class of {', '.join(trusted)}" if trusted else ""


def _short(path: str) -> str:
    return repr(path if len(path) <= 100 else f"{path[:100]}...")
