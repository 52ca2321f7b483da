"""Names, order, classes and bytes of the module tree, compared with the real classes on the meta device.

Expected values come from transformers 5.23 and accelerate 1.15 themselves, run here.
"""

from __future__ import annotations

import pytest
from test_parameters_meta import IDS, VARIANTS, build

from estimator.families.model_tree import layer_class, module_tree
from estimator.parallel.placement import ACCELERATE, sizes_in_bits

torch = pytest.importorskip("torch")
accelerate = pytest.importorskip("accelerate")


@pytest.mark.parametrize(("model_type", "keys"), VARIANTS, ids=IDS)
def test_modules_have_the_order_of_the_real_class(model_type, keys):
    real, model = build(model_type, keys)
    ours = [(node.name, node.class_name) for node in module_tree(model).walk()][1:]
    theirs = [
        (name, type(module).__name__ if any(module.children()) else "")
        for name, module in real.named_modules()
    ][1:]
    assert ours == theirs
    # Gemma 4's towers also have named layers
    inside = {type(module).__name__ for module in real.modules()}
    assert {layer_class(model)} == real._no_split_modules & inside


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize(("model_type", "keys"), VARIANTS, ids=IDS)
def test_every_module_has_the_bytes_that_accelerate_counts(model_type, keys, dtype):
    real, model = build(model_type, keys)
    theirs = accelerate.utils.compute_module_sizes(real, dtype=dtype)
    ours = sizes_in_bits(module_tree(model), ACCELERATE[dtype])
    assert ours == {name: 8 * theirs[name] for name in ours}
