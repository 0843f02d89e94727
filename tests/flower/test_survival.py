"""Stragglers, nodes that come and go, replies that are late, doubled, forged or nonsense; crashes of the server."""

from __future__ import annotations

import dataclasses
import gc
import json
import random
import shutil
import weakref

import pytest
import torch
from tests import tiny
from tests.flower.fakes import FakeGrid, Machine, Time, federation, machine, over_the_wire
from tests.flower.remembering import Remembering

from fedfi import __version__
from fedfi.averaging.fedavg import FedAvg
from fedfi.engines.flower.agreement import Agreement
from fedfi.engines.flower.door import Array, ArrayRecord, ConfigRecord, Error, Message
from fedfi.engines.flower.engine import Patience
from fedfi.engines.flower.replies import read_replies
from fedfi.engines.flower.wire import Limits, Part, pack, unpack
from fedfi.errors import InputError, RunError
from fedfi.federation.algorithm import Failure
from fedfi.federation.evaluation import Evaluate
from fedfi.federation.packet import Packet
from fedfi.federation.run import run

ALL = FedAvg()
UNJUDGED = Evaluate(local=False)


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


def local(algorithm, without: str | None = None, rounds: int = 1, **options):
    """The same run in one process; `without` fails in every round."""
    task = tiny.small()
    if without is None:
        return run(algorithm, task, rounds=rounds, **options)
    clients = {c: d for c, d in task.data.clients.items() if c != without}
    return run(
        algorithm, dataclasses.replace(task, data=dataclasses.replace(task.data, clients=clients)), rounds=rounds
    )


def go(there, algorithm=ALL, rounds: int = 1, **options):
    return run(algorithm, tiny.small(), rounds=rounds, engine=there.engine, **{"evaluate": UNJUDGED, **options})


def texts(there) -> list[str]:
    return [note.text for note in there.engine.take_notes()]


def works(message: Message) -> bool:
    return message.metadata.message_type != "query"


def clients_in(message: Message) -> list[str]:
    return [part.head["client"] for part in unpack(message.content)[1]]


# stragglers


def test_a_straggler_is_left_out_after_the_timeout(tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6, patience=Patience(timeout=30))
    there.grid.fault = lambda node, m, r: [(there.time.seconds + (500 if works(m) and node == 102 else 1), r)]
    result = go(there)
    assert [(f.client, f.stage, f.error) for f in result.failures] == [("c2", "timeout", "no reply within 30 s")]
    assert 30 <= there.time.seconds < 40
    assert same(result.model, local(ALL, without="c2").model)


def test_messages_expire_some_time_after_the_timeout(tmp_path):
    """Not at once: a reply that came in time may have to wait for its turn."""
    there = federation(ALL, tiny.small, tmp_path, patience=Patience(timeout=30))
    go(there)
    assert all(600 < m.metadata.ttl <= 630 for m in there.grid.sent if works(m))


@pytest.mark.parametrize("refusal", ["an error", "nothing"])
def test_a_message_that_cannot_be_sent_is_given_up(refusal, tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6, patience=Patience(absence=50))
    push = there.grid.push_messages
    tries = []

    def push_messages(messages):
        if works(messages[0]) and messages[0].metadata.dst_node_id == 102:
            tries.append(there.time.seconds)
            if refusal == "an error":
                raise ConnectionError("too large")
            return []
        return push(messages)

    there.grid.push_messages = push_messages
    (failure,) = go(there).failures
    assert (failure.client, failure.stage) == ("c2", "node")
    assert failure.error == f"its job could not be sent {len(tries)} times; see the notes"
    assert 3 <= len(tries) <= 7
    assert 50 <= there.time.seconds < 60


def test_without_a_timeout_a_straggler_is_waited_for(tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6)
    there.grid.fault = lambda node, m, r: [(there.time.seconds + 5000 * (works(m) and node == 102), r)]
    result = go(there)
    assert result.failures == []
    assert same(result.model, local(ALL).model)


def test_fewer_than_min_replies_end_the_run(tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6, patience=Patience(timeout=30))
    there.grid.fault = lambda node, m, r: [] if works(m) and node == 102 else [(0.0, r)]
    with pytest.raises(
        RunError, match=r"5 of 6 clients delivered, 6 are needed.*'c2' in timeout: no reply within 30 s"
    ):
        go(there, min_replies=6)


def test_a_late_reply_changes_nothing(tmp_path):
    """It comes in the next round, when nobody waits for it; its client's memory goes back with it."""
    method = Remembering()
    there = federation(method, tiny.small, tmp_path, 6, patience=Patience(timeout=30))
    rounds = iter([500.0])

    def fault(node, message, reply):
        late = next(rounds, 0.0) if works(message) and node == 102 else 0.0
        return [(there.time.seconds + late, reply)]

    there.grid.fault = fault
    result = go(there, method, rounds=3)
    assert [(f.client, f.stage) for f in result.failures] == [("c2", "timeout")]
    assert [line["times"] for line in result.metrics] == [5, 11, 17]  # c2 worked twice, the others three times


# doubled, forged


def test_doubled_replies_count_once(tmp_path):
    there = federation(ALL, tiny.small, tmp_path)
    there.grid.fault = lambda node, m, r: [(0.0, r), (0.0, r), (0.0, r)]
    result = go(there, rounds=2)
    assert result.failures == []
    assert same(result.model, local(ALL, rounds=2).model)
    assert any("a reply that nobody waits for" in note for note in texts(there))


def reply_with(message: Message, change) -> Message:
    """The same reply with another content."""
    about, parts = unpack(message.content)
    arrived = over_the_wire(message)
    arrived.content = change(about, list(parts))
    return arrived


FORGED = {
    "another round": (lambda a, p: pack({**a, "round": 9}, p), "answers round = '9', expected 0"),
    "another run": (lambda a, p: pack({**a, "run": "0" * 16}, p), "answers run"),
    "another work": (lambda a, p: pack({**a, "work": "client_evaluate"}, p), "answers work"),
    "another client": (lambda a, p: pack(a, [Part({**p[0].head, "client": "c0"}, p[0].packet)]), "which was not asked"),
    "no client": (lambda a, p: pack(a, []), "sent no reply for it"),
    "twice": (lambda a, p: pack(a, [*p, *p]), "answers twice"),
    "time": (lambda a, p: pack(a, [Part({**p[0].head, "seconds": "x"}, p[0].packet)]), "its time is 'x'"),
    "endless": (lambda a, p: pack(a, [Part({**p[0].head, "seconds": 1e999}, p[0].packet)]), "its time is"),
    "memory": (lambda a, p: pack(a, [Part({**p[0].head, "memory": "../x"}, p[0].packet)]), "its memory is"),
    "failure": (lambda a, p: pack(a, [Part({**p[0].head, "failure": 3}, p[0].packet)]), "its failure cannot be read"),
    "stage": (lambda a, p: pack(a, [Part({**p[0].head, "failure": {"stage": "x"}})]), "its failure cannot be read"),
    "name": (lambda a, p: pack(a, [Part(p[0].head, Packet({"x": torch.ones(1)}, p[0].packet.scalars))]), "missing"),
    "no packet": (lambda a, p: pack(a, [Part(p[0].head)]), "missing"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_wrong_reply_is_refused_and_the_round_goes_on(name, tmp_path):
    change, said = FORGED[name]
    there = federation(ALL, tiny.small, tmp_path, 6)

    def fault(node, message, reply):
        return [(0.0, reply_with(reply, change) if works(message) and node == 102 else reply)]

    there.grid.fault = fault
    result = go(there)
    (failure,) = result.failures
    assert (failure.client, failure.stage) == ("c2", "reply")
    assert failure.error.startswith("client 'c2': ")
    assert said in failure.error
    assert same(result.model, local(ALL, without="c2").model)


def test_a_reply_of_another_node_is_refused(tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6)

    def fault(node, message, reply):
        if works(message) and node == 102:
            reply.metadata.__dict__["_src_node_id"] = 105
        return [(0.0, reply)]

    there.grid.fault = fault
    assert [f.error for f in go(there).failures] == ["client 'c2': another node answered in its place"]


def test_a_reply_beyond_the_limits_is_refused(tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6, limits=Limits(message_bytes=2000))
    big = Packet({"x": torch.ones(1000)})
    there.grid.fault = lambda node, m, r: [
        (0.0, reply_with(r, lambda a, p: pack(a, [Part(p[0].head, big)])) if works(m) and node == 102 else r)
    ]
    (failure,) = go(there).failures
    assert failure.error == "client 'c2': the message holds 4000 bytes, at most 2000 are allowed"


def test_bytes_that_flower_itself_cannot_read_are_survived(tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6, patience=Patience(attempts=2))
    pull = there.grid.pull_messages
    poisoned: set[str] = set()

    def pull_messages(identifiers):
        for name, message in there.grid._waiting.items():
            if works(message) and message.metadata.dst_node_id == 102:
                poisoned.add(name)
        if poisoned & set(identifiers):
            raise ValueError("Unexpected set of `children`")
        return pull(identifiers)

    there.grid.pull_messages = pull_messages
    result = go(there)
    assert [(f.client, f.stage) for f in result.failures] == [("c2", "node")]
    assert "its reply cannot be received: ValueError: Unexpected set" in result.failures[0].error
    assert same(result.model, local(ALL, without="c2").model)


NONSENSE = [None, -1, 2**70, 1e999, "", "x" * 50, [], {}, [[]], True, {"stage": "node"}, "../../etc", "\x00"]


def mutated(rng: random.Random, about, parts):
    """A reply with one field of one record, or one byte, replaced by nonsense."""
    content = pack(about, parts)
    where = rng.choice(["array", "head", "record", "text", "byte"])
    name = rng.choice(list(content["0"]))
    old = content["0"][name]
    text = content["fedfi"]["head"]
    if where == "array":
        fields = {"dtype": old.dtype, "shape": old.shape, "stype": old.stype, "data": bytes(old.data)}
        field = rng.choice(list(fields))
        fields[field] = {
            "dtype": rng.choice(["float64", "bool", "int8", "", "object", "complex64"]),
            "shape": tuple(rng.choice([0, 1, 3, 10**9, -1]) for _ in range(rng.randrange(4))),
            "stype": rng.choice(["", "numpy.ndarray", "pickle"]),
            "data": rng.randbytes(rng.randrange(64)),
        }[field]
        content["0"][name] = Array(**fields)
    elif where == "head":
        head = json.loads(text)
        table = rng.choice([head, head["about"], *head["parts"], *(p["head"] for p in head["parts"])])
        table[rng.choice(list(table))] = rng.choice(NONSENSE)
        content["fedfi"]["head"] = json.dumps(head)
    elif where == "record":
        key = rng.choice(["0", "1", "fedfi", "x"])
        content.pop(key, None)
        content[key] = rng.choice([ArrayRecord(), ConfigRecord({"wire": 1})])
    elif where == "text":
        cut = rng.randrange(len(text))
        content["fedfi"]["head"] = text[:cut] + rng.choice(["", "}", "[", "9", ","]) + text[cut + 1 :]
    else:
        data = bytearray(old.data)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        content["0"][name] = Array(dtype=old.dtype, shape=old.shape, stype=old.stype, data=bytes(data))
    return content


def test_a_thousand_malformed_replies(tmp_path):
    """Each is refused with its client named, or is a reply that an honest client could have sent."""
    rng = random.Random(0)
    there = federation(ALL, tiny.small, tmp_path, 6)
    honest = []
    there.grid.fault = lambda node, m, r: (honest.append(r) if works(m) and node == 102 else None, [(0.0, r)])[1]
    go(there)
    about, parts = unpack(honest[0].content)
    state = ALL.init(tiny.small(), torch.Generator())
    layout, refused = ALL.reply_layout(state, Packet(state)), 0
    expected = {key: about[key] for key in ("work", "round", "run")}
    for _ in range(1000):
        ((result, _),) = read_replies(mutated(rng, about, parts), [("c2", Packet())], expected, Limits())
        try:
            if isinstance(result, Failure):
                raise InputError(result.error if result.stage == "reply" else f"client 'c2': {result.error}")
            layout.check(result.packet, result.client)
        except InputError as error:
            refused += 1
            named = str(error).startswith("client 'c2': ")
            if not named:
                raise
    assert refused > 700  # the others changed a bit of a weight


def test_rounds_of_nonsense_cost_no_other_reply(tmp_path):
    rng = random.Random(1)
    there = federation(ALL, tiny.small, tmp_path, 6)

    def fault(node, message, reply):
        if works(message) and node == 102:
            reply.content = mutated(rng, *unpack(reply.content))
        return [(0.0, reply)]

    there.grid.fault = fault
    result = go(there, rounds=20)
    assert all(line["clients/replied"] >= 5 for line in result.metrics)
    assert {f.client for f in result.failures} == {"c2"}
    assert len(result.failures) > 10


# nodes that come and go


def crash(code: int, times: int, where: int = 102):
    """A node that dies over its first messages."""
    left = [times]

    def fault(node, message, reply):
        if works(message) and node == where and left[0]:
            left[0] -= 1
            return [(0.0, Message(Error(code, "died"), reply_to=message))]
        return [(0.0, reply)]

    return fault


@pytest.mark.parametrize("code", [0, 3, 4, 5, 8])
def test_a_job_whose_process_died_is_sent_again(code, tmp_path):
    method = Remembering()
    there = federation(method, tiny.small, tmp_path, 6)
    there.grid.fault = crash(code, 2)
    result = go(there, method, rounds=2)
    assert result.failures == []
    assert same(result.model, local(method, rounds=2).model)


def test_a_job_that_kills_its_process_every_time_is_given_up(tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6)
    there.grid.fault = crash(8, 10**6)
    (failure,) = go(there).failures
    assert (failure.client, failure.stage) == ("c2", "node")
    assert failure.error == "Flower's error 8: died (sent 3 times)"


def test_an_error_of_the_app_is_not_asked_for_again(tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6)
    there.grid.fault = crash(2, 1)
    (failure,) = go(there).failures
    assert failure.error == "Flower's error 2: died"


def test_an_error_of_the_method_is_told_with_its_trace(tmp_path, monkeypatch):
    def broken(self, packet, client):
        raise OSError(f"the disk of {client.id} is gone")

    there = federation(ALL, tiny.small, tmp_path, 6)
    monkeypatch.setattr(FedAvg, "client_update", broken)
    with pytest.raises(RunError, match=r"0 of 6.*'c5' in client_update: OSError: the disk of c5 is gone"):
        go(there)


def test_a_node_that_is_away_is_waited_for_and_then_left_out(tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6, patience=Patience(absence=40))
    there.grid.machines[102].online = False
    (failure,) = go(there).failures
    assert (failure.client, failure.stage) == ("c2", "node")
    assert failure.error == "its node is not there (waited 40 s)"
    assert 40 <= there.time.seconds < 45


def test_a_node_that_joins_late_takes_part_from_then_on(tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6, patience=Patience(absence=0))
    there.grid.machines[102].online = False

    def observe(line):
        there.grid.machines[102].online = True

    result = go(there, rounds=3, observe=observe)
    assert [(f.client, f.stage) for f in result.failures] == [("c2", "node")]
    assert [line["clients/replied"] for line in result.metrics] == [5, 6, 6]


def test_a_node_that_comes_within_the_round_is_not_missed(tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6, patience=Patience(absence=40))
    there.grid.machines[102].online = False
    asked = there.grid.get_node_ids

    def get_node_ids():
        there.grid.machines[102].online = there.time.seconds > 20
        return asked()

    there.grid.get_node_ids = get_node_ids
    result = go(there)
    assert result.failures == []
    assert same(result.model, local(ALL).model)


@pytest.mark.parametrize("identifier", [102, 777])
def test_a_node_that_dies_over_its_work_and_comes_back_does_it_again(identifier, tmp_path):
    """Flower gives a node that is started again another id, unless it is authenticated; its memory is the old one."""
    method = Remembering()
    there = federation(method, tiny.small, tmp_path, 6)
    left = [1]

    def fault(node, message, reply):
        if works(message) and node == 102 and left[0]:
            left[0] = 0
            del there.grid.machines[102]
            back.append(there.time.seconds + 15)
            return []
        return [(there.time.seconds, reply)]

    back: list[float] = []
    asked = there.grid.get_node_ids

    def get_node_ids():
        if back and there.time.seconds > back[0]:
            back.clear()
            there.grid.machines[identifier] = machine(method, tiny.small(), tmp_path, 2, 6)
        return asked()

    there.grid.fault, there.grid.get_node_ids = fault, get_node_ids
    result = go(there, method, rounds=3)
    assert result.failures == []
    assert same(result.model, local(method, rounds=3).model)


def test_an_authenticated_node_that_is_started_again_at_once_does_its_work_again(tmp_path):
    """It never left the list and its id is the same, but what it was working on is lost."""
    there = federation(ALL, tiny.small, tmp_path, 6)
    left = [1]

    def fault(node, message, reply):
        if works(message) and node == 102 and left[0]:
            left[0] = 0
            there.grid.machines[102].activated = "later"
            return []
        return [(there.time.seconds, reply)]

    there.grid.fault = fault
    result = go(there)
    assert result.failures == []
    assert same(result.model, local(ALL).model)
    assert "node 102 was started again" in texts(there)


def test_a_node_that_was_refused_may_come_again_mended(tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6)
    right = there.grid.machines[102]
    there.grid.machines[102] = machine(ALL, tiny.small(), tmp_path, 2, 6, agreement=unlike(fedfi="0.0.1"))
    there.engine.wait(1, count=5)
    there.grid.machines[102] = dataclasses.replace(right, activated="later")
    there.engine.wait(1)


def test_a_node_that_leaves_for_good_costs_its_clients_alone(tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 3, patience=Patience(absence=5))

    def observe(line):
        there.grid.machines[101].online = False

    result = go(there, rounds=2, observe=observe)
    assert [(f.client, f.stage) for f in result.failures] == [("c1", "node"), ("c4", "node")]
    assert any("node 101 left" in note for note in texts(there))


# the server


def test_waiting_for_clients_says_who_is_missing(tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6)
    there.grid.machines[102].online = False
    with pytest.raises(RunError, match=r"after 30 s 5 of 6 clients are there; missing 'c2'"):
        there.engine.wait(30)
    there.engine.wait(30, count=5)


@pytest.mark.parametrize("phase", ["while clients work", "between rounds"])
def test_the_server_goes_on_from_its_directory(phase, tmp_path):
    """Clients have gone on by a step that the server has lost; they go back with it, to the same bits."""
    method, out = Remembering(participation=0.5), tmp_path / "run"
    whole = run(method, tiny.small(), rounds=5)
    there = federation(method, tiny.small, tmp_path)
    worked = [0]

    def fault(node, message, reply):
        worked[0] += works(message)
        if phase == "while clients work" and worked[0] == 19:
            raise KeyboardInterrupt
        return [(0.0, reply)]

    def observe(line):
        if phase == "between rounds" and line["round"] == 3:
            raise KeyboardInterrupt

    there.grid.fault = fault
    with pytest.raises(KeyboardInterrupt):
        go(there, method, rounds=5, out=out, observe=observe, evaluate=Evaluate())
    for machine_ in list(there.grid.machines.items()):  # with a new run of Flower everybody is new
        del there.grid.machines[machine_[0]]
        there.grid.machines[machine_[0] + 1000] = machine_[1]
    there.grid.fault = None
    again = federation(method, tiny.small, tmp_path, grid=there.grid)
    result = go(again, method, rounds=5, out=out, resume=True, evaluate=Evaluate())
    assert result.failures == []
    assert same(result.model, whole.model)


def test_a_damaged_checkpoint_takes_server_and_clients_back_one_round_more(tmp_path):
    method, out = Remembering(), tmp_path / "run"
    there = federation(method, tiny.small, tmp_path)
    go(there, method, rounds=3, out=out, evaluate=Evaluate())
    newest = max((out / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-9])
    again = federation(method, tiny.small, tmp_path, grid=there.grid)
    result = go(again, method, rounds=5, out=out, resume=True, evaluate=Evaluate())
    assert result.failures == []
    assert same(result.model, local(method, rounds=5).model)


def test_a_client_that_lost_its_memory_says_so(tmp_path):
    method = Remembering()
    there = federation(method, tiny.small, tmp_path, 6, patience=Patience(lost_memory="refuse"))

    def observe(line):
        shutil.rmtree(tmp_path / "node-2", ignore_errors=True)

    result = go(there, method, rounds=2, observe=observe)
    (failure,) = result.failures
    assert (failure.client, failure.stage) == ("c2", "memory")
    assert "its memory 000001-" in failure.error
    assert "is not there (there is: nothing)" in failure.error


def test_a_client_that_lost_its_memory_may_begin_anew(tmp_path):
    method = Remembering()
    there = federation(method, tiny.small, tmp_path, 6, patience=Patience(lost_memory="forget"))

    def observe(line):
        shutil.rmtree(tmp_path / "node-2", ignore_errors=True)

    result = go(there, method, rounds=2, observe=observe)
    assert result.failures == []
    assert [line["times"] for line in result.metrics] == [6, 11]
    assert any("it forgot" in note for note in texts(there))


def test_a_node_with_old_memory_is_told_so(tmp_path):
    """The disk of c2 is put back to what it was after the first round."""
    method = Remembering()
    there = federation(method, tiny.small, tmp_path, 6)

    def observe(line):
        if line["round"] == 1:
            shutil.copytree(tmp_path / "node-2", tmp_path / "backup")
        else:
            shutil.rmtree(tmp_path / "node-2", ignore_errors=True)
            shutil.copytree(tmp_path / "backup", tmp_path / "node-2")

    result = go(there, method, rounds=3, observe=observe)
    (failure,) = result.failures
    assert (failure.client, failure.stage) == ("c2", "memory")
    assert "its memory 000004-" in failure.error
    assert "(there is: 000001-" in failure.error


def test_a_run_of_one_machine_does_not_go_on_here(tmp_path):
    run(ALL, tiny.small(), rounds=1, out=tmp_path / "run")
    there = federation(ALL, tiny.small, tmp_path)
    with pytest.raises(InputError, match="is of a run on one machine"):
        go(there, rounds=2, out=tmp_path / "run", resume=True, evaluate=Evaluate())


# agreement


def unlike(**changes):
    return dataclasses.replace(Agreement.of(tiny.small(), {}), **changes)


@pytest.mark.parametrize(
    ("agreement", "said"),
    [
        (unlike(fedfi="0.0.1"), f"it has fedfi 0.0.1, the server {__version__}"),
        (unlike(layout={"0.weight": "8x7 float32"}), r"its model has '0.weight' 8x7 float32, the server's 8x6 float32"),
        (Agreement.of(tiny.small(), {"seed": 1}), r"its experiment is \w+, the server's \w+: other settings"),
    ],
)
def test_a_node_that_is_unlike_the_server_is_refused(agreement, said, tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6)
    there.grid.machines[102] = machine(ALL, tiny.small(), tmp_path, 2, 6, agreement=agreement)
    with pytest.raises(RunError, match=rf"5 of 6 clients are there; missing 'c2'; node 102 was refused: {said}"):
        there.engine.wait(1)


def test_a_node_with_other_data_is_refused(tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6)
    there.grid.machines[102] = machine(ALL, tiny.small(clients=7), tmp_path, 2, 7)
    there.grid.machines[106] = machine(ALL, tiny.small(clients=7), tmp_path, 6, 7)
    there.engine.wait(1, count=6)
    said = " ".join(texts(there))
    assert "node 106 is refused: it holds client 'c6', which is not of this federation" in said
    task = tiny.small()
    data = task.data.clients["c2"]
    fewer = dataclasses.replace(data, train=data.train.dataset.examples(data.train.indices[1:]))
    clients = {**task.data.clients, "c2": fewer}
    task = dataclasses.replace(task, data=dataclasses.replace(task.data, clients=clients))
    there.grid.machines[107] = machine(ALL, task, tmp_path, 2, 6)
    there.engine.roster.refresh()
    there.engine.roster.refresh()
    said = " ".join(texts(there))
    assert "its client 'c2' has 7 train and 3 test examples, expected 8 and 3" in said


def test_a_node_refuses_a_server_that_is_unlike_it(tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6)
    there.engine.wait(1)
    there.engine._agreement = unlike(fedfi="9.9")
    with pytest.raises(
        RunError, match=f"this node cannot work for the server: it has fedfi {__version__}, the server 9.9"
    ):
        go(there)


def test_a_node_does_nothing_for_clients_that_it_does_not_hold(tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6)
    there.engine.wait(1)
    there.engine.roster._holder["c2"] = 103
    (failure,) = go(there).failures
    assert (failure.client, failure.error) == ("c2", "this node does not hold 'c2'; it holds c3")


@pytest.mark.parametrize("answer", [{}, {"clients": 3}, {"clients": {"c2": [1]}}, {"clients": {"c2": [-1, 3]}}])
def test_a_wrong_introduction_is_refused(answer, tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6)
    there.grid.machines[102] = Machine(lambda m, c: Message(pack(answer), reply_to=m), {})
    with pytest.raises(RunError, match=r"node 102 was refused: (its introduction|what the node tells)"):
        there.engine.wait(1)


def test_an_introduction_that_is_lost_is_asked_for_again(tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6)
    left = [3]

    def fault(node, message, reply):
        if node == 102 and left[0]:
            left[0] -= 1
            return [(0.0, Message(Error(8, "died"), reply_to=message))]
        return [(0.0, reply)]

    there.grid.fault = fault
    there.engine.wait(30)


def test_jobs_of_a_node_go_together_up_to_a_size(tmp_path):
    for limit, expected in ((10**9, 2), (0, 6)):
        grid = FakeGrid(Time())
        for i in range(2):
            grid.machines[i] = machine(ALL, tiny.small(), tmp_path, i, 2)
        there = federation(ALL, tiny.small, tmp_path, grid=grid, patience=Patience(bundle_bytes=limit))
        go(there)
        assert len([m for m in grid.sent if m.metadata.message_type == "train"]) == expected


def test_few_replies_are_held_at_a_time(tmp_path):
    """With room for one message, the second reply is asked for when the first has been taken."""
    there = federation(ALL, tiny.small, tmp_path, 6, patience=Patience(ahead_bytes=0))
    asked = []
    pull = there.grid.pull_messages
    there.grid.pull_messages = lambda ids: (asked.append(len(list(ids))), pull(ids))[1]
    there.engine.wait(1)
    asked.clear()
    assert go(there).failures == []
    assert set(asked) == {1}


def test_a_node_that_dies_over_its_work_each_time_is_given_up(tmp_path):
    """It comes back at once, but never delivers; without a limit the round would never end."""
    there = federation(ALL, tiny.small, tmp_path, 6, patience=Patience(attempts=3))
    times = [0]

    def fault(node, message, reply):
        if not works(message) or node != 102:
            return [(there.time.seconds, reply)]
        times[0] += 1
        there.grid.machines[102].activated = f"{times[0]} times"
        return []

    there.grid.fault = fault
    (failure,) = go(there).failures
    assert (failure.client, failure.stage, times) == ("c2", "node", [3])
    assert failure.error == "its node was started again, or replaced, each time it had the job (sent 3 times)"


def test_a_client_goes_back_to_the_node_that_it_was_taken_over_from(tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6)
    there.engine.wait(1)
    there.grid.machines[777] = machine(ALL, tiny.small(), tmp_path, 2, 6)
    for _ in range(3):
        there.engine.roster.refresh()
    assert there.engine.roster.where("c2") == 777
    there.grid.machines[777].online = False
    there.engine.roster.refresh()
    assert there.engine.roster.where("c2") == 102
    assert go(there).failures == []


def test_introductions_may_be_lost_now_and_then_for_ever(tmp_path):
    """Five in a row are too many; five in a long run are not."""
    there = federation(ALL, tiny.small, tmp_path, 6)
    lost = [True]

    def fault(node, message, reply):
        if node == 102 and not works(message) and lost[0]:
            lost[0] = False
            return [(0.0, Message(Error(8, "died"), reply_to=message))]
        return [(0.0, reply)]

    there.grid.fault = fault
    for again in range(8):
        lost[0] = True
        there.grid.machines[102].activated = str(again)
        there.engine.wait(30)


def test_nodes_that_cannot_be_listed_end_no_round(tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6)
    there.engine.wait(1)
    listed, broken = there.grid.get_node_ids, [4]

    def get_node_ids():
        if broken[0]:
            broken[0] -= 1
            raise ConnectionError("gone for a moment")
        return listed()

    there.grid.get_node_ids = get_node_ids
    there.grid.machines[102].online = False
    there.grid.fault = None
    result = run(ALL, tiny.small(), rounds=1, engine=there.engine, evaluate=UNJUDGED)
    assert {f.client for f in result.failures} <= {"c2"}
    assert sum("the nodes cannot be listed" in n for n in texts(there)) == 1


def test_a_packed_message_is_not_held_while_replies_come(tmp_path):
    """A model of 500 MB would else lie in memory once more for the whole round."""
    there = federation(ALL, tiny.small, tmp_path, 6)
    there.engine.wait(1)
    alive = []
    pull = there.grid.pull_messages
    first = []

    def push_messages(messages, push=there.grid.push_messages):
        first.append(weakref.ref(next(iter(messages[0].content["0"].values()))))
        return push(messages)

    def pull_messages(names):
        there.grid.sent.clear()
        gc.collect()
        alive.append(first[0]() is not None)
        return pull(names)

    there.grid.push_messages, there.grid.pull_messages = push_messages, pull_messages
    go(there)
    assert alive
    assert not any(alive)
