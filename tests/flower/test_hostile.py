"""Nodes that lie: bytes that Flower cannot read, replies in another's name, numbers that overflow. Nobody else pays."""

from __future__ import annotations

import json
import random
import tracemalloc

import pytest
import torch
from tests import tiny
from tests.flower.fakes import Deflated, Machine, federation, over_the_wire
from tests.flower.remembering import Remembering
from tests.flower.test_survival import ALL, UNJUDGED, go, local, reply_with, same, works
from tests.recsys import small

from fedfi.engines.flower.door import Array, ConfigRecord, Message, RecordDict, bounded
from fedfi.engines.flower.engine import Patience
from fedfi.engines.flower.wire import Limits, Part, pack, unpack
from fedfi.errors import RunError
from fedfi.federation.algorithm import Failure, Reply
from fedfi.federation.evaluation import Evaluate
from fedfi.federation.packet import Layout, Packet, PacketError
from fedfi.federation.reported import reported
from fedfi.federation.run import run
from fedfi.recsys.fedrkg import FedRKG

BOMB = 100_000_000
"""Bytes that a reply of a few kilobytes asks for."""


def array_in(reply: Deflated) -> str:
    """The name of an array with one chunk."""
    return next(n for n, c in reply.contents.items() if c.startswith(b"Array ") and c.split(b" ")[1].count(b",") == 0)


def with_body(content: bytes, change) -> bytes:
    """An object of Flower's with another body, and the length that belongs to it."""
    head, _, body = content.partition(b"\0")
    body = change(body)
    kind, children, _ = head.split(b" ")
    return b"%s %s %d\0%s" % (kind, children, len(body), body)


def bomb(reply: Message) -> Deflated:
    """One chunk, named so often that it becomes a hundred megabytes."""
    lying = Deflated.of(reply)
    name = array_in(lying)
    chunk = lying.contents[name].split(b" ")[1].decode()
    size = len(lying.contents[chunk].partition(b"\0")[2])

    def repeated(body: bytes) -> bytes:
        return json.dumps({**json.loads(body), "arraychunk_ids": [0] * (BOMB // size)}).encode()

    lying.contents[name] = with_body(lying.contents[name], repeated)
    return lying


def unreadable(reply: Message) -> Deflated:
    """An array whose form is no JSON."""
    lying = Deflated.of(reply)
    name = array_in(lying)
    lying.contents[name] = with_body(lying.contents[name], lambda _: b"{")
    return lying


def lies(there, lie, node: int = 102):
    """A node all of whose work is answered by a lie."""
    return lambda at, m, r: [(there.time.seconds, lie(r) if works(m) and at == node else r)]


UNREADABLE = {
    "bomb": (bomb, "reply", "client 'c2': the message holds 99999936 bytes, at most 10000000", 1),
    "unreadable": (unreadable, "node", "its reply cannot be received: JSONDecodeError: ", 2),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_bytes_that_flower_cannot_read_cost_nobody_else_anything(name, tmp_path):
    """They lie in the SuperLink beside replies of honest nodes, which are worked on once."""
    lie, stage, said, times = UNREADABLE[name]
    limits = Limits(message_bytes=10_000_000)
    there = federation(ALL, tiny.small, tmp_path, 6, patience=Patience(attempts=2), limits=limits)
    there.grid.fault = lies(there, lie)
    result = go(there)
    assert [(f.client, f.stage) for f in result.failures] == [("c2", stage)]
    assert said in result.failures[0].error
    assert same(result.model, local(ALL, without="c2").model)
    worked = [m.metadata.dst_node_id for m in there.grid.sent if works(m)]
    assert sorted(worked) == [100, 101, *[102] * times, 103, 104, 105]


def test_a_bomb_is_refused_before_it_goes_off(tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6)
    found = []
    there.grid.fault = lambda at, m, r: (found.append(r) if works(m) else None, [(there.time.seconds, r)])[1]
    go(there)
    lying = bomb(found[0])
    tracemalloc.start()
    try:
        with pytest.raises(PacketError, match="at most 1000000 are allowed"), bounded(1_000_000):
            lying.inflated()
        assert tracemalloc.get_traced_memory()[1] < BOMB / 10
    finally:
        tracemalloc.stop()
    assert Array.inflate.__func__.__module__.startswith("flwr")  # nothing of it stays


def test_the_bound_is_that_of_one_message():
    content = RecordDict({"a": pack({}, [Part({}, Packet({"x": torch.ones(100)}))])["0"]})
    with bounded(400):
        for _ in range(3):
            over_the_wire(Message(content, 1, "train"))
    with pytest.raises(PacketError, match="holds 400 bytes, at most 399"), bounded(399):
        over_the_wire(Message(content, 1, "train"))


def test_a_reply_to_the_message_of_another_is_refused(tmp_path):
    """What a reply says of itself is the sender's choice: here that it comes from c3's node and answers its message."""
    there = federation(ALL, tiny.small, tmp_path, 6)
    names: dict[int, str] = {}
    push = there.grid.push_messages

    def push_messages(messages):
        (found,) = push(messages)
        if works(messages[0]):
            names[messages[0].metadata.dst_node_id] = found
        return [found]

    def forged(node, message, reply):
        if not works(message) or node != 102:
            return [(0.0, reply)]
        true = reply.metadata.reply_to_message_id
        about, (part,) = unpack(reply.content)
        reply.content = pack(about, [Part({**part.head, "client": "c3"}, part.packet)])
        reply.metadata.__dict__["_reply_to_message_id"] = names[103]
        reply.metadata.__dict__["_src_node_id"] = 103
        lying = Deflated.of(reply)
        lying.reply_to = true
        return [(0.0, lying)]

    there.grid.push_messages, there.grid.fault = push_messages, forged
    result = go(there)
    assert [(f.client, f.error) for f in result.failures] == [("c2", "client 'c2': another node answered in its place")]
    assert same(result.model, local(ALL, without="c2").model)


def test_a_lying_introduction_keeps_nobody_else_out(tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6)

    def fault(node, message, reply):
        if node != 102:
            return [(0.0, reply)]
        lying = Deflated.of(reply)
        name = next(n for n, c in lying.contents.items() if c.startswith(b"ConfigRecord "))
        lying.contents[name] = with_body(lying.contents[name], lambda _: b"\xff\xff")
        return [(0.0, lying)]

    there.grid.fault = fault
    with pytest.raises(RunError, match=r"5 of 6 clients are there; missing 'c2'; node 102 was refused: .*received"):
        there.engine.wait(5)
    assert len(there.grid.sent) == 6


# numbers


HUGE = {"a scalar": ("scalars", 10**400), "its time": ("seconds", 10**400), "minus": ("scalars", -(10**30))}


@pytest.mark.parametrize("name", HUGE)
def test_numbers_that_overflow_are_refused(name, tmp_path):
    where, value = HUGE[name]
    there = federation(ALL, tiny.small, tmp_path, 6)

    def huge(reply: Message) -> Message:
        def change(about, parts):
            head, packet = parts[0].head, parts[0].packet
            if where == "seconds":
                return pack(about, [Part({**head, "seconds": value}, packet)])
            scalars = {n: value if isinstance(v, int) else v for n, v in packet.scalars.items()}
            assert scalars != packet.scalars
            return pack(about, [Part(head, Packet(packet.tensors, scalars, packet.blobs))])

        return reply_with(over_the_wire(reply), change)

    there.grid.fault = lies(there, huge)
    result = go(there)
    assert [(f.client, f.stage) for f in result.failures] == [("c2", "reply")]
    assert same(result.model, local(ALL, without="c2").model)


def test_a_whole_number_of_more_than_63_bits_is_none():
    layout = Layout(scalars={"n": int, "x": float})
    layout.check(Packet(scalars={"n": 2**63 - 1, "x": -(2**63)}), "c")
    for wrong in ({"n": 2**63, "x": 0.0}, {"n": 0, "x": 10**400}):
        with pytest.raises(PacketError, match=r"client 'c': scalar '[nx]' has (64|1329) bits, expected at most 63"):
            layout.check(Packet(scalars=wrong), "c")


def test_an_error_is_not_as_long_as_its_sender_likes(tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6)
    names = {f"{i:0900}": torch.ones(1) for i in range(500)}

    def long(reply: Message) -> Message:
        return reply_with(reply, lambda a, p: pack(a, [Part(p[0].head, Packet(names, p[0].packet.scalars))]))

    there.grid.fault = lies(there, long)
    (failure,) = go(there).failures
    assert failure.error.startswith("client 'c2': tensors differ from what was agreed: missing ['0.bias'")
    assert len(failure.error) <= 2000


def test_what_a_node_says_is_printable(tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6)
    said = {"failure": {"stage": "node", "error": "\x1b[2J\ud800 gone", "traceback": "a\x07\nb\udfff"}}
    there.grid.fault = lies(there, lambda r: reply_with(r, lambda a, p: pack(a, [Part({**p[0].head, **said})])))
    (failure,) = go(there).failures
    assert (failure.error, failure.traceback) == ("?[2J? gone", "a?\nb?")


# reports of clients that judge themselves


REPORTS = {
    "tensors": (Packet({"x": torch.ones(1)}), "holds tensors or blobs"),
    "blobs": (Packet(blobs={"x": b""}), "holds tensors or blobs"),
    "too many": (Packet(scalars={f"m{i}": 1.0 for i in range(201)}), "has 201 names"),
    "too long": (Packet(scalars={"m" * 101: 1.0}), "which is no name of a metric"),
    "no name": (Packet(scalars={"a\nb": 1.0}), "which is no name of a metric"),
    "huge": (Packet(scalars={"loss": 10**400}), "has 1329 bits"),
    "fewer than none": (Packet(scalars={"examples": -3.0, "loss": 1.0}), "number of examples is -3.0"),
    "no number": (Packet(scalars={"examples": float("nan"), "loss": 1.0}), "number of examples is nan"),
    "endless": (Packet(scalars={"examples": float("inf"), "loss": 1.0}), "number of examples is inf"),
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_that_cannot_be_averaged_is_refused(name):
    packet, said = REPORTS[name]
    found = reported(Reply("c2", packet))
    assert isinstance(found, Failure)
    assert (found.client, found.stage) == ("c2", "reply")
    assert found.error.startswith("client 'c2': ")
    assert said in found.error


def test_a_report_of_numbers_is_taken_and_texts_are_left_out():
    packet = Packet(scalars={"examples": 3, "loss": float("nan"), "hr@10": True, "note": "x"})
    found = reported(Reply("c", packet))
    assert found.keys() == {"examples", "loss", "hr@10"}
    assert (found["examples"], found["hr@10"]) == (3.0, 1.0)
    failure = Failure("c", "node", "away")
    assert reported(failure) is failure


def test_lying_reports_end_no_run(tmp_path):
    """One client says that it judged on minus as many examples as another; their sum would be nothing."""
    there = federation(Remembering(), tiny.small, tmp_path, 6)

    def lie(reply: Message) -> Message:
        about, (part,) = unpack(reply.content)
        if about["work"] != "client_evaluate":
            return reply
        scalars = {**part.packet.scalars, "examples": -3.0}
        return reply_with(reply, lambda a, p: pack(a, [Part(p[0].head, Packet(scalars=scalars))]))

    there.grid.fault = lies(there, lie)
    result = go(there, Remembering(), evaluate=Evaluate())
    assert [(f.client, f.stage) for f in result.failures] == [("c2", "reply")]
    assert "local/accuracy" in result.metrics[-1]


def test_lying_rankings_end_no_run(tmp_path):
    """The names are those that most report, even if the first who is heard lies."""
    method = FedRKG(interval=1)
    there = federation(method, small.task, tmp_path, 6)

    def lie(reply: Message) -> Message:
        about, _ = unpack(reply.content)
        if about["work"] != "client_evaluate":
            return reply
        return reply_with(reply, lambda a, p: pack(a, [Part(p[0].head, Packet(scalars={"wrong": 1.0}))]))

    there.grid.fault = lies(there, lie, node=100)
    result = run(method, small.task(), rounds=1, engine=there.engine)
    (failure,) = result.failures
    assert (failure.client, failure.stage) == ("c0", "reply")
    assert "other names than those of the others: ['wrong']" in failure.error
    assert "ranking/hr@10" in result.metrics[-1]


# a thousand of them


def mutated(rng: random.Random, reply: Message) -> Deflated:
    """A reply some of whose bytes, as they lie in the SuperLink, are others, more or fewer."""
    lying = Deflated.of(reply)
    name = rng.choice(list(lying.contents))
    if name == lying.name and rng.random() < 0.8:  # else the whole message would be it half of the time
        name = rng.choice(list(lying.contents))

    of_weights = lying.contents[name].startswith(b"ArrayChunk ")

    def change(body: bytes) -> bytes:
        if not body:
            return rng.randbytes(8)
        where = rng.randrange(len(body))
        kinds = (
            ["cut", "insert", "cut", "insert", "cut"] if of_weights else ["flip", "cut", "insert", "replace", "number"]
        )
        kind = rng.choice(kinds)  # other weights of the right number are a reply that an honest client might send
        if kind == "flip":
            return body[:where] + bytes([body[where] ^ 1 << rng.randrange(8)]) + body[where + 1 :]
        if kind == "cut":
            return body[:where]
        if kind == "insert":
            return body[:where] + rng.randbytes(rng.randrange(1, 64)) + body[where:]
        if kind == "number":
            return body.replace(b"1", str(rng.choice([-1, 10**9, 10**30, 10**400])).encode())
        return rng.randbytes(len(body))

    lying.contents[name] = with_body(lying.contents[name], change)
    if rng.random() < 0.1:
        del lying.contents[rng.choice(list(lying.contents))]
    return lying


def test_a_thousand_replies_with_mutilated_bytes(tmp_path):
    """In each of 125 rounds eight of twelve nodes send nonsense; the other four are never missed."""
    rng = random.Random(7)
    clients, liars = 12, range(100, 108)

    def make():
        return tiny.small(clients=clients)

    there = federation(ALL, make, tmp_path, clients, patience=Patience(attempts=1))
    there.engine.wait(1)
    honest: dict[int, Part] = {}
    sent = [0]

    def quick(node: int, slow: Machine) -> Machine:
        """What the node would do, without training again each time."""

        def app(message: Message, context: object) -> Message:
            if node not in honest:
                reply = slow.app(message, context)
                honest[node] = unpack(reply.content)[1][0]
                return reply
            about, _ = unpack(message.content)
            echo = {key: about[key] for key in ("work", "round", "run")}
            return Message(pack(echo, [honest[node]]), reply_to=message)

        return Machine(app, slow.config)

    for node in liars:
        there.grid.machines[node] = quick(node, there.grid.machines[node])

    def fault(node, message, reply):
        if not works(message) or node not in liars:
            return [(there.time.seconds, reply)]
        sent[0] += 1
        return [(there.time.seconds, mutated(rng, reply))]

    there.grid.fault = fault
    tracemalloc.start()
    try:
        result = run(ALL, make(), rounds=125, engine=there.engine, evaluate=UNJUDGED, min_replies=4)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sent[0] == 1000
    failed = {f.client for f in result.failures}
    assert failed <= {f"c{i}" for i in range(8)}
    assert all(line["clients/replied"] >= 4 for line in result.metrics)
    assert (
        len(result.failures) > 900
    )  # the others changed what nobody reads, such as how a name is spelled within Flower's own form
    assert {f.stage for f in result.failures} <= {"reply", "node"}
    assert peak < 50_000_000


def test_no_record_of_flower_passes_for_one_of_fedfi(tmp_path):
    there = federation(ALL, tiny.small, tmp_path, 6)
    there.grid.machines[102] = Machine(
        lambda m, c: Message(RecordDict({"fedfi": ConfigRecord({"wire": 1})}), reply_to=m), {}
    )
    with pytest.raises(RunError, match="node 102 was refused: the message's head is not a text"):
        there.engine.wait(1)
