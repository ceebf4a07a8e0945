"""The demo: chain models beat the independent classifier, the command runs, the picture says what it should."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import structlearn as sl
from structlearn import cli, demo, viz
from structlearn.data.ocr import ocr_words
from structlearn.errors import ArgumentError, DependencyError


def test_chains_beat_the_independent_classifier(capsys: pytest.CaptureFixture[str]) -> None:
    results = demo.run(train=1500, test=500, epochs=4, picture=None)
    errors = {result.name: result.test_errors[-1] for result in results}
    independent = errors.pop("independent classifier")
    assert list(errors) == ["CRF", "structured hinge, margin", "structured hinge, slack"]
    assert 0.15 < independent < 0.4
    assert all(error < 0.75 * independent for error in errors.values())
    assert all(len(result.test_errors) == len(result.train_errors) == 4 for result in results)
    printed = capsys.readouterr().out
    for result in results:
        assert (
            sum(result.name in line and f"{result.test_errors[-1]:.1%}" in line for line in printed.splitlines()) == 2
        )


def test_independent_classifier_is_a_softmax_for_each_letter() -> None:
    words = ocr_words(20)
    make_loss, eta = demo.METHODS["independent classifier"]
    model = sl.features.ChainMap(128, 26, eta=eta)
    torch.nn.init.normal_(model.emission, std=0.2)
    torch.nn.init.normal_(model.transition)
    scores = words.images @ model.emission.T
    expected = torch.nn.functional.cross_entropy(scores.flatten(0, 1), words.labels.flatten(), reduction="sum") / 20
    torch.testing.assert_close(make_loss()(model(words.images, words.lengths), words.labels), expected)
    assert torch.equal(demo.predict(model, words), scores.argmax(-1).masked_fill(words.labels < 0, -100))


def test_letter_error_counts_letters_not_padding() -> None:
    words = ocr_words(2, lexicon=["ab", "c"], seed=1)
    model = sl.features.ChainMap(128, 26)
    with torch.no_grad():
        model.transition[:, 0] = 1.0  # after any letter comes "a", and on ties so does the first
    wrong = sum(letter != "a" for word in words.spell() for letter in word)
    assert demo.letter_error(model, words) == pytest.approx(wrong / int(words.lengths.sum()))


def test_the_same_seed_gives_the_same_errors() -> None:
    first, again = (demo.run(train=120, test=40, epochs=1, seed=4, picture=None) for _ in range(2))
    assert [r.test_errors for r in first] == [r.test_errors for r in again]


def test_command_writes_one_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "demo.png"
    threads = torch.get_num_threads()
    try:
        status = cli.main(["demo", "--train", "80", "--test", "20", "--epochs", "1", "--picture", str(picture)])
    finally:
        torch.set_num_threads(threads)
    assert status == 0
    assert list(tmp_path.iterdir()) == [picture]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert str(picture) in capsys.readouterr().out


def test_picture_holds_curves_matrix_and_words() -> None:
    words = ocr_words(30, seed=2)
    models = [sl.features.ChainMap(128, 26) for _ in demo.METHODS]
    results = [demo.Result(name, model, [0.5], [0.25]) for name, model in zip(demo.METHODS, models, strict=True)]
    figure = viz.figure(14, 11)
    demo.draw(figure, results, words)
    figure.canvas.draw()
    axes = figure.get_axes()
    assert [line.get_label() for line in axes[0].get_lines()] == [f"{name}: 25.0%" for name in demo.METHODS]
    assert axes[1].get_images()[0].get_array().shape == (26, 26)
    assert [text.get_text() for text in axes[1].get_xticklabels()] == list(demo.ALPHABET)
    strips = [ax for ax in axes if ax.texts]
    assert len(strips) == 8
    for ax in strips:
        rows: dict[float, str] = {}
        for text in ax.texts:
            if len(text.get_text()) == 1:
                rows[text.get_position()[1]] = rows.get(text.get_position()[1], "") + text.get_text()
        truth, *predicted = rows.values()
        assert truth in words.spell()
        assert predicted == ["a" * len(truth)] * 4  # models of zeros: every tie goes to the lowest label
        boxed = sum(text.get_bbox_patch() is not None for text in ax.texts)
        assert boxed == 4 * sum(letter != "a" for letter in truth)


def test_few_test_words_are_enough_for_a_picture() -> None:
    words = ocr_words(1, lexicon=["ab"])
    results = [demo.Result(name, sl.features.ChainMap(128, 26), [1.0], [1.0]) for name in demo.METHODS]
    figure = viz.figure(14, 11)
    demo.draw(figure, results, words)
    assert sum(bool(ax.texts) for ax in figure.get_axes()) == 1


def test_a_missing_folder_is_told_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "none" / "demo.png"
    with pytest.raises(ArgumentError, match="picture: expected a file in a folder that exists"):
        demo.run(picture=picture)
    assert cli.main(["demo", "--picture", str(picture)]) == 2
    assert capsys.readouterr().err.startswith("structlearn demo: picture: expected a file in a folder that exists")


def test_missing_matplotlib_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(DependencyError, match=r"matplotlib: expected an installed package.*structlearn\[viz\]"):
        viz.figure(1, 1)


@pytest.mark.parametrize("arguments", [[], ["demo", "--epochs", "0"], ["demo", "--train", "many"], ["dance"]])
def test_wrong_arguments_exit_with_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    assert exit_.value.code == 2
    assert "usage: structlearn" in capsys.readouterr().err


def test_help_lists_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["--help"])
    assert exit_.value.code == 0
    assert "train four models of generated words" in capsys.readouterr().out
