"""What the exact SVM on chains is compared with: HMM, CRF, kernel perceptron.

Each takes tokens, training sentences and the Gram matrix, and gives a function from sentences to their chains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from structlearn.experiments.tokens import Tokens
from structlearn.losses import CRFLoss
from structlearn.structures import LinearChain

Chains = Callable[[Sequence[int]], list[LinearChain]]
EPOCHS = 10


def hmm(data: Tokens, train: Sequence[int], gram: Tensor | None = None) -> Chains:
    """log P(y_t | y_{t-1}) + log P(word | y_t) by Laplace's estimates; unseen words are one more word."""
    C = len(data.names)
    steps, start, end = torch.ones(C, C), torch.ones(C), torch.ones(C)
    seen: Counter[tuple[str, int]] = Counter()
    for i in train:
        y = data.labels[i]
        start[y[0]] += 1
        end[y[-1]] += 1
        steps.index_put_((y[:-1], y[1:]), torch.ones(len(y) - 1), accumulate=True)
        seen.update(zip(data.words[i], y.tolist(), strict=True))
    column = {word: j for j, word in enumerate({word for word, _ in seen})}
    words = torch.ones(C, len(column) + 1)
    for (word, label), count in seen.items():
        words[label, column[word]] += count
    leaving = torch.cat([steps, end[:, None]], 1)
    leaving = (leaving / leaving.sum(1, keepdim=True)).log()
    emission = (words / words.sum(1, keepdim=True)).log()

    def chains(test: Sequence[int]) -> list[LinearChain]:
        found = []
        for i in test:
            unary = emission[:, [column.get(word, len(column)) for word in data.words[i]]].T[None]
            first = (start / start.sum()).log()
            found.append(LinearChain(unary, leaving[:, :C], start=first, end=leaving[:, C]))
        return found

    return chains


def crf(data: Tokens, train: Sequence[int], gram: Tensor | None = None, *, l2: float = 1.0) -> Chains:
    """min sum -log P(y | x) + l2/2 |w|^2 over the same features, by L-BFGS."""
    C = len(data.names)
    x = _torch_sparse(data.features)
    known = torch.cat([data.numbers(i) for i in train])
    taught = _torch_sparse(data.features[known.numpy()])
    W = torch.zeros(data.features.shape[1], C, requires_grad=True)
    A = torch.zeros(C, C, requires_grad=True)
    lengths = torch.tensor([len(data.labels[i]) for i in train])
    gold = torch.nn.utils.rnn.pad_sequence([data.labels[i] for i in train], batch_first=True, padding_value=-100)
    place = torch.nn.utils.rnn.pad_sequence(torch.arange(len(known)).split(lengths.tolist()), batch_first=True)
    loss = CRFLoss(reduction="sum")
    optimizer = torch.optim.LBFGS([W, A], max_iter=80, history_size=10, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        unary = torch.sparse.mm(taught, W)[place]
        value = loss(LinearChain(unary, A, lengths=lengths), gold) + 0.5 * l2 * (W.square().sum() + A.square().sum())
        value.backward()
        return value

    optimizer.step(closure)
    with torch.no_grad():
        unary = torch.sparse.mm(x, W)
    return lambda test: [LinearChain(unary[data.numbers(i)][None], A.detach()) for i in test]


def perceptron(
    data: Tokens, train: Sequence[int], gram: Tensor, *, epochs: int = EPOCHS, averaged: bool = True
) -> Chains:
    """Perceptron in the dual: beta[token, label] counts mistakes, unary scores are K beta.

    ``averaged``: beta and transitions are their means over all steps, else those of the last.
    """
    C = len(data.names)
    known = torch.cat([data.numbers(i) for i in train])
    K = gram[known][:, known]
    starts = torch.tensor([0, *[len(data.labels[i]) for i in train]]).cumsum(0).tolist()
    beta, beta_sum = torch.zeros(len(known), C), torch.zeros(len(known), C)
    A, A_sum = torch.zeros(C, C), torch.zeros(C, C)
    draw = torch.Generator().manual_seed(0)
    total = epochs * len(train)
    scores = torch.zeros(len(known), C)
    step = 0
    for _ in range(epochs):
        for j in torch.randperm(len(train), generator=draw).tolist():
            gold = data.labels[train[j]]
            here = torch.arange(starts[j], starts[j + 1])
            y = LinearChain(scores[here][None], A).argmax()[0]
            # Averaging: a change at this step stays for the rest.
            left = total - step
            step += 1
            wrong = (y != gold).nonzero().flatten()
            if len(wrong) == 0:
                continue
            change = torch.zeros(len(wrong), C)
            change.scatter_(1, gold[wrong, None], 1.0).scatter_add_(
                1, y[wrong, None], torch.full((len(wrong), 1), -1.0)
            )
            beta[here[wrong]] += change
            beta_sum[here[wrong]] += left * change
            scores += K[here[wrong]].T @ change
            one = torch.ones(len(gold) - 1)
            move = torch.zeros(C, C).index_put_((gold[:-1], gold[1:]), one, accumulate=True)
            move.index_put_((y[:-1], y[1:]), -one, accumulate=True)
            A += move
            A_sum += left * move
    if averaged:
        beta, A = beta_sum, A_sum
    used = (beta != 0).any(1)
    return lambda test: [LinearChain((gram[data.numbers(i)][:, known[used]] @ beta[used])[None], A) for i in test]


def _torch_sparse(features: object) -> Tensor:
    found = features.tocoo()  # type: ignore[attr-defined]
    index = torch.stack([torch.from_numpy(found.row).long(), torch.from_numpy(found.col).long()])
    return torch.sparse_coo_tensor(index, torch.from_numpy(found.data), found.shape, check_invariants=True).coalesce()
