"""Every task: it learns, is saved and loaded whole, predicts with scores and confidences, reads and writes text."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from task_cases import CASES, fast

import structlearn as sl
from structlearn import encoders, saving, tasks
from structlearn.commands.predict import predictions, rendered
from structlearn.data import modules
from structlearn.descriptions import build, describe
from structlearn.errors import ArgumentError, DependencyError, FormatError, StructLearnError
from structlearn.losses import LOSS_NAMES

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def trainer(**options: Any) -> pl.Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    return pl.Trainer(accelerator="cpu", **{**quiet, "enable_checkpointing": False, **options})


@pytest.fixture(scope="module", params=CASES)
def trained(request: pytest.FixtureRequest) -> tuple[str, tasks.Task, modules.TaskData, dict[str, float]]:
    """A case trained for some epochs, and its validation scores before."""
    case = CASES[request.param]
    torch.manual_seed(0)
    data = case.data(examples=60 if "parsing" not in request.param else 40)
    task = case.task(data.codec, optimizer=fast, confidences=True)
    runner = trainer(max_epochs=5, num_sanity_val_steps=0)
    before = runner.validate(task, data, verbose=False)[0]
    runner.fit(task, data)
    return request.param, task.eval(), data, before


def test_scores_get_better(trained: Any) -> None:
    name, task, data, before = trained
    case = CASES[name]
    after = trainer().validate(task, data, verbose=False)[0]
    assert 0 <= after["val/cost"] <= before["val/cost"]
    better = after[f"val/{case.metric}"] - before[f"val/{case.metric}"]
    # The generated lists leave little to gain over the parser's own choice.
    assert (better if case.up else -better) > (-1e-9 if name == "reranking" else 0)


def test_a_saved_folder_predicts_the_same(trained: Any, tmp_path: Path) -> None:
    _, task, data, _ = trained
    folder = sl.save(task, tmp_path / "model")
    assert sorted(p.name.partition("-")[0] for p in folder.iterdir()) == ["codec", "model.yaml", "weights"]
    again = sl.load(folder)
    assert describe(again.codec).keys() == describe(task.codec).keys()
    batch = next(iter(data.test_dataloader()))
    first, second = task.predict_step(batch), again.predict_step(batch)
    assert torch.equal(first.output, second.output)
    assert torch.equal(first.score, second.score)
    assert (first.confidence is None) == isinstance(task, tasks.JointTagging)


def test_confidences_are_probabilities_of_the_output(trained: Any) -> None:
    name, task, data, _ = trained
    batch = next(iter(data.test_dataloader()))
    if isinstance(task, tasks.JointTagging):
        task.confidences = True
        with pytest.raises(ArgumentError, match="a beam knows no probabilities"):
            task.predict_step(batch)
        task.confidences = False
        return
    found = task.predict_step(batch)
    p = found.confidence
    assert p is not None
    assert float(p.min()) >= 0
    assert float(p.max()) <= 1 + 1e-5
    with torch.no_grad():
        structure = task(batch)
        if "search" in name:  # a beam may miss the best
            torch.testing.assert_close(torch.maximum(found.score, structure.max()), structure.max())
        else:
            torch.testing.assert_close(found.score, structure.max())
        # Every output's probability bounds that of its parts from below.
        whole = (found.score - structure.log_partition()).exp()
    if name in ("tagging", "sparse tagging", "letters"):
        real = batch.gold != -100
        least = torch.where(real, p, torch.ones_like(p)).amin(1)
        assert bool((whole <= least + 1e-5).all())
    if name in ("classification", "reranking"):
        torch.testing.assert_close(whole, p)


def test_text_goes_in_and_comes_out(trained: Any) -> None:
    _, task, data, _ = trained
    examples = data.examples("test")[:5]
    found = predictions(task, examples, batch_size=2)
    for form in task.codec.formats:
        lines = list(rendered(task, examples, found, form))
        assert len(lines) == len(examples)
        if form == "jsonl":
            wanted = {"score"} if isinstance(task, tasks.JointTagging) else {"score", "confidence"}
            assert all(wanted <= json.loads(line).keys() for line in lines)
    if isinstance(task, tasks.JointTagging):
        for form in task.codec.formats:
            text = "\n".join(rendered(task, examples, found, form))
            assert len(predictions(task, task.codec.parse(text, form))) == len(examples)
    if isinstance(task, tasks.Tagging) and hasattr(task.codec, "words"):
        text = "".join(line + "\n" for line in rendered(task, examples, found, "conll"))
        parsed = task.codec.parse(text, "conll")
        assert [s.words for s in parsed] == [s.words for s in examples]
    if isinstance(task, tasks.Aligning):
        text = "\n".join(rendered(task, examples, found, "fasta"))
        again = task.codec.parse(text, "fasta")
        assert [(p.x, p.y) for p in again] == [(p.x, p.y) for p in examples]
    if isinstance(task, tasks.Parsing):
        text = "\n".join(rendered(task, examples, found, "brackets"))
        assert [t.leaves() for t in task.codec.parse(text, "brackets")] == [t.leaves() for t in examples]


@pytest.mark.parametrize("loss", LOSS_NAMES)
def test_every_loss_by_name(loss: str) -> None:
    data = modules.TaggingData(examples=8)
    task = tasks.Tagging(data.codec, encoders.WordsAndLetters(8, 0), loss=loss)
    torch.nn.init.normal_(task.feature_map.emission)
    value = task.objective(next(iter(data.train_dataloader())))
    value.backward()
    assert float(value.detach()) > 0
    assert bool((task.feature_map.emission.grad != 0).any())


def test_a_loss_of_no_name_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"loss: expected one of .*hinge-slack"):
        tasks.Tagging(modules.TaggingData(examples=8).codec, encoders.WordsAndLetters(8, 0), loss="hinge")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "encoder",
    [
        encoders.BiLSTM(encoders.WordsAndLetters(8, 4, 4), hidden=16, layers=2),
        encoders.CNN(encoders.WordsAndLetters(8, 4, 4), hidden=16),
        encoders.Transformer(encoders.WordsAndLetters(8, 0), hidden=16, heads=2, layers=1),
    ],
    ids=lambda e: type(e).__name__,
)
def test_encoders_never_read_padding(encoder: encoders.Encoder) -> None:
    data = modules.TaggingData(examples=12)
    task = tasks.Tagging(data.codec, encoder).eval()
    torch.nn.init.normal_(task.feature_map.emission)
    items = data.encoded("train").items
    with torch.no_grad():
        together = task(data.codec.collate(items[:6])).max()
        alone = torch.cat([task(data.codec.collate([item])).max() for item in items[:6]])
    torch.testing.assert_close(together, alone)


def test_valid_only_outputs_keep_to_the_scheme() -> None:
    data = modules.TaggingData(examples=30)
    task = tasks.Tagging(data.codec, encoders.WordsAndLetters(8, 0), valid_only=True).eval()
    torch.nn.init.normal_(task.feature_map.emission, std=3)
    for row in predictions(task, data.examples("test")):
        tags = row["output"]
        for before, tag in zip(["O", *tags], tags, strict=False):
            assert not tag.startswith("I-") or before[1:] == tag[1:]


def test_descriptions_are_plain_and_refuse_strangers() -> None:
    cost = sl.costs.Hamming(normalize=True)
    told = describe(sl.StructuredHinge(cost, rescaling="slack"))
    assert told["class_path"] == "structlearn.StructuredHinge"
    again = build(told)
    assert (again.rescaling, again.cost.normalize) == ("slack", True)
    with pytest.raises(ArgumentError, match="class_path: expected a part of structlearn"):
        build({"class_path": "subprocess.Popen", "init_args": {"args": "ls"}})
    with pytest.raises(ArgumentError, match="functions and classes"):
        describe({"f": len})


def test_a_checkpoint_of_a_newer_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = modules.LetterData(examples=8)
    task = tasks.Tagging(data.codec, encoders.Dense(128))
    with monkeypatch.context() as patch:
        patch.setattr(saving, "__version__", "0.9.0")
        sl.save(task, tmp_path)
    with pytest.raises(FormatError, match="upgrade structlearn"):
        sl.load(tmp_path)


def test_models_of_the_first_format_are_refused_in_words_and_checkpoints_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "__version__", "0.2.0")
    older = Path(__file__).parent / "fixtures" / "version-0.1"
    with pytest.raises(FormatError, match=r"model\.yaml: expected format 2, with sizes and checksums, got None"):
        sl.load(older / "model")
    task = sl.load(older / "checkpoint.ckpt")
    (row,) = predictions(task, task.codec.parse("the dog saw Mary .", "text"))
    assert row["output"] == ["B-NP", "I-NP", "B-VP", "B-NP", "O"]


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(DependencyError, match=r"transformers: expected an installed package.*structlearn\[text\]"):
        encoders.HuggingFace(config={"model_type": "bert", "hidden_size": 8})


def test_constrained_outputs_keep_the_constraint_where_the_mode_says_so() -> None:
    data = modules.TaggingData(examples=30)
    most = {}
    for mode in ("lo", "l+i", "ibt"):
        torch.manual_seed(0)
        task = tasks.Constrained(data.codec, "at_most(1, 'B-NP')", encoders.WordsAndLetters(8, 0), mode=mode)
        with torch.no_grad():
            # Ties go to B-NP at every other word.
            task.feature_map.transition[data.codec.tags.index("O"), data.codec.tags.index("B-NP")] = 1.0
        assert isinstance(task(next(iter(data.train_dataloader()))), sl.LinearChain) == (mode != "ibt")
        most[mode] = max(row["output"].count("B-NP") for row in predictions(task.eval(), data.examples("test")))
    assert most["lo"] > 1
    assert most["l+i"] <= 1
    assert most["ibt"] <= 1


def test_tags_unknown_to_training_are_told() -> None:
    data = modules.TaggingData(examples=8)
    sentence = data.examples("train")[0]
    with pytest.raises(StructLearnError, match="tags: expected tags that training data hold"):
        data.codec.encode([sentence._replace(chunks=["B-XYZ"] * len(sentence.words))])


@pytest.mark.parametrize("mode", ["l+i", "ibt"])
def test_penalties_of_soft_constraints_are_learnt_where_training_sees_them(mode: Any, tmp_path: Path) -> None:
    data = modules.TaggingData(examples=12, batch_size=12)
    task = tasks.Constrained(
        data.codec,
        "soft(at_most(0, 'B-NP'), 2.0)",
        encoders.BiLSTM(encoders.WordsAndLetters(), 16),
        mode=mode,
        optimizer=fast,
    )
    trainer(max_epochs=2, num_sanity_val_steps=0).fit(task, data)
    if mode == "l+i":
        assert task.penalties is None
        return
    assert task.penalties is not None
    # Nearly every gold output breaks it: learning makes that cheaper.
    assert 0 < float(task.penalties[0]) < 2.0
    again = sl.load(sl.save(task, tmp_path / "model"))
    assert torch.equal(again.penalties, task.penalties)
