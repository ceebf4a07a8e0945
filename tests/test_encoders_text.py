"""Hugging Face models in front of a chain: made from a configuration, and read from a folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from task_cases import fast

import structlearn as sl
from structlearn import encoders, tasks
from structlearn.commands.predict import predictions
from structlearn.data import modules
from structlearn.data.batch import Kept, TokenInputs
from structlearn.errors import ArgumentError

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


@pytest.mark.parametrize("around", [False, True])
def test_a_word_of_several_pieces_takes_the_state_of_its_first(folder: Path, around: bool) -> None:
    if around:  # pieces before and after a sentence, as most models have them
        from tokenizers import processors

        whole = transformers.AutoTokenizer.from_pretrained(folder)
        names = (("[PAD]", 0), ("[UNK]", 1))
        whole.backend_tokenizer.post_processor = processors.BertProcessing(*names)  # after, before
        whole.save_pretrained(folder)
    data = modules.TaggingData(examples=40)
    encoder = encoders.HuggingFace(folder, freeze=True)
    encoder.build(data.codec)
    encoder.eval()
    assert not any(p.requires_grad for p in encoder.model.parameters())
    sentences = ["The zebra-crossing saw Mary .", "a Cat", "\u200b saw"]  # words that training data never held
    batch = data.codec.collate(data.codec.encode(data.codec.parse("\n".join(sentences), "text")))
    states = encoder(batch.x)
    assert states.shape == (3, 5, 16)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for b, sentence in enumerate(sentences):
        pieces, first = ([1] if around else []), []
        for word in sentence.split():
            first.append(len(pieces))
            pieces += tokenizer(word, add_special_tokens=False)["input_ids"]
        pieces += [0] if around else []
        alone = encoder.model(input_ids=torch.tensor([pieces])).last_hidden_state[0, first]
        # Padding goes through the attention as exp(-huge) = 0, in another order of sums.
        torch.testing.assert_close(states[b, : len(first)], alone, rtol=1e-5, atol=1e-5)


def test_words_outside_the_vocabulary_keep_their_own_pieces_in_training_and_prediction(folder: Path) -> None:
    torch.manual_seed(0)
    data = modules.TaggingData(examples=40, batch_size=20, min_count=1000)  # no word is in the vocabulary
    task = tasks.Tagging(data.codec, encoders.HuggingFace(folder), optimizer=fast)
    assert len(data.codec.words) == 2
    first, second = (task.codec.parse(line, "text") for line in ("the dog", "the Gnu"))
    assert predictions(task, first)[0]["score"] == predictions(task, second)[0]["score"] == 0.0  # no weights yet
    optimizer = task.configure_optimizers()
    assert isinstance(optimizer, torch.optim.Optimizer)
    before = after = float("inf")
    for _ in range(12):
        for batch in data.train_dataloader():
            optimizer.zero_grad()
            loss = task.objective(batch)
            loss.backward()
            optimizer.step()
        before, after = (float(loss.detach()) if before == float("inf") else before), float(loss.detach())
    assert after < 0.6 * before  # all words alike, it could learn the commonest tags alone
    assert predictions(task, first)[0]["score"] != predictions(task, second)[0]["score"]


def test_a_saved_task_needs_the_folder_of_its_encoder_no_more(folder: Path, tmp_path_factory: Any) -> None:
    data = modules.TaggingData(examples=12)
    task = tasks.Tagging(data.codec, encoders.HuggingFace(folder, freeze=True)).eval()
    torch.nn.init.normal_(task.feature_map.emission)
    examples = task.codec.parse("the Gnu saw Mary .", "text")
    wanted = predictions(task, examples)
    first, second = (tmp_path_factory.mktemp("saved") / name for name in ("first", "second"))
    sl.save(task, first)
    shutil.rmtree(folder)
    assert predictions(sl.load(first), examples) == wanted
    sl.save(sl.load(first), second)
    shutil.rmtree(first)
    assert predictions(sl.load(second), examples) == wanted


def test_inputs_that_no_tokenizer_can_cut_are_refused(folder: Path) -> None:
    encoder = encoders.HuggingFace(folder)
    with pytest.raises(ArgumentError, match=r"x\.text: expected the words themselves"):
        encoder(TokenInputs(torch.tensor([2]), torch.tensor([[2, 3]])))
    long = Kept([["word"] * 600])
    with pytest.raises(ArgumentError, match="at most 512 pieces a sentence, got 1200"):
        encoder(TokenInputs(torch.tensor([600]), torch.zeros((1, 600), dtype=torch.int64), text=long))
