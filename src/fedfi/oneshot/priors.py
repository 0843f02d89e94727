"""Taking a client's class frequencies off its logits, so that heads of clients with other classes can be averaged.

A classifier that was trained on classes of frequencies p(c) says log p(x | c) + log p(c); on a server that knows no
reason for one class rather than another the second term is in the way (Menon et al., Long-tail learning via logit
adjustment, ICLR 2021, arXiv:2007.07314). Each class's bias is moved by - strength log p(c), with p(c) = (n_c + 1) /
(n + C). A head without biases gets it by its weights: by the combination v of the features that is nearest to 1 on the
server's inputs (ridge regression), w_c <- w_c - strength log p(c) v.

Of a class without an example in any upload nothing is known but that it was never seen: it is not raised against any
other, so it moves with the class that is lowered most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedfi.channels import Member
from fedfi.errors import InputError
from fedfi.numerics.tape import listen
from fedfi.oneshot.server import Server
from fedfi.oneshot.uploads import Upload

_RIDGE = 1e-3
_BIASES = "class_prior on a head without biases needs"


def corrected(uploads: Sequence[Upload], server: Server, strength: float) -> list[Upload]:
    """Uploads whose logits are without their class frequencies.

    Args:
        uploads: With the statistic `classes`.
        server: The network and, for heads without biases, inputs.
        strength: 1 takes all of it off.

    Raises:
        InputError: If the logits are not made by one layer, or its features are needed and there are no inputs.
    """
    weight, bias = _head(server)
    seen = torch.stack([upload.measured("classes")["counts"] for upload in uploads]).sum(0) > 0
    found = []
    for upload in uploads:
        counts = upload.measured("classes")["counts"].double()
        shift = -strength * ((counts + 1) / (counts.sum() + len(counts))).log()
        if not bool(seen.all()) and bool(seen.any()):
            shift[~seen] = shift[seen].min()
        shift = shift - shift.mean()  # the same for all classes says nothing
        model = dict(upload.model)
        if bias is not None:
            moved = model[bias.name].double()
            moved[bias.positions[:, 0]] += shift
            model[bias.name] = moved.to(model[bias.name].dtype)
        else:
            moved = model[weight.name].double()
            moved[weight.positions[:, 0]] += shift[:, None] * _one(server, model, weight.name.rpartition(".")[0])
            model[weight.name] = moved.to(model[weight.name].dtype)
        found.append(upload.with_model(model))
    return found


def check_head(server: Server) -> None:
    """Checks that the logits are made by one layer, whose biases or whose inputs are there.

    Raises:
        InputError: If not.
    """
    _, bias = _head(server)
    if bias is None and server.examples is None:
        raise server.without_examples(_BIASES)


def _head(server: Server) -> tuple[Member, Member | None]:
    """The axes of the weight and the bias of the linear layer that makes the logits."""
    made = server.wiring.outputs
    weights = [m for m in made if len(server.wiring.shapes[m.name]) > 1]
    biases = [m for m in made if len(server.wiring.shapes[m.name]) == 1]
    layers = {m.name.rpartition(".")[0] for m in made}
    layer = server.bench.module.get_submodule(next(iter(layers))) if len(layers) == 1 else None
    if len(weights) != 1 or len(biases) > 1 or not isinstance(layer, nn.Linear):
        raise InputError("class_prior moves the logits of one linear layer, but this network's are made in another way")
    return weights[0], biases[0] if biases else None


def _one(server: Server, model: Mapping[str, Tensor], head: str) -> Tensor:
    """The combination `[features]` of what the head is fed that is nearest to 1 on the server's inputs."""
    inputs, seen = server.inputs(), list[Tensor]()
    if not inputs:
        raise server.without_examples(_BIASES)
    module = server.loaded(model)
    hook = module.get_submodule(head).register_forward_pre_hook(
        lambda _, given: seen.append(given[0].detach().flatten(0, -2).double())
    )
    listen(module, [hook], inputs)
    features = torch.cat(seen)
    gram = features.T @ features
    ridge = _RIDGE * gram.diagonal().mean().clamp(min=torch.finfo(torch.float64).tiny)
    found: Tensor = torch.linalg.solve(gram + ridge * torch.eye(len(gram), dtype=gram.dtype), features.sum(0))
    return found
