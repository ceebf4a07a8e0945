"""A Hugging Face model in front of a structure; needs ``pip install structlearn[text]``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from structlearn.data.batch import TokenInputs
from structlearn.encoders.base import Encoder
from structlearn.errors import ArgumentError, DependencyError
from structlearn.storage.reading import parse_json, read_bytes

# Nothing is downloaded, and code that a folder brings is not run.
_ON_DISK = {"local_files_only": True, "trust_remote_code": False}
_MAX_CONFIG_BYTES = 1 << 24
# Options by which a model or tokenizer is assembled from what other repositories hold.
_REMOTE = ("auto_map", "quantization", "backbone", "adapter", "kernel_config", "use_kernels")
# Where a model came from, which transformers writes down and does not follow.
_NAMES = ("_name_or_path", "name_or_path", "tokenizer_file")


class HuggingFace(Encoder):
    """Phi(x^t) = the last hidden state at the first piece of word t, cut by the model's own tokenizer.

    Args:
        folder: a model and its tokenizer on disk, as ``save_pretrained`` writes them; nothing is downloaded.
            Pieces come from the words as they are written, whether training data held them or not.
        config: in place of a folder, options of a model to be made with random weights, ``model_type`` among them, such
            as {"model_type": "bert", "hidden_size": 64, ...}; each word of the codec's vocabulary is then one piece.
        freeze: leave the model as it is.
    """

    def __init__(
        self, folder: str | Path | None = None, config: dict[str, Any] | None = None, freeze: bool = False
    ) -> None:
        super().__init__()
        if (folder is None) == (config is None):
            raise ArgumentError("folder", "a folder or a config", f"{folder} and {config}", "give one of them")
        self.folder, self.config, self.freeze = folder, config, freeze
        library = _transformers()
        self.tokenizer = None
        if folder is not None:
            _check_folder(Path(folder))
            if list(Path(folder).glob("*.safetensors")) or list(Path(folder).glob("*.bin")):
                self.model = library.AutoModel.from_pretrained(str(folder), **_ON_DISK)
            else:  # beside a saved task, which has the weights
                made = library.AutoConfig.from_pretrained(str(folder), **_ON_DISK)
                self.model = library.AutoModel.from_config(made, trust_remote_code=False)
            self.tokenizer = library.AutoTokenizer.from_pretrained(str(folder), **_ON_DISK)
            self.out_features = int(self.model.config.hidden_size)
        else:
            assert config is not None
            _check_options(config, "config")
            self.out_features = int(config["hidden_size"])

    def build(self, codec: Any) -> None:
        if self.config is not None:
            library = _transformers()
            options = {**self.config, "vocab_size": len(codec.words), "pad_token_id": 0}
            made = library.AutoConfig.for_model(**options)
            self.model = library.AutoModel.from_config(made, trust_remote_code=False)
        if self.freeze:
            self.model.requires_grad_(False)

    def keep_files(self, folder: Path) -> str | None:
        """Writes what beside weights a saved task needs to ``folder``; the path that its description has for them."""
        if self.tokenizer is None:
            return None
        self.tokenizer.save_pretrained(folder)
        self.model.config.save_pretrained(folder)
        return str(self.folder)

    def forward(self, x: TokenInputs) -> Tensor:
        assert x.words is not None
        n = x.words.shape[1]
        if self.tokenizer is None:
            mask = torch.arange(n, device=x.words.device) < x.lengths[:, None]
            return self.model(input_ids=x.words, attention_mask=mask.long()).last_hidden_state
        if x.text is None:
            raise ArgumentError("x.text", "the words themselves", None, "a tokenizer cuts text: TokenInputs(text=...)")
        pieces, mask, first = self._cut(x.text.examples, n)
        device = x.words.device
        states = self.model(input_ids=pieces.to(device), attention_mask=mask.to(device)).last_hidden_state
        return states.gather(1, first.to(device).unsqueeze(-1).expand(-1, -1, states.shape[-1]))

    def _cut(self, sentences: Sequence[Sequence[str]], size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Pieces (B, M) with those that models expect around a sentence, their mask, and each word's first (B, N)."""
        assert self.tokenizer is not None
        unknown = self.tokenizer.unk_token or "."
        rows = [[word.strip() or unknown for word in words] for words in sentences]
        found = self.tokenizer(rows, is_split_into_words=True, padding=True, return_tensors="pt")
        most = getattr(self.model.config, "max_position_embeddings", None)
        if most is not None and found["input_ids"].shape[1] > most:
            longest = max(rows, key=len)
            got = f"{found['input_ids'].shape[1]}, of a sentence of {len(longest)} words"
            raise ArgumentError("words", f"at most {most} pieces a sentence", got, "cut such sentences")
        first = torch.zeros((len(rows), size), dtype=torch.int64)
        for i, words in enumerate(rows):
            at: dict[int, int] = {}
            for place, word in enumerate(found.word_ids(i)):
                if word is not None:
                    at.setdefault(word, place)
            for t in range(len(words)):
                # Tokenizers leave out some characters: a word of these alone has the state before it.
                first[i, t] = at.get(t, int(first[i, t - 1]) if t else 0)
        return found["input_ids"], found["attention_mask"], first


def _check_folder(folder: Path) -> None:
    """Refuses configurations that make transformers fetch models, kernels or code."""
    for name in ("config.json", "tokenizer_config.json"):
        if (folder / name).exists():
            data = read_bytes(folder / name, _MAX_CONFIG_BYTES, follow=True)
            # Tokenizers write 10^30 for "no limit".
            _check_options(parse_json(data, str(folder / name), max_number=math.inf), str(folder / name))


def _check_options(options: Any, source: str) -> None:
    if isinstance(options, list):
        for item in options:
            _check_options(item, source)
    for key, value in options.items() if isinstance(options, dict) else ():
        remote = isinstance(value, str) and "/" in value and key.endswith(("implementation", "_path", "backbone"))
        if (remote and key not in _NAMES) or (value and any(word in key for word in _REMOTE)):
            expected, remedy = "a model that needs no code or files from elsewhere", f"remove {key!r}"
            raise ArgumentError(source, expected, f"{key}={value!r}"[:100], remedy)
        _check_options(value, source)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        remedy = "pip install 'structlearn[text]'"
        raise DependencyError("transformers", "an installed package", "none", remedy) from error
    return transformers
