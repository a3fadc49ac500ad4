"""Images as a method sees them: random tower states, a projector that is not linear, a question."""

import math
from dataclasses import replace

import torch

from vlprune.types import Query, TokenView

WIDTH = 24  # of the tower; above every n in the tests against references, so that kernels have full rank


def matrix(seed, rows, columns):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) / columns**0.5


PROJECTOR, KEYS, CLIP = matrix(1, 26, WIDTH), matrix(2, 5, WIDTH), matrix(3, 7, WIDTH)


def project(states):
    return torch.tanh(states.float() @ PROJECTOR.T.to(states.device)).to(states.dtype)


def project_one(state):
    """`project` of one state, a list of floats, in float64."""
    return [math.tanh(sum(w * x for w, x in zip(row, state))) for row in PROJECTOR.double().tolist()]


def draw(seed, B, n, *, grid=None, cls=True, dtype=torch.float32, copies=0, zeros=0, sign=-1):
    """A view and a query of B images; the last `copies` tokens repeat the first ones, the next to the last are zero."""
    g = torch.Generator().manual_seed(seed)
    tower = torch.randn(B, n, WIDTH, generator=g)
    attention = torch.randn(B, n, generator=g).mul(2).softmax(1)
    tower[:, n - copies :], attention[:, n - copies :] = tower[:, :copies].clone(), attention[:, :copies].clone()
    tower[:, n - copies - zeros : n - copies] = 0.0
    tower = tower.to(dtype)
    view = TokenView(
        features=project(tower),
        grid=grid or (1, n),
        tower=tower,
        attention=attention,
        keys=(tower.float() @ KEYS.T).to(dtype),
        cls=torch.randn(B, WIDTH, generator=g).to(dtype) if cls else None,
        project=project,
    )
    text = 3 * torch.randn(B, 1, 7, generator=g)
    return view, Query((tower.float() @ CLIP.T).to(dtype), text.to(dtype), sign, "clip", ("what?",) * B)


def each(record, change):
    """A copy of a view or query with every tensor changed."""
    tensors = {name: value for name, value in vars(record).items() if isinstance(value, torch.Tensor)}
    return replace(record, **{name: change(value) for name, value in tensors.items()})


def one(view, query, b):
    """Image b alone."""
    alone = each(query, lambda tensor: tensor[b : b + 1])
    return each(view, lambda tensor: tensor[b : b + 1]), replace(alone, texts=query.texts[b : b + 1])


def floats(tensor):
    return tensor.double().tolist()
