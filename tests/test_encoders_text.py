"""Hugging Face models in front of a chain: made from a configuration, and read from a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from task_cases import fast

import structlearn as sl
from structlearn import encoders, tasks
from structlearn.commands.predict import predictions
from structlearn.data import modules
from structlearn.data.batch import TokenInputs

TINY = {
    "model_type": "bert",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def test_a_model_from_a_configuration_learns_and_is_saved(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data = modules.TaggingData(examples=40, batch_size=20)
    task = tasks.Tagging(data.codec, encoders.HuggingFace(config=TINY), optimizer=fast)
    batches = list(data.train_dataloader())
    optimizer = task.configure_optimizers()
    assert isinstance(optimizer, torch.optim.Optimizer)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = sum((task.objective(batch) for batch in batches), torch.tensor(0.0))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    sl.save(task, tmp_path / "model")
    examples = task.codec.parse("the dog saw Mary .\na cat slept .", "text")
    again = sl.load(tmp_path / "model")
    assert [row["output"] for row in predictions(again, examples)] == [
        row["output"] for row in predictions(task, examples)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model with random weights and a tokenizer that cuts words into pairs of letters."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,'-0123456789"
    pieces = ["[PAD]", "[UNK]", *letters, *(a + b for a in letters for b in letters)]
    tokenizer = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("..?"), "isolated")
    whole = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]")
    whole.save_pretrained(tmp_path)
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**TINY, vocab_size=len(pieces), pad_token_id=0)
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
    return tmp_path


def test_a_word_of_several_pieces_takes_the_state_of_its_first(folder: Path) -> None:
    codec = modules.TaggingData(examples=40).codec
    encoder = encoders.HuggingFace(folder, freeze=True)
    encoder.build(codec)
    encoder.eval()
    assert not any(p.requires_grad for p in encoder.model.parameters())
    words = torch.tensor([[5, 7, 9, 3], [4, 6, 0, 0]])  # the second is padded: its states must not change for it
    states = encoder(TokenInputs(torch.tensor([4, 2]), words))
    assert states.shape == (2, 4, 16)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for b, length in enumerate((4, 2)):
        pieces, first = [], []
        for word in words[b, :length].tolist():
            first.append(len(pieces))
            pieces += tokenizer(codec.words.names[word - 2], add_special_tokens=False)["input_ids"]
        alone = encoder.model(input_ids=torch.tensor([pieces])).last_hidden_state[0, first]
        # Padding goes through the attention as exp(-huge) = 0, in another order of sums.
        torch.testing.assert_close(states[b, :length], alone, rtol=1e-5, atol=1e-5)
