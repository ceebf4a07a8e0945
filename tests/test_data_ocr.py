"""The generated words: shapes, padding, spelling, noise, seeds and refusals."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from structlearn.data.ocr import ALPHABET, HEIGHT, LEXICON, WIDTH, Words, glyphs, ocr_words
from structlearn.errors import ArgumentError

CLEAN: dict[str, Any] = {"shift": 0, "dropout": 0.0, "blur": 0.0, "noise": 0.0}


def ink(word: str, batch: Words, row: int) -> np.ndarray:
    """The images of one word, (N, 16, 8)."""
    return batch.images[row, : len(word)].view(-1, HEIGHT, WIDTH).numpy()


def test_shapes_and_padding() -> None:
    words = ocr_words(50, seed=3)
    longest = int(words.lengths.max())
    assert words.images.shape == (50, longest, HEIGHT * WIDTH)
    assert words.images.dtype == torch.float32
    assert words.labels.shape == (50, longest)
    assert words.labels.dtype == words.lengths.dtype == torch.int64
    for row, n in enumerate(words.lengths.tolist()):
        assert (words.labels[row, n:] == -100).all()
        assert (words.images[row, n:] == 0).all()
        assert ((words.labels[row, :n] >= 0) & (words.labels[row, :n] < 26)).all()
    assert float(words.images.min()) >= 0
    assert float(words.images.max()) <= 1


def test_words_come_from_the_lexicon_the_front_more_often() -> None:
    spelled = Counter(ocr_words(4000, seed=1, **CLEAN).spell())
    assert set(spelled) <= set(LEXICON)
    expected = 1 / (np.arange(len(LEXICON)) + 20)
    share = np.array([spelled[word] for word in LEXICON]) / 4000
    assert abs(share[:50].sum() - (expected / expected.sum())[:50].sum()) < 0.04


def test_lexicon_has_every_letter_and_uneven_bigrams() -> None:
    assert len(LEXICON) == len(set(LEXICON)) >= 300
    assert set("".join(LEXICON)) == set(ALPHABET)
    pairs = Counter(pair for word in LEXICON for pair in pairwise(word))
    assert {after for before, after in pairs if before == "q"} == {"u"}
    assert len(pairs) < 26 * 26 / 2


def test_without_noise_the_images_are_the_glyphs() -> None:
    words = ocr_words(30, seed=0, **CLEAN)
    drawn = glyphs().numpy()
    for row, word in enumerate(words.spell()):
        expected = np.stack([drawn[ALPHABET.index(letter)] for letter in word])
        np.testing.assert_array_equal(ink(word, words, row), expected)


def test_glyphs_differ_by_more_than_a_shift() -> None:
    drawn = glyphs().numpy()
    assert drawn.shape == (26, HEIGHT, WIDTH)
    moved = {
        (letter, np.roll(drawn[letter], (down, right), (0, 1)).tobytes())
        for letter in range(26)
        for down in (-1, 0, 1)
        for right in (-1, 0, 1)
    }
    assert len({image for _, image in moved}) == len(moved) == 26 * 9


def test_shift_moves_whole_letters() -> None:
    words = ocr_words(40, seed=5, **(CLEAN | {"shift": 1}))
    drawn = np.pad(glyphs().numpy(), ((0, 0), (1, 1), (1, 1)))
    used = set()
    for row, word in enumerate(words.spell()):
        for letter, image in zip(word, ink(word, words, row), strict=True):
            whole = drawn[ALPHABET.index(letter)]
            fits = [(i, j) for i in range(3) for j in range(3) if (whole[i : i + HEIGHT, j : j + WIDTH] == image).all()]
            assert len(fits) == 1
            used.update(fits)
    assert len(used) == 9


def test_dropout_loses_its_share_of_the_ink() -> None:
    clean, worn = ocr_words(800, seed=2, **CLEAN), ocr_words(800, seed=2, **(CLEAN | {"dropout": 0.3}))
    torch.testing.assert_close(clean.labels, worn.labels)
    assert (worn.images <= clean.images).all()
    assert abs(1 - float(worn.images.sum() / clean.images.sum()) - 0.3) < 0.01


def test_blur_spreads_ink_and_noise_changes_every_image() -> None:
    clean = ocr_words(20, seed=2, **CLEAN)
    blurred = ocr_words(20, seed=2, **(CLEAN | {"blur": 1.0}))
    assert ((blurred.images > 0) & (blurred.images < 1)).any()
    assert (blurred.images[clean.labels < 0] == 0).all()
    noisy = ocr_words(20, seed=2, **(CLEAN | {"noise": 0.2}))
    assert (noisy.images != clean.images).any(-1)[clean.labels >= 0].all()


def test_seeds() -> None:
    state = torch.get_rng_state()
    first, again, other = ocr_words(10, seed=7), ocr_words(10, seed=7), ocr_words(10, seed=8)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert first.spell() != other.spell()
    assert torch.equal(state, torch.get_rng_state())


def test_split_shares_no_image() -> None:
    words = ocr_words(300, seed=0)
    train, test = words.split(200)
    assert (len(train.lengths), len(test.lengths)) == (200, 100)
    seen = {image.numpy().tobytes() for image in train.images[train.labels >= 0]}
    assert len(seen) == int(train.lengths.sum())
    assert not seen & {image.numpy().tobytes() for image in test.images[test.labels >= 0]}


def test_take_cuts_padding_and_spell_reads_other_labels() -> None:
    words = ocr_words(3, lexicon=["abc"])
    mixed = Words(words.images, words.labels, torch.tensor([3, 1, 2]))
    taken = mixed.take(torch.tensor([2, 1]))
    assert taken.images.shape == (2, 2, HEIGHT * WIDTH)
    assert taken.spell() == ["ab", "a"]
    assert taken.spell(torch.tensor([[25, 24], [23, -100]])) == ["zy", "x"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "count: expected an integer >= 1, got 0; "),
        ({"lexicon": ["ab", "It's"]}, 'lexicon: expected words over the letters a to z, got "It\'s"; lower-case'),
        ({"lexicon": []}, "lexicon: expected words over the letters a to z, got an empty lexicon"),
        ({"lexicon": [""]}, "lexicon: expected words over the letters a to z, got ''"),
        ({"shift": 9}, "shift: expected an integer from 0 to 8, got 9; "),
        ({"shift": 0.5}, "shift: expected an integer from 0 to 8, got 0.5; "),
        ({"dropout": 1.5}, "dropout: expected a number from 0 to 1, got 1.5; "),
        ({"blur": -0.1}, "blur: expected a number from 0 to 1, got -0.1; "),
        ({"noise": float("nan")}, "noise: expected a number from 0 to 1, got nan; "),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError) as error:
        ocr_words(**({"count": 2} | options))
    assert str(error.value).startswith(message)
