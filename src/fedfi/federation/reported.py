"""What clients report when they judge a model themselves: checked before it is counted, like every other reply.

Which names a method reports is its own affair, so there is no layout to hold a report against. What is checked is that
it is a short table of numbers that can be averaged.
"""

from __future__ import annotations

import math

from fedfi.federation.algorithm import Failure, Reply
from fedfi.federation.packet import PacketError

_LONGEST = 100
_MOST = 200
_LARGEST = 2**63


def reported(reply: Reply | Failure) -> dict[str, float] | Failure:
    """The numbers of a client's report, or why there are none; texts, which are notes, are left out.

    ``examples``, how much the others weigh, is a finite number of at least 0. Others may be infinite or not a number:
    that is how the loss of a model that diverged looks.
    """
    if isinstance(reply, Failure):
        return reply
    try:
        return _numbers(reply)
    except PacketError as error:
        return Failure(reply.client, "reply", str(error))


def _numbers(reply: Reply) -> dict[str, float]:
    packet, sender = reply.packet, f"client {reply.client!r}"
    if packet.tensors or packet.blobs:
        raise PacketError(f"{sender}: its report holds tensors or blobs, expected numbers alone")
    if len(packet.scalars) > _MOST:
        raise PacketError(f"{sender}: its report has {len(packet.scalars)} names, expected at most {_MOST}")
    found = {}
    for name, value in packet.scalars.items():
        if not 0 < len(name) <= _LONGEST or not name.isprintable():
            raise PacketError(f"{sender}: its report names {name[:100]!r}, which is no name of a metric")
        if isinstance(value, str):
            continue
        if isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
            raise PacketError(f"{sender}: its {name!r} has {value.bit_length()} bits, expected at most 63")
        found[name] = float(value)
    count = found.get("examples", 0.0)
    if not math.isfinite(count) or count < 0:
        raise PacketError(f"{sender}: its number of examples is {count}")
    return found
