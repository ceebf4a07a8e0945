"""Inside sums of a dense grammar as a plain torch loop in scaled probability space; autograd does the rest."""

import torch
from torch import Tensor


def dense_loop(terms: Tensor, rules: Tensor, roots: Tensor) -> Tensor:
    """log Z (B,) for terms (B,N,P), rules (NT,S,S), roots (NT,).

    Spans of one width are done together: the sum over cuts is one bmm (B * starts, NT, cuts) by (.., cuts, NT), the
    rules one product with a (NT NT, NT) matrix. A cell is a vector of largest entry 1 and a logarithm.
    """
    b, n, p = terms.shape
    nt = roots.shape[0]
    top = rules.detach().amax()
    weight = (rules - top).exp()  # [A, l, r]
    both = weight[:, :nt, :nt].reshape(nt, -1).T
    left_word, right_word, words = weight[:, nt:, :nt], weight[:, :nt, nt:], weight[:, nt:, nt:].reshape(nt, -1).T
    scale = terms.detach().amax(-1)
    word = (terms - scale[..., None]).exp()
    left_matrix = torch.einsum("bit,atr->bira", word, left_word)
    right_matrix = torch.einsum("bit,alt->bila", word, right_word)
    # by_width[w]: cells (B, starts, NT) and their logarithms (B, starts), of spans of w + 2 words.
    cells: list[Tensor] = []
    logs: list[Tensor] = []
    for w in range(2, n + 1):
        starts = n - w + 1
        if w == 2:
            pairs = (word[:, :-1, :, None] * word[:, 1:, None, :]).reshape(b, starts, p * p)
            made, log = pairs @ words, scale[:, :-1] + scale[:, 1:]
        else:
            before, before_log = cells[w - 3], logs[w - 3]
            sums = [scale[:, :starts] + before_log[:, 1:], before_log[:, :-1] + scale[:, w - 1 :]]
            cuts = range(2, w - 1)
            sums += [logs[u - 2][:, :starts] + logs[w - u - 2][:, u : u + starts] for u in cuts]
            log = torch.stack(sums).amax(0)
            made = (before[:, 1:, None] @ left_matrix[:, :starts])[:, :, 0] * (sums[0] - log).exp()[..., None]
            right = (before[:, :-1, None] @ right_matrix[:, w - 1 :])[:, :, 0]
            made = made + right * (sums[1] - log).exp()[..., None]
            if w >= 4:
                left = torch.stack([cells[u - 2][:, :starts] for u in cuts], 2)
                right = torch.stack([cells[w - u - 2][:, u : u + starts] for u in cuts], 2)
                left = left * (torch.stack(sums[2:], -1) - log[..., None]).exp()[..., None]
                made = made + (left.mT @ right).reshape(b, starts, nt * nt) @ both
        high = made.detach().amax(-1)
        cells.append(made / high[..., None])
        logs.append(log + top + high.log())
    return logs[-1][:, 0] + (cells[-1][:, 0] * roots.exp()).sum(-1).log()
