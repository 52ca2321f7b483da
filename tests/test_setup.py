"""A setup made of facets: its keys, its equality, and the values it refuses."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from estimator.values.declaration import rows
from estimator.values.facets.adapters import Adapters
from estimator.values.facets.batch import Batch
from estimator.values.facets.mesh import Mesh
from estimator.values.keys import DEFAULT, KEYS, LARGEST
from estimator.values.kinds import WholeNumber
from estimator.values.methods import Method
from estimator.values.setup import FACETS, KEY_FACET, TrainingSetup
from estimator.values.strategies import Strategy
from tests.rows import for_each

IN_SETUP = for_each("name", list(KEY_FACET))


def test_no_two_facets_declare_the_same_name():
    names = [row.name for of, _ in FACETS.values() for row in rows(of)]
    asked = [
        name
        for of, _ in FACETS.values()
        for name, value in vars(of).items()
        if type(value) is property
    ]
    assert len({*names, *asked}) == len(names) + len(asked)
    assert not {*names, *asked} & set(FACETS), "a facet would hide it"


@IN_SETUP
def test_a_key_can_be_read_from_its_facet_and_from_the_setup(name):
    assert DEFAULT.value(name) is getattr(getattr(DEFAULT, KEY_FACET[name]), name)


def test_a_key_can_be_given_with_its_facet_and_replaced_alone():
    setup = TrainingSetup(mesh=Mesh(num_gpus=4, strategy=Strategy.DDP), num_gpus=2, lora_r=8)
    assert setup.mesh == Mesh(num_gpus=2, strategy=Strategy.DDP)
    changed = replace(setup, max_length=2048)
    assert changed.batch == Batch(max_length=2048)
    assert changed.adapters is setup.adapters, "facets that nothing changes are shared"
    assert changed.mesh is setup.mesh


def test_equal_setups_are_the_same_cache_key():
    setup = TrainingSetup(num_gpus=4, method=Method.LORA)
    again = TrainingSetup(mesh=Mesh(num_gpus=4), adapters=Adapters(method=Method.LORA))
    assert setup == again
    assert hash(setup) == hash(again)
    assert setup != replace(again, padded=True)
    assert pickle.loads(pickle.dumps(setup)) == setup


def test_a_string_becomes_its_enum_member():
    assert TrainingSetup(method="lora").adapters.method is Method.LORA


def test_an_unknown_key_is_refused():
    with pytest.raises(TypeError, match="lora_rank"):
        TrainingSetup(lora_rank=8)


@for_each("name", [key.name for key in KEYS if key.in_setup])
def test_a_setup_refuses_invalid_values(name):
    for wrong in ({"": {}}, -1, float("nan"), 10**30):
        with pytest.raises(ValueError, match=f"^{name} "):
            replace(DEFAULT, **{name: wrong})


@for_each("name", [key.name for key in KEYS if isinstance(key.kind, WholeNumber)])
def test_a_count_is_limited_to_its_largest_value(name):
    if not next(key for key in KEYS if key.name == name).modelled:
        assert replace(DEFAULT, **{name: LARGEST[name]}).value(name) == LARGEST[name]
    with pytest.raises(ValueError, match=name):
        replace(DEFAULT, **{name: LARGEST[name] + 1})
