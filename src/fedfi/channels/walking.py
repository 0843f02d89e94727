"""Walks a traced graph with the rules, and leaves ties, freezes and roles in a ledger."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, fx
from torch.export.graph_signature import InputKind

from fedfi.channels import rules_gathering, rules_mixing, rules_moving
from fedfi.channels.calls import RULES, Call, Result, is_pointwise, opaque, tensor_shapes, values
from fedfi.channels.ledger import Ledger
from fedfi.channels.tracing import Traced
from fedfi.channels.values import Value, freeze, known, labels_of, parameter, plain

_LOADED = (rules_gathering, rules_mixing, rules_moving)
_CHECKS = ("_assert", "sym_constrain")
_INLINED = ("wrap_with_autocast", "wrap_with_set_grad_enabled")


@dataclass(frozen=True)
class Norm:
    """A normalisation over channels that knows their number.

    Args:
        module: The name of the module that holds it.
        axis: Which of its normalised axes.
        nodes: The nodes along it, negative where there is no channel.
    """

    module: str
    axis: int
    nodes: Tensor


@dataclass(frozen=True)
class Walk:
    """What a walk through the graph found.

    Args:
        ledger: Ties, freezes and roles.
        logits: The nodes of the classes, ``[classes]``, where the output is one tensor with channels along one axis.
        visits: For each operation whose result holds channels, their nodes.
        norms: Normalisations over channels.
    """

    ledger: Ledger
    logits: Tensor | None
    visits: list[Tensor]
    norms: list[Norm]


def walk(traced: Traced, whole: frozenset[str] = frozenset()) -> Walk:
    """Applies the rules in the order of the graph.

    Args:
        traced: The graph.
        whole: Modules whose grouped operation has one group left of several: it is one unit.
    """
    ledger = Ledger({name: tuple(tensor.shape) for name, tensor in traced.tensors.items()}, whole)
    found = Walk(ledger, None, [], [])
    results = _graph(found, traced.program.graph_module, _placeholders(traced, ledger))
    for value in results:
        freeze(ledger, value, "is the module's output")
    return Walk(ledger, _logits(ledger, results), found.visits, found.norms)


def _graph(found: Walk, module: fx.GraphModule, given: Mapping[str, Any]) -> list[Value]:
    """Walks one graph; returns the tensors that it returns.

    Args:
        found: Filled on the way.
        module: Holds the graph, and graphs inside it.
        given: What some of its placeholders stand for, by name.
    """
    known_values: dict[fx.Node, Any] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder":
            known_values[node] = given.get(node.name, _argument(found.ledger, node.meta.get("val")))
        elif node.op == "output":
            return values([known_values[each] for each in node.all_input_nodes])
        elif node.op == "call_function" and _name(node.target) in _INLINED:
            known_values[node] = _inlined(found, module, known_values, node)
        elif node.op == "call_function":
            known_values[node] = _step(found, known_values, node)
        else:  # a graph inside this one: of a branch, a loop, or operations in other circumstances
            known_values[node] = None
    return []


def _inlined(found: Walk, module: fx.GraphModule, known_values: dict[fx.Node, Any], node: fx.Node) -> list[Value]:
    """Operations under autocast or another mode of gradients: they are what they are without."""
    place = next(i for i, each in enumerate(node.args) if isinstance(each, fx.Node) and each.op == "get_attr")
    inner: Any = module.get_submodule(str(cast(fx.Node, node.args[place]).target))
    names = [each.name for each in inner.graph.nodes if each.op == "placeholder"]
    operands = fx.node.map_arg(node.args[place + 1 :], lambda each: known_values[each])
    return _graph(found, inner, dict(zip(names, cast(Any, operands), strict=True)))


def _placeholders(traced: Traced, ledger: Ledger) -> dict[str, Value]:
    """What enters the graph that is not an argument of the call."""
    made = {}
    for spec in traced.program.graph_signature.input_specs:
        first = traced.aliases.get(spec.target or "", "")
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER) and first:
            tensor = traced.tensors[first]
            floating = tensor.is_floating_point()
            made[str(spec.arg.name)] = parameter(ledger, first) if floating else plain(ledger, tensor.shape)
        elif spec.kind == InputKind.CONSTANT_TENSOR:
            made[str(spec.arg.name)] = known(ledger, traced.program.constants[str(spec.target)])
    return made


def _argument(ledger: Ledger, meta: Any) -> Any:
    return plain(ledger, meta.shape) if isinstance(meta, Tensor) else meta


def _step(found: Walk, known_values: dict[fx.Node, Any], node: fx.Node) -> Any:
    args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), lambda each: known_values[each])
    args, kwargs = tuple(args), dict(kwargs)
    if node.target is operator.getitem:
        several, place = cast(Any, args[0]), cast(Any, args[1])
        return several[place] if isinstance(several, list | tuple) else several
    target: Any = cast(Any, node.target)
    name = _name(target)
    meta = node.meta.get("val")
    if name.startswith(_CHECKS) or meta is None:
        return None
    if not tensor_shapes(meta):
        return meta
    call = Call(
        found.ledger, name, target, _given(target, args, kwargs), args, kwargs, tensor_shapes(meta),
        _where(node), isinstance(meta, list | tuple),
    )  # fmt: skip
    result = _apply(call)
    for value in values(result):
        if value.name is None and bool((value.layers[0] >= 0).any()):
            found.visits.append(value.layers[0].reshape(-1))
    if name in ("layer_norm", "group_norm", "rms_norm"):
        labels = values(result)[0].layers[0]
        start = 1 if name == "group_norm" else labels.ndim - len(call.given["normalized_shape"])
        for axis in [1] if name == "group_norm" else range(start, labels.ndim):
            if labels.shape[axis] > 1:
                nodes = labels.movedim(axis, -1).reshape(-1, labels.shape[axis])[0]
                found.norms.append(Norm(call.where, axis - start, nodes))
    return result


def _apply(call: Call) -> Result:
    if not values([call.args, list(call.kwargs.values())]):
        return rules_moving.made_from_nothing(call)
    if call.name in RULES:
        return RULES[call.name](call)
    if is_pointwise(call.target):
        return rules_moving.pointwise(call)
    return opaque(call)


def _name(target: Any) -> str:
    packet = getattr(target, "overloadpacket", None)
    name = str(packet).rpartition(".")[2] if packet is not None else str(getattr(target, "__name__", target))
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def _given(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    schema = getattr(target, "_schema", None)
    if schema is None:
        return {str(i): each for i, each in enumerate(args)} | kwargs
    given: dict[str, Any] = {}
    for index, argument in enumerate(schema.arguments):
        if index < len(args):
            given[argument.name] = args[index]
        else:
            given[argument.name] = kwargs.get(argument.name, argument.default_value)
    return given


def _where(node: fx.Node) -> str:
    """The name of the innermost module around an operation."""
    stack = node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    return str(path)


def _logits(ledger: Ledger, results: list[Value]) -> Tensor | None:
    if len(results) != 1 or len(results[0].shape) < 2 or results[0].name is not None:
        return None
    labels = labels_of(ledger, results[0])
    long = [axis for axis, length in enumerate(labels.shape) if length > 1]
    if not bool((labels >= 0).all()) or len(long) > 1 or (not long and 1 not in results[0].shape):
        return None
    return labels.reshape(-1)
