"""Generation during training: vLLM's pages and share, TRL's phases, and refusals.

Expected numbers are computed by hand from vllm 0.33.0 and trl 1.16.0, at the lines that each test cites.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks import generation
from estimator.answer.estimate import estimate
from estimator.answer.needs import need
from estimator.answer.overflow import first_overflow, instants
from estimator.families.model_tree import total_parameters
from estimator.families.modules import TINY_LLAMA
from estimator.inference import colocation, engine, kv_cache, paged, seconds, server
from estimator.resident.overhead import context_bytes
from estimator.search.limits import longest_context, smallest_gpu
from estimator.search.ranking import rank_gpus
from estimator.search.remedies import _changes, remedies
from estimator.search.vllm_share import least_share, vllm_shares
from estimator.sources import catalog
from estimator.tools.imported import read_files
from estimator.values.range import Range
from estimator.values.results import Estimate
from estimator.values.setup import TrainingSetup
from estimator.values.specs import Component, Phase, Verdict
from estimator.values.strategies import Strategy

QWEN = catalog.model("Qwen/Qwen2.5-1.5B")
QWEN_7B = catalog.model("Qwen/Qwen2.5-7B")
H100 = catalog.gpu("H100-SXM5-80GB")
GRPO: dict[str, Any] = {
    "objective": "grpo",
    "per_device_train_batch_size": 8,
    "gradient_checkpointing": True,
    "max_length": 1024,
    "max_completion_length": 512,
    "vllm_max_model_length": 1024,
}


def setup(**keys: Any) -> TrainingSetup:
    return TrainingSetup(**(GRPO | {"use_vllm": True} | keys))


def answer(model: Any = QWEN, **keys: Any) -> Estimate:
    return estimate(model, H100, setup(**keys))


# --- pages: vllm v1/kv_cache_interface.py:579, :648, :944; v1/core/kv_cache_planning.py:416, :1536 ---


def test_a_cached_token_takes_keys_and_values_in_every_layer():
    # Llama 3.1 8B: 32 layers, 8 key-value heads of 128, 2 bytes, keys and values: 128 KiB a token
    llama = catalog.model("meta-llama/Llama-3.1-8B")
    assert kv_cache.pages(llama).block_bytes == 16 * 32 * 2 * 8 * 128 * 2
    assert kv_cache.sequence_bytes(llama, 1) == 131_072
    assert kv_cache.pages(llama, 8).block_bytes * 8 == kv_cache.pages(llama).block_bytes
    assert kv_cache.pages(llama, 16) == kv_cache.pages(llama, 8)  # a head is never split


def test_latent_attention_caches_one_vector_that_is_not_split():
    # DeepSeek V2 Lite: latent 512 and 64 rotary, 27 layers
    deepseek = catalog.model("deepseek-ai/DeepSeek-V2-Lite")
    assert kv_cache.pages(deepseek).block_bytes == 16 * 27 * (512 + 64) * 2
    assert kv_cache.pages(deepseek, 4) == kv_cache.pages(deepseek)


def test_windows_cache_tokens_in_flight_and_one_more_block():
    # Gemma 3 4B: 29 windowed layers of 1,024 tokens and 5 full ones, so 6 groups of 5 and 1 of 5
    gemma = kv_cache.pages(catalog.model("google/gemma-3-4b-it"))
    assert [group.groups for group in gemma.groups] == [6, 1]
    # 1,023 and two batches of 512 in flight are 2,047 tokens: 128 blocks and one; 32,768 tokens are 2,048 blocks
    assert gemma.blocks(32_768, 512) == 6 * 129 + 2048


def test_layers_are_grouped_by_window():
    # gpt-oss 20B: 12 windowed and 12 full layers, two groups
    oss = kv_cache.pages(catalog.model("openai/gpt-oss-20b"))
    assert [group.groups for group in oss.groups] == [1, 1]


def test_attention_block_grows_to_the_size_of_a_state():
    # Qwen3.5 4B: 24 delta-nets of (8192 · 3 + 32 · 128 · 128) · 2 bytes, 8 layers of attention with 4,096 a token
    hybrid = catalog.model("Qwen/Qwen3.5-4B")
    state = (8192 * 3 + 32 * 128 * 128) * 2
    tokens = -(-state // (16 * 4096)) * 16
    found = kv_cache.pages(hybrid)
    assert found.block_bytes == 8 * tokens * 4096
    assert found.blocks(tokens + 1, 4096) == 3 + 2


def test_layers_that_reuse_keys_cache_nothing():
    # Gemma 4 E2B: 35 layers, of which the last 20 reuse keys and values
    layers = sum(
        count for _, count in kv_cache.layer_caches(catalog.model("google/gemma-4-E2B-it"))
    )
    assert layers == 15


# --- the engine: v1/worker/gpu_worker.py:641, v1/worker/utils.py:724 ---


def test_the_share_is_of_the_whole_card_rounded_up():
    assert engine.asked_bytes(10**9 + 1, 0.3) == 300_000_001


def test_weights_are_16_bits_and_split_between_ranks():
    alone, of_two = (engine.engine_weight_bytes(QWEN_7B, ranks) for ranks in (1, 2))
    assert alone == 2 * total_parameters(QWEN_7B)
    assert alone / 2 < of_two < alone / 2 * 1.001  # norms are on both
    tiny = engine.engine_weight_bytes(TINY_LLAMA, 2)
    # by hand: embedding padded to 64 rows, 32 · 8; head 5 · 8; norms whole; k, v whole (1 head), q, o, MLP halved
    layer = 2 * 8 + 2 * (8 * 4) + (2 * 8 * 8 + 3 * 8 * 16) // 2
    assert tiny == 2 * (32 * 8 + 5 * 8 + 8 + 2 * layer)


def test_the_cache_is_what_the_share_leaves():
    own = colocation.colocated_engine(QWEN, H100, setup())
    assert own.asked == engine.asked_bytes(H100.memory_bytes, 0.3)
    low, high = own.cache
    assert own.weights + own.buffers + own.activations + own.most + low == own.asked
    assert high - low == own.most - own.least > 0
    # 8 rows of 1,024 tokens: 64 blocks each
    assert (own.rows, own.blocks_per_row, own.at_once) == (8, 64, (8, 8))


def test_concurrent_rows_follow_the_generation_and_the_engine_s_gpus():
    # trl trainer/grpo_trainer.py:1122
    two = setup(
        num_gpus=4,
        strategy="zero3",
        vllm_tensor_parallel_size=2,
        gradient_accumulation_steps=4,
    )
    assert colocation.colocated_engine(QWEN, H100, two).rows == 8 * 4 * 2


def test_captured_sizes_match_vllm():
    # config/vllm.py:2398: 1, 2, 4, 8, 16, .., 248 (31), 256, 272, .., 512 (17): 51 sizes, as in vllm pull request 48214
    assert engine.graph_count(256) == 51 + (3 + 31 + 1)


def test_a_cache_has_one_block_less_than_its_bytes_allow():
    own = colocation.colocated_engine(QWEN, H100, setup())
    assert own.fitting(own.block * (3 * own.blocks_per_row + 1)) == 3
    assert own.fitting(own.block * 3 * own.blocks_per_row) == 2


def test_asking_returns_the_smallest_share_for_a_number_of_rows():
    one = colocation.colocated_engine(QWEN, H100, setup())
    least = replace(one, asked=one.asking(5))
    assert least.at_once[0] == 5
    assert replace(one, asked=one.asking(5) - 1).at_once[0] == 4


# --- with the trainer: trl generation/vllm_generation.py, trainer/grpo_trainer.py ---


def test_without_sleep_the_engine_adds_to_the_training_step():
    with_engine, alone = answer(), answer(vllm_mode="server")
    own = colocation.colocated_engine(QWEN, H100, setup())
    assert with_engine.peak.bytes == alone.peak.bytes + own.kept
    assert with_engine.peak.resident[Component.INFERENCE_ENGINE] == own.kept


def test_with_sleep_mode_the_peak_is_the_larger_of_step_and_generation():
    asleep, alone = answer(vllm_enable_sleep_mode=True), answer(vllm_mode="server")
    own = colocation.colocated_engine(QWEN, H100, setup())
    assert asleep.peak.bytes == alone.peak.bytes + own.buffers + own.graphs
    between = alone.timeline.resident
    assert asleep.phases[Phase.GENERATION].bytes == sum(between.values()) + own.asked
    assert asleep.decisive.bytes == max(asleep.peak.bytes, asleep.phases[Phase.GENERATION].bytes)


def test_need_matches_estimate():
    for keys in ({}, {"vllm_enable_sleep_mode": True}, {"use_vllm": False}, {"method": "lora"}):
        whole = answer(**keys)
        assert need(QWEN, H100, setup(**keys)) == Range(whole.need_low_bytes, whole.need_high_bytes)


def test_engine_memory_adds_no_slack():
    small, large = answer(vllm_gpu_memory_utilization=0.2), answer(vllm_gpu_memory_utilization=0.4)
    more = large.phases[Phase.GENERATION].bytes - small.phases[Phase.GENERATION].bytes
    assert large.need_high_bytes - small.need_high_bytes == more


def test_weights_are_gathered_one_by_one_or_whole():
    # vllm_generation.py:455: one at a time; with adapters the whole model under stage 3
    keys = {"num_gpus": 8, "strategy": Strategy.ZERO3}
    full, lora = answer(QWEN_7B, **keys), answer(QWEN_7B, method="lora", **keys)
    embedding = 152_064 * 3584 * 2
    assert full.phases[Phase.PUSH_WEIGHTS].resident[Component.TEMPORARIES] == embedding
    own = lora.timeline.resident[Component.WEIGHTS]
    merged = 2 * 4 * 18_944 * 3584  # the adapter product of an MLP's linear, and its scaled copy
    whole = 2 * total_parameters(QWEN_7B)
    gathered = lora.phases[Phase.PUSH_WEIGHTS].resident[Component.TEMPORARIES]
    assert gathered - (whole - own) - merged in range(-4096, 2**20)


def test_transformers_caches_every_row_of_a_generation():
    keys: dict[str, Any] = {"use_vllm": False, "max_completion_length": 1008}
    own = answer(**keys).phases[Phase.GENERATION]
    # 28 layers, 2 key-value heads of 128: 28,672 bytes a token, 8 rows of 1,024
    assert own.resident[Component.INFERENCE_ENGINE] == 28_672 * 8 * 1024
    more = answer(gradient_accumulation_steps=4, **keys).phases[Phase.GENERATION]
    assert more.resident[Component.INFERENCE_ENGINE] == 4 * 28_672 * 8 * 1024


def test_zero3_gathers_the_model_for_generation_by_default():
    keys: dict[str, Any] = {"num_gpus": 8, "strategy": Strategy.ZERO3, "use_vllm": False}
    gathers, layerwise = (
        answer(QWEN_7B, ds3_gather_for_generation=gather, **keys).phases[Phase.GENERATION].bytes
        for gather in (True, False)
    )
    assert gathers - layerwise > 10 * 2**30


def test_server_mode_leaves_the_gpu_to_the_trainer():
    served = answer(vllm_mode="server")
    assert Component.INFERENCE_ENGINE not in served.peak.resident
    assert Phase.GENERATION not in served.phases
    assert Phase.PUSH_WEIGHTS in served.phases


def test_each_step_pushes_weights_and_generates_before_training():
    walk = [instant for instant in instants(answer()) if instant.step]
    for step in (1, 2):
        phases = [instant.moment.phase for instant in walk if instant.step == step]
        assert phases[:2] == [Phase.PUSH_WEIGHTS, Phase.GENERATION]
    states = [
        Component.OPTIMIZER_STATES in instant.moment.resident
        for instant in walk
        if instant.moment.phase is Phase.GENERATION
    ]
    assert states == [False, True]  # no states exist before the first optimizer step


def test_the_first_overflow_may_be_the_second_generation():
    over = answer(vllm_enable_sleep_mode=True, vllm_gpu_memory_utilization=0.92)
    found = first_overflow(over)
    assert over.verdict is Verdict.DOES_NOT_FIT
    assert (found.at.step, found.at.moment.phase) == (2, Phase.GENERATION)


# --- refusals ---


def test_all_positions_must_fit_unless_a_length_is_given():
    # trl passes max_model_len=None: 131,072 positions of Qwen2.5 1.5B take 3.5 GiB, more than 0.08 of the card leaves
    keys = {"vllm_gpu_memory_utilization": 0.08}
    assert answer(**keys).verdict is Verdict.FITS
    with pytest.raises(ValueError, match="set vllm_max_model_length to 1,024"):
        answer(**keys, vllm_max_model_length=None)


# --- the share to set, and the time ---


def test_the_largest_share_fits_and_the_next_does_not():
    found = vllm_shares(QWEN_7B, H100, setup(method="lora", gradient_accumulation_steps=16))
    most = answer(
        QWEN_7B,
        method="lora",
        gradient_accumulation_steps=16,
        vllm_gpu_memory_utilization=found.largest,
    )
    assert most.verdict is Verdict.FITS
    after = next(share for share in found.shares if share.utilisation > found.largest)
    assert after.verdict is not Verdict.FITS


def test_the_smallest_share_for_all_rows_fits_them_and_the_next_smaller_does_not():
    found = vllm_shares(QWEN_7B, H100, setup(method="lora", gradient_accumulation_steps=16))
    held = found.holding()
    assert held == least_share(
        QWEN_7B, H100, setup(method="lora", gradient_accumulation_steps=16), 128
    )
    rows = {share.utilisation: share.rows_low for share in found.shares}
    assert rows[held] == found.rows == 128
    assert rows[round(held - 0.01, 2)] < 128
    assert found.holding(64) < held
    assert found.advised == held


def test_more_share_never_takes_longer():
    found = vllm_shares(QWEN_7B, H100, setup(method="lora", gradient_accumulation_steps=16))
    seconds = [share.step_seconds.high for share in found.shares if share.verdict]
    assert seconds == sorted(seconds, reverse=True)


def test_share_searches_need_colocate_mode_and_valid_rows():
    with pytest.raises(ValueError, match="set use_vllm, and vllm_mode to colocate"):
        vllm_shares(QWEN, H100, setup(vllm_mode="server"))
    with pytest.raises(ValueError, match="rows must be from 1 to 8"):
        least_share(QWEN, H100, setup(), 9)


def test_decoding_reads_the_weights_once_per_token_for_all_rows():
    # 8 rows of 512 tokens on an H100 of 3.35 TB/s: 512 reads of 1.54 billion 16-bit weights, and of 8 rows' cache,
    # 28,672 bytes a token, 768 tokens on average
    parts = {part.name: part for part in seconds.generation_parts(QWEN, H100, setup())}
    read = 512 * 2 * total_parameters(QWEN) + 8 * 512 * 768 * 28_672
    bandwidth = H100.memory_bandwidth_gb_per_s * 1e9
    assert parts[seconds.TOKENS].seconds.low == pytest.approx(read / (0.9 * bandwidth), rel=1e-3)
    slow = read / (0.5 * bandwidth) + 512 * 0.01
    assert parts[seconds.TOKENS].seconds.high == pytest.approx(slow, rel=0.05)  # and products


def test_transformers_launches_every_layers_operators_for_every_token():
    # 512 tokens of 28 layers, 40 operators each (modeling_llama.py) of at least 11 microseconds: more than the reads of
    # 1.54 billion weights at 3.35 TB/s take
    parts = {
        part.name: part for part in seconds.generation_parts(QWEN, H100, setup(use_vllm=False))
    }
    assert parts[seconds.TOKENS].seconds.low == pytest.approx(512 * 28 * 40 * 11e-6)
    # at worst 25 microseconds each, and then the reads, at half the bandwidth; keys and values are less than 1 % of all
    reads = 512 * 2 * 1.54e9 / (0.5 * 3.35e12)
    worst = 512 * 28 * 40 * 25e-6 + reads
    assert parts[seconds.TOKENS].seconds.high == pytest.approx(worst, rel=0.01)


@pytest.mark.parametrize(
    ("keys", "holds"),
    [
        ({}, False),  # zero_grad after each step
        ({"steps_per_generation": 2}, True),  # generates twice within an accumulation
        ({"steps_per_generation": 2, "num_iterations": 2}, False),
        ({"strategy": Strategy.ZERO3, "num_gpus": 2}, True),  # its buffer
    ],
)
def test_gradients_are_held_while_generating_only_within_an_accumulation(keys, holds):
    # trl 1.16, trainer/grpo_trainer.py:1440, generate_every
    own = answer(use_vllm=False, gradient_accumulation_steps=4, **keys).phases[Phase.GENERATION]
    assert (own.resident.get(Component.GRADIENTS, 0) > 0) is holds


def test_rows_that_do_not_fit_together_run_in_waves():
    keys: dict[str, Any] = {"gradient_accumulation_steps": 32, "vllm_max_model_length": 1024}
    small, large = (
        {
            part.name: part
            for part in seconds.generation_parts(
                QWEN, H100, setup(vllm_gpu_memory_utilization=share, **keys)
            )
        }
        for share in (0.06, 0.5)
    )
    assert small[seconds.TOKENS].seconds.high > 4 * large[seconds.TOKENS].seconds.high


def test_a_batch_reads_the_experts_its_tokens_select():
    mixture = catalog.model("Qwen/Qwen3-30B-A3B")
    one, many = (seconds.read_parameters(mixture, rows) for rows in (1, 1000))
    assert one == pytest.approx(3.35e9, rel=0.02)  # its card: 3.3 billion active
    assert many == pytest.approx(total_parameters(mixture), rel=1e-6)


def test_mean_length_lowers_only_the_fast_end():
    whole, shorter = answer().time, answer(mean_tokens_per_example=640).time
    assert shorter.step_seconds.low < 0.7 * whole.step_seconds.low
    assert shorter.step_seconds.high <= whole.step_seconds.high


def test_the_answer_names_the_mean_length_that_decides_its_seconds():
    # rows of 512 + 512 tokens, whose mean of 640 leaves 128 to a completion
    without, given = (
        " ".join(answer(mean_tokens_per_example=mean).assumptions) for mean in (None, 640)
    )
    assert "counted at max_completion_length, 512 tokens. Set mean_tokens_per_example" in without
    assert (
        "decides the seconds: 128 tokens, which the prompt leaves of mean_tokens_per_example 640"
        in given
    )


def test_an_epoch_covers_every_prompt_s_completions():
    # 10,000 prompts of 8 completions, 8 rows a step
    time = answer().time
    assert time.steps_per_epoch == 10_000


def test_weights_are_pushed_once_per_generation():
    once, again = (
        setup(gradient_accumulation_steps=4, num_iterations=iterations) for iterations in (1, 4)
    )
    assert seconds.generations_per_step(once.batch, once.task) == 1
    assert seconds.generations_per_step(again.batch, again.task) == 0.25


def test_correcting_vllm_s_log_probabilities_takes_a_policy_pass():
    # trl trainer/grpo_trainer.py:2643: vllm_importance_sampling_correction is on by default
    assert Phase.SCORING in answer().phases
    assert Phase.SCORING not in answer(use_vllm=False).phases


# --- searches over GPUs, batches and lengths ---


def test_need_exceeds_the_gpu_if_vllm_does_not_start():
    starved = setup(vllm_gpu_memory_utilization=0.03)
    with pytest.raises(ValueError, match="vLLM does not start"):
        estimate(QWEN, H100, starved)
    assert need(QWEN, H100, starved).low > H100.memory_bytes


def test_searches_skip_gpus_on_which_vllm_does_not_start():
    small = setup(method="lora")
    on = smallest_gpu(QWEN, catalog.gpus().values(), small)
    assert estimate(QWEN, on, small).verdict is Verdict.FITS
    names = {estimated.gpu.name for estimated in rank_gpus(QWEN, small).estimates if estimated.gpu}
    assert on.name in names
    assert "GTX 1060 6GB" not in names


def test_the_longest_context_is_accepted_by_vllm():
    assert longest_context(QWEN, H100, setup(method="lora", vllm_max_model_length=2048)) == 2048


# --- data/generation.csv and docs/generation.md ---


def test_eight_in_ten_published_steps_of_a_stated_mean_length_are_within_the_range():
    found = [run for run in generation.published() if run.row["mean_tokens"]]
    assert len(found) >= 15
    assert sum(run.is_inside for run in found) >= 0.8 * len(found)


def test_trl_s_recommended_share_matches_the_formula_of_its_space():
    # by hand, Qwen2.5 7B at 8 × 1,024 tokens: 7.6156 · 2 GiB and 57,344 bytes a token, plus a fifth, of 79.11
    # GiB: (15.231 + 0.4375) · 1.2 / 79.11 = 0.238
    assert generation.trls_advice(QWEN_7B, setup(), H100.memory_bytes) == 0.25


# --- a server: trl scripts/vllm_serve.py, vllm engine/arg_utils.py, get_batch_defaults ---

SERVER: dict[str, Any] = {"vllm_mode": "server", "strategy": "ddp", "num_gpus": 4}


def test_a_server_s_gpus_are_billed():
    # 4 GPUs train; 2 engines of 2 GPUs generate
    keys = {**SERVER, "vllm_tensor_parallel_size": 2, "vllm_data_parallel_size": 2}
    alone, both = answer(vllm_mode="server"), answer(**keys, usd_per_gpu_hour=2.0)
    assert setup(**keys).billed_gpus == 4 + 4
    assert alone.setup.billed_gpus == 1 + 1
    assert both.cost.cost_usd.low == pytest.approx(8 * 2.0 * both.time.total_hours.low)
    assert "on a server of 4 more GPUs like these, 2 engines; the cost includes them" in " ".join(
        both.assumptions
    )


def test_engines_share_the_rows_of_all_gpus_that_train():
    # 8 rows on each of 4 GPUs: 32, or 16 for each of two engines
    one = colocation.engine_of_server(QWEN, H100, setup(**SERVER))
    two = colocation.engine_of_server(QWEN, H100, setup(**SERVER, vllm_data_parallel_size=2))
    assert (one.rows, two.rows) == (32, 16)
    assert one.asked == engine.asked_bytes(H100.memory_bytes, 0.9)
    assert one.batched_tokens == 8192


def test_an_engine_is_built_for_all_its_rows_however_few_it_is_given():
    # v1/worker/gpu/model_runner.py, ``load_model`` and ``_dummy_run``: 1,024 rows, 8,192
    # tokens; 151,936 words, a count of 4 bytes each and two masks of 4,748 int32
    own = colocation.engine_of_server(QWEN, H100, setup(**SERVER))
    assert (own.rows, own.max_num_seqs) == (32, 1024)
    assert own.buffers == 1024 * (4 * 151_936 + 2 * 4 * 4748) == 661_225_472
    assert own.activations == 8192 * 2 * 1536 + 1024 * 151_936 * 14
    # config/vllm.py:2398: the graphs of 256 rows and more, and whole batches up to 512
    assert own.graphs == (51 + 51) * engine.GRAPH_BYTES


def test_an_engine_beside_the_trainer_is_built_for_vllm_max_num_seqs():
    # verl's and ms-swift's 256, where a GPU generates 8
    own = colocation.colocated_engine(QWEN, H100, setup(vllm_max_num_seqs=256))
    assert (own.rows, own.buffers) == (8, 256 * (4 * 151_936 + 2 * 4 * 4748))
    # and where a GPU generates more, they take turns
    assert colocation.colocated_engine(QWEN, H100, setup(vllm_max_num_seqs=4)).rows == 4


@pytest.mark.parametrize(
    ("gpu", "rows", "tokens"),
    [
        ("L4", 256, 2048),
        ("A100-SXM4-80GB", 256, 2048),
        ("DGX Spark GB10", 256, 2048),
        ("H200-SXM-141GB", 1024, 8192),
        ("B200-180GB", 1024, 16_384),
    ],
)
def test_a_server_s_largest_batch_is_vllms_own_default_for_the_card(gpu, rows, tokens):
    # vllm 0.33, engine/arg_utils.py:2973-3006 (OPENAI_API_SERVER) and :3221 (4 rows of 256 tokens have 1,024)
    card = catalog.gpu(gpu)
    assert server.batch_defaults(card, 32_768) == (rows, tokens)
    assert server.batch_defaults(card, 32_768, 4) == (4, tokens)
    assert server.batch_defaults(card, 256, 4) == (4, 4 * 256)


# --- continuous batching: transformers generation/continuous_batching/cache.py ---

PAGED: dict[str, Any] = {"use_vllm": False, "use_transformers_continuous_batching": True}


@pytest.mark.parametrize(
    ("model", "cache", "beside"),
    [
        ("Qwen/Qwen2.5-1.5B", 20_618_149_888, 855_502_848),
        ("google/gemma-3-4b-it", 17_637_048_320, 3_704_782_848),
    ],
)
def test_the_paged_cache_is_that_of_transformers_own_handler(model, cache, beside):
    # run: PagedAttentionMemoryHandler of transformers 5.23, 40 GiB free, 64 rows of 4,096 tokens, FlashAttention
    found = paged.paged_cache(catalog.model(model), 40 * 2**30, 64, 4096)
    assert (found.cache, found.beside) == (cache, beside)


def test_continuous_batching_plans_half_of_the_free_memory():
    generation = answer(**PAGED).phases[Phase.GENERATION]
    taken = (
        generation.resident[Component.INFERENCE_ENGINE] + generation.resident[Component.TEMPORARIES]
    )
    free = H100.memory_bytes - context_bytes(H100).low - (generation.bytes - taken)
    assert 0.499 * free < taken <= 0.5 * free


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"dtype": "float32"}, "set dtype bfloat16"),
        ({"method": "lora"}, "set autocast_adapter_dtype false"),
        ({"use_vllm": True}, "does nothing beside use_vllm"),
        ({"strategy": "zero3", "num_gpus": 2}, "under strategy zero3 is not modelled yet"),
    ],
)
def test_what_continuous_batching_does_not_go_with(keys, sentence):
    with pytest.raises(ValueError, match=sentence):
        answer(**(PAGED | keys))


def test_vllm_refuses_the_4_bit_codes_that_trl_pushes():
    # huggingface/trl issue 4973: PEFT packs the merged weights again, uint8 of another shape
    for mode in ("colocate", "server"):
        with pytest.raises(ValueError, match="whose shape vLLM refuses"):
            answer(method="qlora", vllm_mode=mode)


# --- generation keys in users' files ---


def test_grpo_config_keys_are_read():
    script = (
        "trl grpo --model_name_or_path Qwen/Qwen2.5-1.5B --use_vllm --vllm_mode colocate"
        " --vllm_gpu_memory_utilization 0.4 --vllm_enable_sleep_mode --vllm_max_model_length 2048"
        " --vllm_tensor_parallel_size 2"
    )
    found = read_files({"run.sh": script}).setup
    assert found["use_vllm"] is True
    assert found["vllm_gpu_memory_utilization"] == 0.4
    assert found["vllm_enable_sleep_mode"] is True
    assert found["vllm_max_model_length"] == 2048
    assert found["vllm_tensor_parallel_size"] == 2


def test_ms_swift_s_sleep_level_and_default_share_are_read():
    # ms-swift 4.6.0, swift/rlhf_trainers/args_mixin.py:37 and :188
    script = (
        "swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-1.5B --use_vllm true --vllm_mode colocate"
        " --sleep_level 1 --vllm_max_model_len 4096"
    )
    found = read_files({"run.sh": script}).setup
    assert found["vllm_enable_sleep_mode"] is True
    assert found["vllm_max_model_length"] == 4096
    assert found["vllm_gpu_memory_utilization"] == 0.9


# --- remedies ---


def test_remedies_lower_the_share_enable_sleep_mode_or_add_gpus_for_vllm():
    over = answer(
        QWEN_7B,
        vllm_gpu_memory_utilization=0.6,
        method="lora",
        max_length=8192,
        vllm_max_model_length=8192,
    )
    assert over.verdict is Verdict.DOES_NOT_FIT
    keys = [remedy.keys for remedy in remedies(over, [])]
    assert {"vllm_enable_sleep_mode": True} in keys or {"vllm_mode": "server"} in keys
    lowered = [
        key["vllm_gpu_memory_utilization"] for key in keys if "vllm_gpu_memory_utilization" in key
    ]
    assert all(share < 0.6 for share in lowered)
    for changed in keys:
        if set(changed) <= {"vllm_gpu_memory_utilization", "vllm_enable_sleep_mode", "vllm_mode"}:
            fixed = estimate(QWEN_7B, H100, replace(over.setup, **changed))
            assert fixed.verdict is Verdict.FITS


def test_remedies_shorten_completions_and_shrink_groups():
    # prompts of 512 tokens stay; half of the group is half of the micro-batch
    over = answer(
        use_vllm=False,
        method="lora",
        dtype="float32",
        per_device_train_batch_size=32,
        num_generations=32,
        max_length=131_072,
        max_completion_length=130_560,
    )
    assert over.verdict is Verdict.DOES_NOT_FIT
    changes = [
        change for change in _changes(over.model, over.setup, H100) if "ompletions" in change.title
    ]
    shorter, fewer = changes
    assert shorter.options[0] == {"max_completion_length": 65_280, "max_length": 512 + 65_280}
    assert fewer.options[0] == {"num_generations": 16, "per_device_train_batch_size": 16}


def test_assumptions_state_concurrent_rows_and_a_sufficient_length():
    said = " ".join(answer(vllm_max_model_length=None).assumptions)
    assert "takes 0.3 of the whole GPU" in said
    assert "Of the 8 rows that an engine is given, 8 run at once" in said
    assert "vllm_max_model_length 1,024 is enough" in said
    assert "on a server of 1 more GPU like these" in " ".join(
        answer(vllm_mode="server").assumptions
    )
    assert "transformers generates all 8 rows" in " ".join(answer(use_vllm=False).assumptions)


@pytest.mark.parametrize(
    ("command", "tool"),
    [
        ("python3 -m openrlhf.cli.train_ppo_ray --colocate_all_models", "OpenRLHF"),
    ],
)
def test_other_engines_commands_are_refused_by_name(command, tool):
    with pytest.raises(ValueError, match=f"Commands of {tool} are not modelled yet"):
        read_files({"run.sh": command})
