"""FedDAE: Li, Long, Zhou, Jiang and Zhang, Personalized Federated Collaborative Filtering: A Variational AutoEncoder
Approach, AAAI 2025, arXiv:2408.08931.

| paper | here |
|---|---|
| q_g, the encoder that all share; p, the decoder | packet `encoder`, `encoder_bias`; `items`, `bias` |
| q_i, a user's own encoder | memory `own`, `own_bias` |
| gate: weights of the two encoders from the user's items | memory `gate`, `gate_bias`, `mix`, `mix_bias` |
| z = w_1 z_own + w_2 z_shared, with noise in training | `encode` |
| multinomial likelihood, and beta times the divergence from N(0, I) | `kl` |

A user's input is its row of training items, so there are no drawn negatives: all other items are pushed down alike, and
nothing tells which of them are held out.

Deviations: encoders and decoder are linear (the code's `num_layers = 1`), and the gate has no dropout. The server takes
the mean of what users trained, where the code has an Adam of its own on their summed gradients. The likelihood is a
mean over a user's items, not a sum, so that one step size suits all users. beta is constant; in the code it is 1 in the
first round and 0 from then on, by a product that never recovers, hence the default 0. Users are trained one at a time
(`--workers` are processes), since every step touches every item.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, final

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as validated
from torch import Tensor
from torch.nn import functional

from fedfi.federation.algorithm import CONFIG, ClientId, Metrics, Reply
from fedfi.federation.client import Client
from fedfi.federation.cohort import Cohort
from fedfi.federation.folding import WeightedMean
from fedfi.federation.packet import Layout, Packet, Tree
from fedfi.federation.rng import keyed_generator
from fedfi.federation.task import Task
from fedfi.federation.warming import OPTIMIZERS
from fedfi.recsys.recipe import check_training, fresh_items, own_ratings, ratings_of
from fedfi.recsys.recommender import TABLES_NOT_PRIVATE, Recommender
from fedfi.recsys.single import clip_factor


@dataclass(frozen=True)
class FedDAEState:
    """The shared encoder and decoder."""

    shared: Tree


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class FedDAE(Recommender[FedDAEState]):
    """An autoencoder of a user's items with a shared and a private encoder, weighed by a private gate."""

    dropout: Annotated[float, Field(ge=0, lt=1, description="share of a user's items hidden from the encoders")] = 0.5
    kl: Annotated[float, Field(ge=0, description="beta, weight of the divergence from the prior")] = 0.0

    linear: ClassVar[bool] = True
    weights: ClassVar[Literal["uniform"]] = "uniform"
    refused: ClassVar[Mapping[str, str]] = TABLES_NOT_PRIVATE

    def loads(self) -> tuple[str, ...]:
        """What torch's optimizers need."""
        return (OPTIMIZERS,)

    def init(self, task: Task, rng: torch.Generator) -> FedDAEState:
        """A fresh shared encoder and decoder."""
        t = task.training
        check_training(t, "feddae takes constant steps of sgd or adam", ("sgd", "adam"), decay=False)
        items = fresh_items(task, rng)
        count, dimension = items.shape
        bound = count**-0.5
        encoder = torch.empty(count, 2 * dimension).uniform_(-bound, bound, generator=rng)
        shared = {"items": items * dimension**-0.5, "bias": torch.zeros(count)}
        return FedDAEState(shared | {"encoder": encoder, "encoder_bias": torch.zeros(2 * dimension)})

    def configure(
        self, state: FedDAEState, round: int, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Sends what is shared."""
        packet = Packet(state.shared)
        return ((client, packet) for client in self.sample(clients, rng))

    def reply_layout(self, state: FedDAEState, packet: Packet) -> Layout:
        """What is shared, trained."""
        return Layout.like(state.shared, loss=float)

    def client_update(self, packet: Packet, client: Client) -> Packet:
        """Trains encoders, gate and decoder on the user's row."""
        training, items = client.task.training, torch.from_numpy(own_ratings(client).train)
        own = {n: client.memory.get(n, t) for n, t in _fresh(packet.tensors, client.seed).items()}
        tree = {n: t.clone().requires_grad_() for n, t in {**packet.tensors, **own}.items()}
        rate = training.learning_rate * training.round_decay**client.round
        kind = torch.optim.Adam if training.optimizer == "adam" else torch.optim.SGD
        optimizer, rng, total = kind(list(tree.values()), lr=rate), client.rng("autoencoder"), 0.0
        epochs = training.epochs or 1
        for _ in range(epochs):
            loss = self._loss(tree, items, rng)
            gradients = torch.autograd.grad(loss, list(tree.values()))
            norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
            for tensor, gradient in zip(tree.values(), gradients, strict=True):
                tensor.grad = gradient * clip_factor(norm, training.clip_norm)
            optimizer.step()
            total += loss.item()
        for name in own:
            client.memory[name] = tree[name]
        return Packet({n: tree[n].detach() for n in packet.tensors}, {"loss": total / epochs})

    def _loss(self, tree: Tree, items: Tensor, rng: torch.Generator) -> Tensor:
        kept = torch.rand(2, len(items), generator=rng) >= self.dropout
        mean, log_variance, weights = encode(tree, items, kept / (1.0 - self.dropout))
        noise = torch.randn(mean.shape, generator=rng) * (0.5 * log_variance).exp()
        latent = (weights[:, None] * (mean + noise)).sum(0)
        logits = tree["items"] @ latent + tree["bias"]
        loss = -functional.log_softmax(logits, 0)[items].mean()
        if self.kl:
            mixed, variance = (weights[:, None] * mean).sum(0), (weights[:, None] ** 2 * log_variance.exp()).sum(0)
            loss = loss - self.kl * 0.5 * (1 + variance.log() - mixed.square() - variance).sum()
        return loss

    def aggregate(
        self, state: FedDAEState, round: int, replies: Iterator[Reply], rng: torch.Generator
    ) -> tuple[FedDAEState, Metrics]:
        """The plain mean of what is shared."""
        mean, loss, count = WeightedMean(), 0.0, 0
        for reply in replies:
            mean.add(reply.packet.tensors)
            loss, count = loss + float(reply.packet.scalars["loss"]), count + 1
        return FedDAEState(mean.mean()), {"train/loss": loss / count}

    def global_model(self, state: FedDAEState) -> Tree:
        """The shared encoder and decoder."""
        return state.shared

    def configure_evaluation(
        self, state: FedDAEState, clients: Sequence[ClientId], rng: torch.Generator
    ) -> Iterable[tuple[ClientId, Packet]]:
        """Sends what is shared."""
        packet = Packet(state.shared)
        return ((client, packet) for client in clients)

    def client_scores(self, packet: Packet, client: Client) -> Tensor:
        """Logits of the decoder, without noise."""
        own = {n: client.memory.get(n, t) for n, t in _fresh(packet.tensors, client.seed).items()}
        return _scores({**packet.tensors, **own}, torch.from_numpy(own_ratings(client).train))

    def cohort_scores(self, cohort: Cohort) -> Tensor:
        """The same for many clients, one after the other."""
        shared, data = cohort.packets[0].tensors, ratings_of(cohort.task)
        fresh, has = _fresh(shared, cohort.seed), cohort.has("own").tolist()
        columns = {n: cohort.memory.column(n) for n in fresh}
        found = []
        for row, known in zip(cohort.rows.tolist(), has, strict=True):
            own = {n: c[row] for n, c in columns.items() if c is not None} if known else fresh
            found.append(_scores({**shared, **own}, torch.from_numpy(data.train[row])))
        return torch.stack(found)


def encode(tree: Tree, items: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Means and logarithms of variances of the own and the shared encoder, each ``[2, d]``, and their weights ``[2]``.

    Args:
        tree: All parameters.
        items: The user's items ``[k]``.
        kept: What each item counts for each of the encoders ``[2, k]``, 1 without dropout.
    """
    rows = kept * len(items) ** -0.5  # the user's row, normalised
    pairs = (("own", "own_bias"), ("encoder", "encoder_bias"))
    both = torch.stack([r @ tree[weight][items] + tree[bias] for r, (weight, bias) in zip(rows, pairs, strict=True)])
    mean, log_variance = both.chunk(2, 1)
    hidden = (tree["gate"][items].sum(0) + tree["gate_bias"]).relu()
    return mean, log_variance, (tree["mix"] @ hidden + tree["mix_bias"]).softmax(0)


def _scores(tree: Tree, items: Tensor) -> Tensor:
    mean, _, weights = encode(tree, items, torch.ones(2, len(items)))
    return tree["items"] @ (weights[:, None] * mean).sum(0) + tree["bias"]


def _fresh(shared: Mapping[str, Tensor], seed: int) -> Tree:
    """The private parameters that all users begin with."""
    rng = keyed_generator(seed, "private")
    count, dimension = shared["items"].shape
    return {
        "own": torch.empty(count, 2 * dimension).uniform_(-(count**-0.5), count**-0.5, generator=rng),
        "own_bias": torch.zeros(2 * dimension),
        "gate": torch.empty(count, dimension).uniform_(-(count**-0.5), count**-0.5, generator=rng),
        "gate_bias": torch.zeros(dimension),
        "mix": torch.empty(2, dimension).uniform_(-(dimension**-0.5), dimension**-0.5, generator=rng),
        "mix_bias": torch.zeros(2),
    }
