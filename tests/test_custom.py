"""A custom model starts from a known one: derived dimensions follow its changes, the rest stays."""

from __future__ import annotations

from estimator import catalog, resized
from estimator.contract.setups import parse, write_fields
from estimator.families.custom import DIMENSIONS
from estimator.families.model_tree import total_parameters
from estimator.values.keys import DEFAULT
from tests.rows import for_each
from tests.test_hf_config import LLAMA

LLAMA_8B = "meta-llama/Llama-3.1-8B"
OPT = "facebook/opt-1.3b"


def test_llama_8b_with_the_dimensions_of_70b_is_llama_70b():
    larger = {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    }
    model = resized(catalog.model(LLAMA_8B), larger)
    assert (
        total_parameters(model) == catalog.models()["meta-llama/Llama-3.1-70B"].published_parameters
    )
    assert model.hub_id == ""
    assert model.notes == (
        "A custom model: meta-llama/Llama-3.1-8B with hidden_size 8192, intermediate_size 28672, "
        "num_hidden_layers 80, num_attention_heads 64.",
    )


@for_each("entry", catalog.models().values())
def test_repeating_a_model_s_own_dimensions_changes_nothing(entry):
    own = {name: getattr(entry.model, name) for name in DIMENSIONS}
    if own["max_position_embeddings"] == 0:
        del own["max_position_embeddings"]
    assert total_parameters(resized(entry.model, own)) == entry.parameters


def test_gpt2_with_the_dimensions_of_gpt2_xl_is_gpt2_xl():
    wider = {
        "hidden_size": 1600,
        "intermediate_size": 6400,
        "num_hidden_layers": 48,
        "num_attention_heads": 25,
    }
    model = resized(catalog.model("openai-community/gpt2"), wider)
    xl = catalog.model("openai-community/gpt2-xl")
    assert total_parameters(model) == total_parameters(xl)
    assert (model.head_dim, model.num_key_value_heads) == (64, 25)


def test_learned_position_table_follows_the_context():
    model = resized(catalog.model(OPT), {"max_position_embeddings": 4096})
    assert model.learned_positions == 4098  # OPT's table has two rows more
    assert model.position_limit == 4096


def test_window_pattern_repeats():
    known = catalog.model("google/gemma-3-4b-it")
    model = resized(known, {"num_hidden_layers": 40})
    assert model.layer_types[:34] == known.layer_types
    assert model.layer_types[34:] == tuple(
        "full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(34, 40)
    )


def test_bloom_s_mlp_follows_its_width():
    model = resized(catalog.model("bigscience/bloom-560m"), {"hidden_size": 2048})
    assert (model.intermediate_size, model.head_dim) == (8192, 128)


# --- in the contract ----------------------------------------------------------------------------


def test_contract_expresses_a_custom_model_with_like():
    given = {"like": LLAMA_8B, "num_hidden_layers": 16}
    model = parse({"model": given})[0]
    assert model.num_hidden_layers == 16
    written = write_fields(model, None, DEFAULT)
    assert written == {"model": given}
    assert parse(written)[0] == model


def test_like_may_be_a_config_or_a_fetched_model():
    of_config = parse({"model": {"like": LLAMA, "num_hidden_layers": 16}})[0]
    assert of_config.hidden_size == LLAMA["hidden_size"]
    known = {"me/llama": catalog.model(LLAMA_8B)}
    of_known = parse({"model": {"like": "me/llama", "num_hidden_layers": 16}}, known)[0]
    assert of_known.hidden_size == 4096


def test_catalogue_takes_precedence_over_fetched_models():
    stranger = catalog.model(OPT)
    assert parse({"model": LLAMA_8B}, {LLAMA_8B: stranger})[0] == catalog.model(LLAMA_8B)
    assert parse({"model": "me/opt"}, {"me/opt": stranger})[0] is stranger
