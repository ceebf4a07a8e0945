"""A Hugging Face model in front of a structure; needs ``pip install structlearn[text]``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from structlearn.data.batch import TokenInputs
from structlearn.encoders.base import Encoder
from structlearn.errors import ArgumentError, DependencyError


class HuggingFace(Encoder):
    """Phi(x^t) = the last hidden state at the first piece of word t.

    Args:
        folder: a model and its tokenizer on disk, as ``save_pretrained`` writes them; nothing is downloaded.
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
        self.config, self.freeze = config, freeze
        library = _transformers()
        self.tokenizer = None
        if folder is not None:
            self.model = library.AutoModel.from_pretrained(str(folder), local_files_only=True)
            self.tokenizer = library.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
            self.out_features = int(self.model.config.hidden_size)
        else:
            assert config is not None
            self.out_features = int(config["hidden_size"])

    def build(self, codec: Any) -> None:
        if self.config is not None:
            library = _transformers()
            options = {**self.config, "vocab_size": len(codec.words), "pad_token_id": 0}
            self.model = library.AutoModel.from_config(library.AutoConfig.for_model(**options))
        if self.freeze:
            self.model.requires_grad_(False)
        self._pieces = {} if self.tokenizer is None else self._pieces_of(codec)

    def _pieces_of(self, codec: Any) -> dict[int, list[int]]:
        """The pieces of every word of the vocabulary, by its number."""
        assert self.tokenizer is not None
        names = dict(enumerate(codec.words.names, 2))
        found = {i: self.tokenizer(name, add_special_tokens=False)["input_ids"] for i, name in names.items()}
        unknown = [self.tokenizer.unk_token_id if self.tokenizer.unk_token_id is not None else 0]
        return {1: unknown} | {i: pieces or unknown for i, pieces in found.items()}

    def forward(self, x: TokenInputs) -> Tensor:
        assert x.words is not None
        b, n = x.words.shape
        if not self._pieces:
            mask = torch.arange(n, device=x.words.device) < x.lengths[:, None]
            return self.model(input_ids=x.words, attention_mask=mask.long()).last_hidden_state
        rows, firsts = [], torch.zeros((b, n), dtype=torch.int64)
        for i, (words, length) in enumerate(zip(x.words.tolist(), x.lengths.tolist(), strict=True)):
            row: list[int] = []
            for t in range(length):
                firsts[i, t] = len(row)
                row += self._pieces[words[t]]
            rows.append(torch.tensor(row or [0]))
        sizes = torch.tensor([len(row) for row in rows])
        pieces = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(x.words.device)
        mask = (torch.arange(pieces.shape[1]) < sizes[:, None]).to(x.words.device)
        states = self.model(input_ids=pieces, attention_mask=mask.long()).last_hidden_state
        at = firsts.to(states.device).unsqueeze(-1).expand(-1, -1, states.shape[-1])
        return states.gather(1, at)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        remedy = "pip install 'structlearn[text]'"
        raise DependencyError("transformers", "an installed package", "none", remedy) from error
    return transformers
