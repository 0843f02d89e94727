from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests import tiny
from tests.recsys import small

from fedfi import FedAvg
from fedfi.engines.local import LocalEngine
from fedfi.errors import InputError, RunError
from fedfi.federation.checkpoint import flatten
from fedfi.federation.exhibits import FOLDER, Exhibition, pooled, read_exhibit
from fedfi.federation.packet import Packet, Tree
from fedfi.federation.record import read_lines
from fedfi.federation.run import run
from fedfi.oneshot.fedfiot import FedFiOT
from fedfi.oneshot.units import matched
from fedfi.personal.encryption import Encryption
from fedfi.personal.fedfihe import FedFIHE
from fedfi.recsys.fedrkg import FedRKG
from fedfi.recsys.gate import gate_values, guided


class Showing:
    """A method that shows what it is told to."""

    def __init__(self, **found: Packet) -> None:
        self.found = found

    def exhibits(self, state: object) -> Mapping[str, Packet]:
        return self.found


class Portraying:
    """A method that looks at one client, and an engine that has it."""

    def __init__(self) -> None:
        self.memory = torch.zeros(2)

    def portrayed(self, state: object, round: int, clients: Sequence[str]) -> Sequence[str]:
        return clients[:1]

    def portrait(
        self, task: object, state: object, before: Mapping[str, Tree], after: Mapping[str, Tree]
    ) -> Mapping[str, Packet]:
        return {"look": Packet({"before": before["a"]["x"], "after": after["a"]["x"]}, {"state": str(state)})}

    def clients(self) -> Sequence[str]:
        return ["a", "b"]

    def memory_of(self, client: str) -> Tree:
        return {"x": self.memory.clone()}


def test_the_newest_of_each_name_is_kept(tmp_path: Path) -> None:
    method = Showing(votes=Packet({"n": torch.tensor(1)}))
    kept = Exhibition(method, None, None, tmp_path)
    kept.after(None, 0)
    method.found = {"other": Packet()}
    kept.after(None, 1)
    found = read_exhibit(tmp_path, "votes")
    assert found
    assert (int(found.tensors["n"]), found.scalars["round"]) == (1, 1)
    assert {p.name for p in (tmp_path / FOLDER).iterdir()} == {"votes.safetensors", "other.safetensors"}
    assert read_exhibit(tmp_path, "nothing") is None


def test_a_client_is_seen_before_and_after(tmp_path: Path) -> None:
    both = Portraying()
    kept = Exhibition(both, None, both, tmp_path)
    kept.before("old", 3)
    both.memory += 1
    kept.after("new", 3)
    found = read_exhibit(tmp_path, "look")
    assert found
    assert (found.tensors["before"].tolist(), found.tensors["after"].tolist()) == ([0, 0], [1, 1])
    assert found.scalars == {"state": "old", "round": 4}


def test_real_clients_are_not_looked_at(tmp_path: Path) -> None:
    kept = Exhibition(Portraying(), None, SimpleNamespace(clients=lambda: ["a"]), tmp_path)
    kept.before(None, 0)
    kept.after(None, 0)
    assert not (tmp_path / FOLDER).exists()


def test_what_is_too_large_or_misnamed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Showing shows 'big' of \d+ bytes; expected at most 1000000"):
        Exhibition(Showing(big=Packet({"x": torch.zeros(300_000)})), None, None, tmp_path).after(None, 0)
    with pytest.raises(InputError, match=r"Showing shows '\.\./up'"):
        Exhibition(Showing(**{"../up": Packet()}), None, None, tmp_path).after(None, 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        Exhibition(Showing(a=Packet()), None, None, tmp_path / "file").after(None, 0)


def test_without_a_directory_nothing_is_kept() -> None:
    Exhibition(Showing(**{"../up": Packet()}), None, None, None).after(None, 0)


def test_pooled_by_hand() -> None:
    values = torch.tensor([1, 2, 3, 4, 5])
    assert pooled(values, 5).tolist() == [1, 2, 3, 4, 5]
    assert pooled(values, 3).tolist() == [3, 7, 5]
    assert pooled(values, 3, how="max").tolist() == [2, 4, 5]


def test_matched_units_by_hand() -> None:
    """Two parties, three units: one leaves all in place, the other exchanges the first two."""
    orders = [{"a": torch.tensor([0, 1, 2])}, {"a": torch.tensor([1, 0, 2])}]
    assert matched(orders)["a"].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 2]]
    assert matched([{"a": torch.tensor([1, -1])}])["a"].tolist() == [[0, 1], [0, 0]]
    assert matched([{"a": torch.arange(100)}])["a"].shape == (50, 50)
    assert matched([]) == {}


def test_a_merge_shows_its_alignment_and_checkpoints_hold_none(tmp_path: Path) -> None:
    result = run(FedFiOT(initialization="independent"), tiny.small(), rounds=1, out=tmp_path / "run")
    found = read_exhibit(tmp_path / "run", "alignment")
    assert found
    for counts in found.tensors.values():
        assert counts.sum(0).tolist() == counts.sum(1).tolist() == [6] * len(counts), "six permutations"
    layers = [k.removeprefix("objective/before/") for k in result.metrics[0] if k.startswith("objective/before/")]
    assert layers == list(found.tensors)
    assert all(result.metrics[0][f"objective/after/{n}"] <= result.metrics[0][f"objective/before/{n}"] for n in layers)
    assert "orders" not in flatten(result.state, {})["fields"]


@pytest.mark.parametrize("phases", ["one", "two"])
def test_a_vote_shows_its_votes(tmp_path: Path, phases: str) -> None:
    method = FedFIHE(phases=phases, sharing=0.5, encryption=Encryption(enabled=False, packet_size=8))
    result = run(method, tiny.small(), rounds=1, out=tmp_path / "run")
    found = read_exhibit(tmp_path / "run", "votes")
    assert found
    votes, line = found.tensors["votes"], result.metrics[0]
    assert (int(found.tensors["voters"]), int(found.tensors["needed"])) == (6, 3)
    assert int(found.tensors["released"].sum()) == line["packets/released"]
    assert bool((votes[found.tensors["released"].bool()] >= 3).all())
    if phases == "one":
        assert int((votes > 0).sum()) == line["packets/wanted"]
    events = read_lines(tmp_path / "run" / "events.jsonl")
    sizes = [event["blobs"]["message"] for event in events if event["event"] == "replied"]
    assert 0 < sum(sizes) < line["bytes/up"]


def test_a_guidance_shows_gates_and_items(tmp_path: Path) -> None:
    """Interval 2: the mean of round 2 guides in round 3, which is the last round here."""
    method = FedRKG(interval=2, backbone="mf")
    task = small.task()
    engine = LocalEngine(method, task)
    before: dict[str, Tree] = {}
    means: dict[int, torch.Tensor] = {}

    original = engine.memory_of

    def remembered(client: str) -> Tree:
        found = original(client)
        before.setdefault(client, found)
        return found

    engine.memory_of = remembered  # type: ignore[method-assign]
    configure = FedRKG.configure

    def noting(self, state, round, clients, rng):  # type: ignore[no-untyped-def]
        means[round] = state.mean["items"]
        return configure(self, state, round, clients, rng)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FedRKG, "configure", noting)
        result = run(method, task, rounds=3, out=tmp_path / "run", engine=engine)
    assert [line.get("means/taken") for line in result.metrics] == [None, None, 6.0]
    found = read_exhibit(tmp_path / "run", "guidance")
    assert found
    assert found.scalars == {"user": "c0", "users": 6, "beta": 0.5, "round": 3}
    shown = torch.cat([torch.from_numpy(task.data.train[0]), torch.arange(30)])
    shown = torch.tensor(list(dict.fromkeys(shown.tolist())))
    gate, items, mean = original("c0")["gate"], before["c0"]["items"], means[2]
    assert torch.equal(found.tensors["before"], items[shown])
    assert torch.equal(found.tensors["after"], guided(items, mean, 0.5, gate)[shown])
    assert int(found.tensors["own"].sum()) == len(task.data.train[0])
    assert int(found.tensors["gates"].sum()) == 6 * 30
    own = gate_values(gate, items, mean)
    assert bool(((own > 0) & (own < 1)).all())
    engine.close()


def test_what_is_shown_changes_no_bit(tmp_path: Path) -> None:
    with_directory = run(FedRKG(interval=2), small.task(), rounds=3, out=tmp_path / "run")
    without = run(FedRKG(interval=2), small.task(), rounds=3)
    assert all(torch.equal(with_directory.model[n], without.model[n]) for n in without.model)
    plain = run(FedAvg(), tiny.small(), rounds=1, out=tmp_path / "plain")
    assert not (tmp_path / "plain" / FOLDER).exists()
    assert plain.out
