"""Where options of merges act: what a method declares is what its code reads."""

from __future__ import annotations

import copy
import dataclasses
from typing import get_args, get_origin

import pytest
from tests.oneshot import cases
from tests.oneshot.test_improving import METHODS

from fedfi import registry
from fedfi.errors import InputError
from fedfi.federation.task import cross_entropy
from fedfi.oneshot.acting import measuring, unheeded_base, unmeasured, without_effect
from fedfi.oneshot.average import Average
from fedfi.oneshot.fedfiot import FedFiOT
from fedfi.oneshot.method import Merging, OneShot
from fedfi.oneshot.statistics import measure
from fedfi.oneshot.ties import TIES
from fedfi.validation import fields_of

SPEC = cases.SMALL
KINDS = [registry.algorithm(name) for name, entry in registry.entries().items() if entry.family == "oneshot"]


def merged(method, where):
    server = cases.server(SPEC, lambda: cases.network("mlp"), examples=12)
    where(server)
    examples, networks = server.examples, [cases.network("mlp", i) for i in range(2)]
    found = [measure(method.measures(), network, examples, cross_entropy) for network in networks]
    measures = {kind: [each[kind] for each in found] for kind in method.measures()}
    uploads = cases.uploads(networks, measures, examples=[12, 12])
    return method.merged(uploads, cases.context(server, before=cases.tree_of(cases.network("mlp", 5))))


def reading(method):
    """The method, and a set that gets the names of the options that are read."""
    kind, read = type(method), set()
    names = set(fields_of(kind))

    def get(self, name):
        read.update({name} & names)
        return object.__getattribute__(self, name)

    spied = copy.copy(method)
    object.__setattr__(spied, "__class__", type(kind)(kind.__name__, (kind,), {"__getattribute__": get}))
    return spied, read


def test_all_merges_are_tried():
    assert {kind for kind, _ in METHODS} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_name_options_and_their_values(kind):
    fields = fields_of(kind)
    for row in kind.acting:
        for option, values in {row.option: row.values, **row.given}.items():
            annotation = fields[option].annotation
            choices = get_args(annotation) if get_origin(annotation) else (False, True)
            assert set(values) <= set(choices)


@pytest.mark.parametrize(("kind", "options"), METHODS)
def test_what_is_not_read_is_declared(kind, options):
    """With examples and a start: an option that no merge reads is declared as one without effect."""
    method = kind(**options)
    spied, read = reading(method)
    merged(spied, lambda server: None)
    for option in fields_of(kind):
        assert option in read or without_effect(method, [option], examples=True, base=True), option


@pytest.mark.parametrize(("kind", "options"), METHODS)
def test_channels_are_needed_where_that_is_said(kind, options):
    def refuse(server):
        def broken(*_):
            raise InputError("no channels")

        object.__setattr__(server, "__class__", type("Blind", (type(server),), {"wiring": property(broken)}))

    method = kind(**options)
    if kind.needs_channels:
        with pytest.raises(InputError, match="no channels"):
            merged(method, refuse)
    else:
        merged(method, refuse)


@pytest.mark.parametrize("kind", KINDS)
def test_what_changes_measures_is_what_a_party_heeds(kind):
    found = {option for option in fields_of(kind) if measuring(kind(), option)}
    assert found == {"class_prior", "fisher", "curvature"} & set(fields_of(kind)) - (
        {"class_prior"} if kind().needs() == ("classes",) else set()
    )


def test_candidates_need_examples_but_for_the_first():
    several, one = FedFiOT(rho=(0.3, 0.2)), FedFiOT(rho=(0.3,))
    assert "of 2 candidates" in without_effect(several, ["rho"], examples=False, base=False)
    assert not without_effect(several, ["rho"], examples=True, base=False)
    assert not without_effect(one, ["rho"], examples=False, base=False)
    assert not without_effect(several, [], examples=False, base=False)  # by default there are three


def test_a_base_is_looked_at_by_some():
    assert not unheeded_base(TIES(), "ties")
    assert not unheeded_base(FedFiOT(reference="broadcast"), "fedfiot")
    assert unheeded_base(Average(), "average")
    assert "broadcast" in unheeded_base(FedFiOT(), "fedfiot")


def test_a_method_of_ones_own_declares_nothing():
    class Own(OneShot):
        def needs(self):
            return ()

        def merge(self, uploads, context):
            raise NotImplementedError

    assert issubclass(Own, Merging)
    assert "--bits 32" in unmeasured(Own(upload_bits=32), ["upload_bits"])
    assert not without_effect(Own(weights="uniform"), ["weights"], examples=False, base=False)


@pytest.mark.parametrize("options", [{"rho": (1.5,)}, {"damping": (1e30,)}])
def test_weights_stay_those_of_the_fisher_information(options):
    with pytest.raises(InputError, match=r"must be at most 1 \(nearest valid: 1\)"):
        FedFiOT(**options)
    assert dataclasses.replace(FedFiOT(), rho=(1.0,), damping=(1.0,)).rho == (1.0,)


def test_examples_are_called_what_who_merges_calls_them():
    server = cases.server(SPEC, lambda: cases.network("mlp"))
    assert "(data.validation is 0)" in str(server.without_examples("x"))
    server = dataclasses.replace(server, absent="--validate is not given")
    assert "(--validate is not given)" in str(server.without_examples("x"))
