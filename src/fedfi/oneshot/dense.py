"""DENSE: Zhang et al., DENSE: data-free one-shot federated learning, NeurIPS 2022, arXiv:2112.12371.

| paper | here |
|---|---|
| ensemble D(x): mean of the clients' logits, Eq. 1 | `distilling.mean_logits` |
| L_CE, generated images that the ensemble gives a drawn class, Eq. 2 | cross-entropy in `generating` |
| L_BN, distance from the clients' batch norm statistics, Eq. 3 | `bn_weight` |
| L_div = - omega KL(D(x), f_S(x)), omega = 1 where they disagree, Eqs. 4, 5 | `adversarial_weight` |
| distillation KL(D(x), f_S(x)), Eq. 6; temperature 20 | `distilling.distil`, `temperature` |
| stages: 30 Adam steps for the generator, then distillation on all images made so far | `stages`, `generator_steps` |

Deviations: the student starts from the mean of the models and the best stage on the server's examples is kept, as in
FedFiOT's comparison (without examples: the last stage). Logits are weighted by numbers of examples, as in FedFisher's
comparison; `weights = "uniform"` is the paper's mean. A stage distils for `steps` steps, where the authors' program
makes one pass over the pool. As printed, the generator goes on from stage to stage with a noise of its own each, while
the program starts it anew and trains the noise, too (Adam with first moment 0.5), and crops and flips what it makes.
Generated images are standardised as a client's are, by a last batch norm in place of a sigmoid. Tables get a generator
of linear layers; text has none.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Annotated, final

from pydantic import Field
from pydantic.dataclasses import dataclass as validated

from fedfi.federation.algorithm import CONFIG
from fedfi.federation.warming import OPTIMIZERS
from fedfi.oneshot.distilling import mean_logits
from fedfi.oneshot.generating import Stages, distil_on_generated
from fedfi.oneshot.means import mean
from fedfi.oneshot.method import Context, OneShot
from fedfi.oneshot.uploads import Merged, Upload, shares


@final
@validated(frozen=True, kw_only=True, config=CONFIG)
class DENSE(OneShot):
    """The clients' ensemble distilled into one model, on inputs from a generator."""

    stages: Annotated[int, Field(ge=1, description="stages of generation and distillation")] = 20
    noise: Annotated[int, Field(ge=1, description="length of the generator's noise")] = 256
    batch: Annotated[int, Field(ge=2, description="inputs made a stage, and a distillation batch")] = 256
    generator_steps: Annotated[int, Field(ge=1, description="Adam steps of the generator a stage")] = 30
    generator_rate: Annotated[float, Field(gt=0, description="learning rate of the generator")] = 1e-3
    bn_weight: Annotated[float, Field(ge=0, description="weight of the batch norm loss")] = 1.0
    adversarial_weight: Annotated[float, Field(ge=0, description="weight of the disagreement loss")] = 1.0
    steps: Annotated[int, Field(ge=1, description="distillation steps a stage")] = 200
    learning_rate: Annotated[float, Field(gt=0, description="learning rate of distillation (SGD, momentum 0.9)")] = 0.01
    temperature: Annotated[float, Field(gt=0, description="temperature of distillation")] = 20.0

    def needs(self) -> tuple[str, ...]:
        """Nothing but models."""
        return ()

    def loads(self) -> tuple[str, ...]:
        """What torch's optimizers need."""
        return (OPTIMIZERS,)

    def merge(self, uploads: Sequence[Upload], context: Context) -> Merged:
        """Distils from the mean."""
        server, party = context.server, shares(uploads, self.weights)
        start = mean([u.model for u in uploads], party)
        networks = [copy.deepcopy(server.loaded(u.model)).requires_grad_(False) for u in uploads]
        recipe = Stages(
            stages=self.stages,
            noise=self.noise,
            batch=self.batch,
            generator_steps=self.generator_steps,
            generator_rate=self.generator_rate,
            bn_weight=self.bn_weight,
            adversarial_weight=self.adversarial_weight,
            steps=self.steps,
            learning_rate=self.learning_rate,
            temperature=self.temperature,
        )
        model, stage = distil_on_generated(server, start, networks, mean_logits(networks, party), recipe, context.rng)
        return Merged(model, {"merge/stage": float(stage)})
