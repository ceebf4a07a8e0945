"""results/tasks.md from results/tasks.json."""

from collections.abc import Iterator
from typing import Any

_HEAD = """# Tasks on real corpora

`python -m benchmarks.tasks`; seconds are of the process, on {threads} thread. Settings were chosen on training data
held out. Bars that are missed say so.
"""


def page(found: dict[str, Any]) -> str:
    """The page of all measurements that there are."""
    threads = next(iter(found.values()))["threads"]
    rows = "\n".join(f"| {name} | {value} | {bar} | {kept} |" for name, value, bar, kept in _rows(found))
    return f"{_HEAD.format(threads=threads)}\n| what | measured | bar | kept |\n|---|---|---|---|\n{rows}\n"


def _rows(found: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    def said(kept: bool) -> str:
        return "yes" if kept else "**no**"

    if s := found.get("sparse"):
        name = "CoNLL-2000, linear tagger"
        yield f"{name}, F on test", f"{s['f1']:.2f}", "≥ 93.6", said(s["f1"] >= 93.6)
        ours, theirs = s["train_seconds"], s["crfsuite_seconds"]
        text = f"{ours:.1f} s (features {s['features_seconds']:.1f} s more)"
        bar = f"CRFsuite l2sgd, c2=1, 30 passes, same run: {theirs:.1f} s (F {s['crfsuite_f1']:.2f})"
        yield f"{name}, training", text, bar, said(ours <= theirs)
        if e := found.get("crfsuite to its end"):
            bar = f"CRFsuite l2sgd by its defaults: {e['crfsuite_seconds']:.0f} s (F {e['crfsuite_f1']:.2f})"
            yield f"{name}, training", text, bar, said(ours <= e["crfsuite_seconds"])
        for kind, least in (("features", 100_000), ("text", 30_000)):
            speed = s[f"{kind}_tokens_per_second"]
            yield f"{name}, tokens/s from {kind}", f"{speed:,.0f}", f"≥ {least:,}", said(speed >= least)
    for loss in ("crf", "hinge-margin", "hinge-slack"):
        if b := found.get(f"bilstm {loss}"):
            kept = b["f1"] >= 93.0 and b["train_seconds"] <= 1800
            text = f"{b['f1']:.2f}, {b['epochs']} epochs, {b['train_seconds']:.0f} s"
            bar = "≥ 93.0 in 1,800 core-seconds"
            yield f"CoNLL-2000, BiLSTM words and letters, {loss}: F on test", text, bar, said(kept)
    if b := found.get("held out"):
        text = f"{b['f1']:.2f}, {b['epochs']} epochs, {b['train_seconds']:.0f} s"
        yield "the same, crf, on every tenth training sentence, held out", text, "", ""
    for kind, most in (("linear", 0.215), ("neural", 0.10)):
        if e := found.get(f"letters {kind}"):
            text = f"{e['error']:.4f} (held out {e['held_out_error']:.4f}), {e['train_seconds']:.0f} s"
            yield f"OCR letters, train fold 0, {kind}: letter error", text, f"≤ {most}", said(e["error"] <= most)
    if s := found.get("share"):
        for loss in ("crf", "hinge-margin", "hinge-slack"):
            yield f"share of the loss in a step, BiLSTM 256, {loss}", f"{s[loss]:.1%}", "≤ 20 %", said(s[loss] <= 0.2)
    if s := found.get("start"):
        for name in ("--help", "doctor"):
            text = f"{s[name]['cpu']:.2f} s of CPU, {s[name]['wall']:.2f} s of wall"
            yield f"`structlearn {name}`", text, "≤ 2 s of CPU", said(s[name]["cpu"] <= 2)
