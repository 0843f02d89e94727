"""FedRKG: guidance, gate, schedule, storage, traffic, privacy."""

from __future__ import annotations

import math

import pytest
import torch
from tests.recsys import small

from fedfi.engines.local import LocalEngine
from fedfi.errors import InputError
from fedfi.experiment import from_dict
from fedfi.federation.evaluation import Evaluate
from fedfi.federation.run import run
from fedfi.recsys.fedrkg import FedRKG
from fedfi.recsys.gate import gate_values, guided
from fedfi.recsys.privacy import Release, epsilon


def memory_after(algorithm, rounds, make=small.task):
    task = make()
    engine = LocalEngine(algorithm, task)
    result = run(algorithm, task, rounds=rounds, engine=engine)
    return result, engine.memory()["columns"]


def test_guidance_is_the_regularised_target():
    """With lambda = 3, beta = 1/4: (q + 3 Q) / 4 without a gate; with a gate g the anchor is 2 g Q."""
    q, anchor = torch.tensor([[4.0, 0.0]]), torch.tensor([[0.0, 8.0]])
    beta = FedRKG(strength=3.0).own_weight
    assert beta == 0.25
    assert guided(q, anchor, beta, None).tolist() == [[1.0, 6.0]]
    neutral = torch.zeros(7)
    assert guided(q, anchor, beta, neutral).tolist() == [[1.0, 6.0]]
    closed = torch.tensor([0.0] * 6 + [-1e9])  # g = 0
    assert guided(q, anchor, beta, closed).tolist() == [[1.0, 0.0]]


def test_a_gate_sees_own_anchor_and_their_difference():
    """a . [q, Q, q - Q] + b with a = (1..6), b = 7, q = (1, 2), Q = (3, 5): 1+4 + 9+20 + 5(-2)+6(-3) + 7 = 13."""
    gate = torch.arange(1.0, 8.0)
    found = gate_values(gate, torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 5.0]]))
    torch.testing.assert_close(found, torch.tensor([13.0]).sigmoid())


def test_beta_1_is_local_training_and_beta_0_is_replacement():
    _, local = memory_after(FedRKG(interval=None), 3)
    _, same = memory_after(FedRKG(interval=1, beta=1.0, gate=False), 3)
    assert torch.equal(local["items"], same["items"])
    q, anchor = torch.randn(3, 2), torch.randn(3, 2)
    assert torch.equal(guided(q, anchor, 0.0, None), anchor)


def test_the_warm_up_is_replacement_and_ends():
    """Two rounds end with an exchange whose mean is written over the tables in rounds 2 and 3; then nothing travels."""
    _, replaced = memory_after(FedRKG(interval=1, beta=0.0, gate=False), 3)
    result, warm = memory_after(FedRKG(interval=None, warmup=2), 3)
    assert torch.equal(warm["items"], replaced["items"])
    assert "gate" not in warm
    result, _ = memory_after(FedRKG(interval=None, warmup=2), 5)
    table = 6 * 30 * 4 * 4
    assert [m["bytes/up"] > table for m in result.metrics] == [True, True, False, False, False]
    assert [m["bytes/down"] > table for m in result.metrics] == [True, True, True, False, False]


def test_tables_travel_every_interval_rounds_only():
    """Six clients, 30 items of 4 numbers: rounds 1 and 4 bring a mean down, rounds 3 and 6 tables up; else nothing."""
    result, _ = memory_after(FedRKG(interval=3), 6)
    table = 6 * 30 * 4 * 4
    up = [m["bytes/up"] for m in result.metrics]
    down = [m["bytes/down"] for m in result.metrics]
    assert [u > table for u in up] == [False, False, True, False, False, True]
    assert [d > table for d in down] == [True, False, False, True, False, False]
    assert max(u for u in up if u < table) < 6 * 100
    assert result.state.version == 2


@pytest.mark.parametrize("dimension", [4, 8])
def test_a_user_stores_m_plus_4_times_d_plus_1_numbers(dimension):
    """A table m d, a vector d, a gate 3 d + 1; at guidance the mean m d besides, which is what the packet holds."""
    algorithm = FedRKG(interval=1)
    result, columns = memory_after(algorithm, 2, lambda: small.task(dimension=dimension))
    m = 30
    stored = sum(t[0].numel() for t in columns.values())
    assert stored == (m + 4) * dimension + 1
    assert stored + result.model["items"].numel() == (2 * m + 4) * dimension + 1


def test_the_inner_loop_leaves_the_recommender_as_it_was(monkeypatch):
    """What guidance starts from is, to the bit, what training left; only the gate has moved."""
    from fedfi.recsys import fedrkg

    seen = []
    plain = fedrkg.train_gates

    def watched(cohort, backbone, tables, anchor, head, gates, *rest):
        before = [t.clone() for t in (tables, anchor, *head.values())]
        found = plain(cohort, backbone, tables, anchor, head, gates, *rest)
        same = all(torch.equal(a, b) for a, b in zip(before, (tables, anchor, *head.values()), strict=True))
        seen.append((same, bool((found != gates).any())))
        return found

    monkeypatch.setattr(fedrkg, "train_gates", watched)
    memory_after(FedRKG(interval=1), 3)
    assert seen == [(True, True)] * 2


def test_the_gate_lessens_the_loss_after_guidance():
    """Plain descent with a small step on a smooth function: the loss on the same epoch falls."""
    from fedfi.federation.client import Client, Memory
    from fedfi.recsys.backbones import BACKBONES
    from fedfi.recsys.gate import train_gate
    from fedfi.recsys.recipe import recipe_of
    from fedfi.recsys.single import batches

    task = small.task(batch_size=256)
    client = Client("c5", task.data.clients["c5"], Memory(), task, None, 0, 0)
    rng = torch.Generator().manual_seed(0)
    table, anchor = torch.randn(30, 4, generator=rng), torch.randn(30, 4, generator=rng)
    head = {"user": torch.randn(4, generator=rng)}
    recipe = recipe_of(task, 0, 1.0)
    items, labels = next(batches(client, recipe, "gate"))

    def loss(gate):
        logits = BACKBONES["mf"].logits({"user": head["user"][None]}, guided(table, anchor, 0.5, gate)[items][None])
        return float(torch.nn.functional.binary_cross_entropy_with_logits(logits[0], labels))

    start = torch.zeros(13)
    end = train_gate(client, BACKBONES["mf"], table, anchor, head, start, 0.5, 0.01, recipe)
    assert loss(end) < loss(start)


def test_users_that_never_took_part_are_judged_and_catch_up():
    """Two of six a round: the first evaluations judge all six; who comes later begins with the newest mean."""
    task = small.task()
    algorithm = FedRKG(interval=1, clients_per_round=2)
    engine = LocalEngine(algorithm, task)
    result = run(algorithm, task, rounds=2, engine=engine, evaluate=Evaluate(every=1))
    assert result.failures == []
    assert "ranking/hr@10" in result.metrics[0]
    present = engine.memory()["present"]["items"]
    assert int(present.sum()) == len(result.state.received) < 6
    assert set(result.state.received.values()) <= {0, 1}


def test_a_release_is_clipped_and_noisy():
    """An update of norm 10 clipped to 2 keeps its direction; noise of sigma C = 1 has that standard deviation."""
    table, mean = torch.tensor([[6.0, 8.0]]), torch.zeros(1, 2)
    rng = torch.Generator().manual_seed(0)
    torch.testing.assert_close(Release(2.0, 0.0).of(table, mean, rng), torch.tensor([[1.2, 1.6]]))
    noise = Release(2.0, 0.5).of(torch.zeros(100, 100), torch.zeros(100, 100), rng)
    assert float(noise.std()) == pytest.approx(1.0, abs=0.03)


def test_private_means_add_up():
    """Without noise and with a wide clip, the mean of updates added to the old mean is the mean of tables."""
    plain, _ = memory_after(FedRKG(interval=1), 2)
    private, _ = memory_after(FedRKG(interval=1, clip=1e6), 2)
    torch.testing.assert_close(plain.model["items"], private.model["items"], rtol=1e-5, atol=1e-5)


def test_nothing_but_a_private_table_leaves(monkeypatch):
    """A loss is a look at the data without noise; a client that sent two tables has given away epsilon of two."""
    sent = []
    plain = FedRKG.aggregate

    def watched(self, state, round, replies, rng):
        kept = [*replies]
        sent.extend(reply.packet for reply in kept)
        return plain(self, state, round, iter(kept), rng)

    monkeypatch.setattr(FedRKG, "aggregate", watched)
    for cohorts in (0, 128):
        task = small.task()
        method = FedRKG(interval=1, clip=0.5, noise=3.0, delta=1e-4)
        result = run(method, task, rounds=2, engine=LocalEngine(method, task, cohorts=cohorts))
        assert all(dict(packet.scalars) == {} and list(packet.tensors) == ["items"] for packet in sent)
        assert "train/loss" not in result.metrics[0]
        assert result.metrics[1]["privacy/releases"] == 2
        assert result.metrics[1]["privacy/epsilon"] == pytest.approx(epsilon(3.0, 2, 1e-4))


def test_releases_are_counted_where_they_were_made():
    """Two of six a round, four rounds: eight releases, and what counts is the client that made most of them."""
    result = run(FedRKG(interval=1, clip=0.5, noise=3.0, clients_per_round=2), small.task(), rounds=4)
    releases = result.state.releases
    assert sum(releases.values()) == 8
    assert result.metrics[-1]["privacy/releases"] == max(releases.values())
    assert result.metrics[-1]["privacy/epsilon"] == pytest.approx(epsilon(3.0, max(releases.values()), 1e-5))


def test_noise_of_the_system_cannot_be_drawn_again():
    """Two runs of one seed agree in all but the noise, which nobody who knows the seed can take off."""
    noisy = [run(FedRKG(interval=1, clip=0.5, noise=0.1, source="system"), small.task(), rounds=1) for _ in range(2)]
    assert not torch.equal(noisy[0].model["items"], noisy[1].model["items"])


def test_a_gate_takes_steps_of_at_most_its_rate_times_the_clip():
    """Tables of entries of some hundreds would otherwise throw it far off; five passes of one batch each."""
    task = small.task(batch_size=256)
    method = FedRKG(interval=1, gate_rate=0.01, item_rate=1e4)
    engine = LocalEngine(method, task)
    run(method, task, rounds=2, engine=engine)
    gates = engine.memory()["columns"]["gate"]
    assert float(engine.memory()["columns"]["items"].abs().max()) > 100
    assert 0 < float(gates.norm(dim=1).max()) <= 5 * 0.01 * 1.0 + 1e-6


def test_epsilon_is_exact_and_composes():
    """k releases are one of sigma / sqrt(k). Balle and Wang: mu = 1, delta = 0.1269 = 2 Phi(1/2) - ... at epsilon 1."""
    assert epsilon(4.0, 4, 1e-5) == pytest.approx(epsilon(2.0, 1, 1e-5))
    value = epsilon(2.0, 1, 0.05)  # mu = 1
    phi = torch.distributions.Normal(0.0, 1.0).cdf
    delta = phi(torch.tensor(0.5 - value)) - math.exp(value) * phi(torch.tensor(-0.5 - value))
    assert float(delta) == pytest.approx(0.05, abs=1e-6)
    assert epsilon(0.0, 1, 1e-5) == math.inf
    assert epsilon(1.0, 0, 1e-5) == 0.0
    with pytest.raises(InputError):
        epsilon(1.0, 1, 2.0)


def test_epsilon_agrees_with_dp_accounting():
    accounting = pytest.importorskip("dp_accounting")
    from dp_accounting import pld

    event = accounting.SelfComposedDpEvent(accounting.GaussianDpEvent(2.0), 10)
    reference = pld.PLDAccountant().compose(event).get_epsilon(1e-5)
    assert epsilon(4.0, 10, 1e-5) == pytest.approx(reference, rel=1e-3)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"beta": 0.5, "strength": 1.0}, "give beta or strength, not both"),
        ({"noise": 1.0}, "noise = 1.0 needs clip"),
        ({"backbone": "mlp"}, "nearest valid"),
        ({"beta": 2.0}, "must be at most 1"),
    ],
)
def test_bad_settings_are_one_line(keys, said):
    tables = {
        "rounds": 1,
        "data": {"name": "synthetic_ratings"},
        "model": {"name": "item_table"},
        "algorithm": {"name": "fedrkg", **keys},
    }
    with pytest.raises(InputError, match=said):
        from_dict(tables)


@pytest.mark.parametrize("recipe", [{"optimizer": "adam"}, {"steps": 3, "epochs": None}, {"schedule": "cosine"}])
def test_recipes_that_mean_nothing_are_refused(recipe):
    with pytest.raises(InputError, match="train"):
        run(FedRKG(), small.task(**recipe), rounds=1)


def test_a_preset_gives_way_to_what_stands_instead():
    assert FedRKG.preset("as-published", strength=1.0).own_weight == 0.5
    assert FedRKG.preset("as-published").own_weight == 0.99


@pytest.mark.parametrize("options", [{"source": "system"}, {"delta": 1e-6}])
def test_options_of_privacy_without_any_are_refused(options):
    with pytest.raises(InputError, match="needs clip and noise"):
        FedRKG(**options)


def test_options_of_a_gate_that_is_not_there_are_told():
    assert FedRKG(gate=False, gate_rate=0.5).notes_on_clients(["a"]) == ["gate_rate: without effect with gate = false"]
    assert FedRKG(gate=False).notes_on_clients(["a"]) == []
    assert FedRKG.preset("as-published", gate=False).notes_on_clients(["a"]) == []
