"""The real huggingface_hub client against a fake Hub on loopback: every failure gets its own sentence in time.

Cited counts are the Hub's ``safetensors.total`` (rows of data/models.csv, and llmfit 1.1.17, hf_models.json).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from estimator import TrainingSetup, catalog, hub
from estimator.__main__ import main
from estimator.contract.setups import parse, write_fields
from estimator.families.model_tree import total_parameters
from estimator.families.registry import BEYOND
from estimator.sources.hub import fetch, forget
from estimator.sources.repository import HubModel, Trouble
from tests import fake_hub
from tests.fake_hub import MEMBER, STRANGER, FakeHub

ROOT = Path(__file__).resolve().parent.parent
OTHERWISE = "choose a model of the catalogue, or paste a config.json"

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}
LLAMA_PARAMETERS = 8_030_261_248  # the Hub's count of meta-llama/Llama-3.1-8B


@pytest.fixture(scope="module")
def server() -> Iterator[FakeHub]:
    with FakeHub() as serving:
        yield serving


@pytest.fixture(autouse=True)
def _nothing_is_kept() -> None:
    forget()


@pytest.fixture
def ask(server: FakeHub) -> Callable[..., HubModel]:
    def asking(hub_id: str, **keys: Any) -> HubModel:
        server.asked.clear()
        server.tokens.clear()
        return fetch(hub_id, endpoint=server.url, **{"seconds": 5.0, **keys})

    return asking


# --- found models -------------------------------------------------------------------------------


def test_two_requests_give_the_catalogues_model_with_its_licence_and_gate(server, ask):
    tags = ["license:llama3.1", "text-generation"]
    server.has("me/llama", LLAMA, parameters=LLAMA_PARAMETERS, tags=tags)
    found = ask("me/llama")
    assert (found.trouble, found.sentences) == (None, ())
    ours = catalog.model("meta-llama/Llama-3.1-8B")
    differing = {
        name
        for name in type(ours).__dataclass_fields__
        if getattr(ours, name) != getattr(found.model, name)
    }
    assert differing == {"hub_id", "config", "stored_width"}
    assert found.model.hub_id == "me/llama"
    assert found.parameters == found.about.published_parameters == LLAMA_PARAMETERS
    assert (found.about.license, found.about.gated) == ("llama3.1", "no")
    assert found.stored_bytes == 2 * LLAMA_PARAMETERS
    assert server.asked == ["/api/models/me/llama", f"/me/llama/resolve/{'c' * 40}/config.json"]


@pytest.mark.parametrize(
    "typed",
    [
        " me/llama ",
        "https://huggingface.co/me/llama",
        "huggingface.co/me/llama/tree/main",
        "https://hf.co/me/llama/blob/main/config.json?download=true#L1",
    ],
)
def test_browser_url_is_read_as_an_id(server, ask, typed):
    server.has("me/llama", LLAMA, parameters=LLAMA_PARAMETERS)
    assert ask(typed).about.hub_id == "me/llama"


def test_renamed_repository_is_found_under_its_new_name(server, ask):
    server.has("us/New", LLAMA, parameters=LLAMA_PARAMETERS)
    server.has("us/old").moved_to = server.has("us/new").moved_to = "us/New"
    found = ask("us/old")
    assert found.model.hub_id == "us/New"
    assert found.sentences == ("us/old is called us/New on the Hub now.",)
    assert found.model.notes == found.notes
    assert ask("us/new").sentences == (), "only its case differs"


def test_adapter_resolves_to_its_base(server, ask):
    server.has("me/llama", LLAMA, parameters=LLAMA_PARAMETERS)
    adapter = {"peft_type": "LORA", "base_model_name_or_path": "me/llama"}
    server.has("me/adapter", files={"adapter_config.json": adapter})
    found = ask("me/adapter")
    assert found.about.hub_id == "me/llama"
    assert found.sentences == ("me/adapter is an adapter; this is its base, me/llama.",)
    assert len(server.asked) == 4


def test_catalogued_base_is_not_fetched(server, ask):
    base = "meta-llama/Llama-3.1-8B"
    server.has("me/adapter", files={"adapter_config.json": {"base_model_name_or_path": base}})
    found = ask("me/adapter")
    assert found.model is not None
    assert (found.parameters, found.about.gated) == (LLAMA_PARAMETERS, "yes")
    assert found.sentences == (f"me/adapter is an adapter; this is its base, {base}.",)
    assert len(server.asked) == 2
    assert write_fields(found.model, None, TrainingSetup()) == {"model": base}


def test_found_model_is_written_by_its_id(server, ask):
    server.has("me/llama", LLAMA, parameters=8_100_000_000)
    model = ask("me/llama").model
    written = write_fields(model, None, TrainingSetup(max_length=2048))
    assert written == {"model": "me/llama", "max_length": 2048}
    assert parse(written, {"me/llama": model})[0] is model


def test_invalid_revision_is_not_put_into_a_url(server, ask):
    server.has("me/llama", LLAMA, sha="../../../evil")
    assert ask("me/llama").model is not None
    assert server.asked[1] == "/me/llama/resolve/main/config.json"


def test_adapter_of_a_gated_base_reports_both(server, ask):
    server.has("them/gated", LLAMA, gated="auto")
    server.has(
        "me/adapter", files={"adapter_config.json": {"base_model_name_or_path": "them/gated"}}
    )
    found = ask("me/adapter")
    assert found.trouble is Trouble.GATED
    assert found.sentences[0].startswith("them/gated is gated; ")
    assert found.sentences[1] == "me/adapter is an adapter; this is its base, them/gated."


# --- counts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counted", "said"),
    [
        (round(LLAMA_PARAMETERS * 1.00099), ()),
        (round(LLAMA_PARAMETERS * 0.99901), ()),
        (
            8_100_000_000,
            (
                "The Hub counts 8,100,000,000 parameters in me/llama, we count 8,030,261,248 (0.9 % fewer); "
                "the estimate is of ours.",
            ),
        ),
        (
            None,
            (
                "The Hub has no count of me/llama, which has no safetensors files; ours, 8,030,261,248, is unchecked.",
            ),
        ),
    ],
)
def test_counts_that_differ_by_more_than_a_thousandth_are_both_reported(server, ask, counted, said):
    server.has("me/llama", LLAMA, parameters=counted)
    assert ask("me/llama").sentences == said


def test_tied_head_stored_twice_is_explained(server, ask):
    """The Hub's count of Qwen3-0.6B exceeds the trained parameters by 151936·1024."""
    config = {
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": True,
    }
    server.has("Qwen/Qwen3-0.6B", config, parameters=751_632_384)
    assert ask("Qwen/Qwen3-0.6B").sentences == (
        "The Hub counts 751,632,384 parameters in Qwen/Qwen3-0.6B, we count 596,049,920 (20.7 % fewer); "
        "the estimate is of ours. Its files hold the tied head twice.",
    )


# --- multimodal or quantised checkpoints --------------------------------------------------------


def test_vision_language_model_gives_its_text_part(server, ask):
    """llava-1.5-7b-hf saves only differences from LlamaConfig; its text part is Llama-2-7B with 64 more words."""
    config = {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "text_config": {
            "model_type": "llama",
            "max_position_embeddings": 4096,
            "vocab_size": 32064,
        },
        "vision_config": {"model_type": "clip_vision_model", "hidden_size": 1024},
    }
    server.has("llava-hf/llava-1.5-7b-hf", config, parameters=7_063_427_072)
    found = ask("llava-hf/llava-1.5-7b-hf")
    assert found.parameters == 6_738_415_616 + 2 * 64 * 4096
    assert found.left_out == "the vision tower and what joins it to the text"
    assert found.sentences == (
        "Only the text part (llama) is estimated; left out: the vision tower and what joins it to the text.",
        "The Hub counts 7,063,427,072 parameters in all of llava-hf/llava-1.5-7b-hf; the text part has 6,738,939,904.",
    )


def test_quantised_checkpoint_is_recognised_and_names_its_original(server, ask):
    quantized = {**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 4}}
    tags = ["base_model:me/llama", "base_model:quantized:me/llama"]
    # hugging-quants/Meta-Llama-3.1-8B-Instruct-GPTQ-INT4: the same count plus a zero bias for every linear
    server.has("me/llama-gptq", quantized, parameters=8_031_637_504, tags=tags)
    found = ask("me/llama-gptq")
    assert found.model.quantization is not None
    assert found.parameters == LLAMA_PARAMETERS
    assert found.sentences == ("The weights are stored as GPTQ 4-bit, made from me/llama.",)


# --- not found or not accessible ----------------------------------------------------------------


def said(found: HubModel, trouble: Trouble) -> str:
    """The one sentence of a refusal."""
    assert found.model is None
    assert found.trouble is trouble
    assert found.sentences == (found.problem,)
    return found.problem


def test_unknown_or_private_repository_is_reported(server, ask):
    server.has("me/private", LLAMA).private = True
    for hub_id in ("me/nothing", "me/private"):
        assert said(ask(hub_id), Trouble.NOT_FOUND) == (
            f"{hub_id} is not on the Hub, or it is private; look for its id at {server.url}/models, or give a token "
            "that may see it."
        )
        assert said(ask(hub_id, token=STRANGER), Trouble.NOT_FOUND) == (
            f"{hub_id} is not on the Hub, or this token may not see it; look for its id at {server.url}/models."
        )
    assert ask("me/private", token=MEMBER).model is not None


def test_gated_repository_needs_a_token_with_access(server, ask):
    server.has("them/gated", LLAMA, gated="manual", parameters=LLAMA_PARAMETERS)
    closed = ask("them/gated")
    assert said(closed, Trouble.GATED) == (
        f"them/gated is gated; accept its terms at {server.url}/them/gated and give a token of that account, or paste "
        "its config.json."
    )
    assert closed.about.gated == "yes"
    assert closed.about.published_parameters == LLAMA_PARAMETERS
    assert said(ask("them/gated", token=STRANGER), Trouble.GATED) == (
        "them/gated is gated, and the account of this token has no access; ask for it at "
        f"{server.url}/them/gated and try again when it is granted, or paste its config.json."
    )
    assert ask("them/gated", token=MEMBER).model is not None


@pytest.mark.parametrize("token", ["hf_expired", "hf_ü", "two words", "line\nbreak", "x" * 501])
def test_invalid_token_is_reported(server, ask, token):
    server.has("me/llama", LLAMA)
    problem = said(ask("me/llama", token=token), Trouble.BAD_TOKEN)
    begins = "The Hub does not know this token; " if token == "hf_expired" else "This is no token; "
    assert problem == f"{begins}copy it anew from {server.url}/settings/tokens, or leave it out."


def test_missing_token_is_not_reported_as_unknown(server, ask):
    hub_id = server.answers("me/closed", fake_hub.wants_a_token)
    assert said(ask(hub_id), Trouble.GATED) == (
        "me/closed is private or gated: the Hub wants a token; give one that may see it, or paste its config.json."
    )
    assert said(ask(hub_id, token="hf_expired"), Trouble.BAD_TOKEN).startswith(
        "The Hub does not know this token"
    )


@pytest.mark.parametrize(
    "typed", ["", "a/b/c", "a b", "../../etc/passwd", "a--b/c", "x" * 200, "ä/ö", "a/b.git"]
)
def test_invalid_id_causes_no_request(server, ask, typed):
    problem = said(ask(typed), Trouble.BAD_ID)
    assert problem.endswith(
        " is no id on the Hub; give owner/name, such as mistralai/Mistral-7B-v0.1."
    )
    assert server.asked == []


# --- no usable config ---------------------------------------------------------------------------


GGUF = {"files": {"q4.gguf": b"GGUF"}, "tags": ["base_model:quantized:me/llama"]}
LOOP = {"base_model_name_or_path": "me/it"}


@pytest.mark.parametrize(
    ("has", "trouble", "said"),
    [
        (
            GGUF,
            Trouble.NO_CONFIG,
            "me/it holds GGUF files for llama.cpp and no config.json; ask for the repository that they were made from, "
            "me/llama.",
        ),
        (
            {"files": {"adapter_config.json": LOOP}},
            Trouble.NO_CONFIG,
            "me/it is an adapter on an adapter; ask for the model that it was trained on.",
        ),
        (
            {"files": {"README.md": b"#"}},
            Trouble.NO_CONFIG,
            "me/it has no config.json; ask for a repository in the format of transformers, or paste its config.json.",
        ),
        (
            {"siblings": [{"rfilename": "config.json"}]},
            Trouble.NO_CONFIG,
            "me/it lists a config that the Hub does not give out; try again, or paste its config.json.",
        ),
        (
            {"files": {"model_index.json": {}}, "library_name": "diffusers"},
            Trouble.NOT_A_DECODER,
            "me/it is a diffusion pipeline; only decoders, which write text token by token, are estimated. Choose one "
            "of those.",
        ),
        (  # Qwen3-Embedding's config looks like a language model's
            {"config": LLAMA, "pipeline_tag": "feature-extraction"},
            Trouble.NOT_A_DECODER,
            "me/it is an embedding model (LlamaForCausalLM); only training with a language-model head is modelled, not "
            "on pooled vectors. Choose the decoder that it was made from.",
        ),
    ],
    ids=["gguf", "loop", "empty", "not given out", "diffusion", "embedding"],
)
def test_repository_without_a_usable_config_is_reported(server, ask, has, trouble, said):
    server.has("me/it", **has)
    found = ask("me/it")
    assert (found.model, found.trouble, found.problem) == (None, trouble, said)


@pytest.mark.parametrize("base", ["/home/me/checkpoints/7b", "", None, 7, "a/b/c"])
def test_adapter_without_a_base_on_the_hub_is_reported(server, ask, base):
    adapter = {"base_model_name_or_path": base}
    server.has("me/adapter", files={"adapter_config.json": adapter})
    problem = said(ask("me/adapter"), Trouble.NO_CONFIG)
    assert problem.startswith("me/adapter is an adapter whose adapter_config.json names ")
    assert problem.endswith(
        " as its base, which is no id on the Hub; ask for the model it was trained on."
    )


def test_download_of_a_ten_megabyte_config_stops_early(server, ask):
    server.has("me/big", b'{"model_type": "llama", "x": "' + b"x" * 10_000_000 + b'"}')
    assert said(ask("me/big"), Trouble.UNREADABLE) == (
        "The config.json of me/big is longer than 1000000 bytes and is not read; choose another model, or paste the "
        "part of it that describes the text model."
    )


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (
            b"{",
            "is not valid JSON (Expecting property name enclosed in double quotes at character 2)",
        ),
        (b"", "is empty; "),
        (b"[1]", "must be one JSON object, not a list."),
        (b"\xff\xfe", "is not UTF-8 at byte 1; "),
        (b'{"a":' * 100_000, "is nested too deeply; "),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "is nested too deeply; "),
    ],
)
def test_config_that_is_not_json_is_reported(server, ask, config, what):
    server.has("me/bad", config)
    problem = said(ask("me/bad"), Trouble.UNREADABLE)
    assert problem.startswith(f"The config.json of me/bad {what}")
    assert problem.endswith("Tell its authors, or choose another model.")


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("hidden_size", None, "the llama config has no hidden_size; add it, a whole number."),
        *(
            (
                "hidden_size",
                value,
                f"hidden_size must be a whole number from 1 to 10000000, not {shown}; correct it in the config.",
            )
            for value, shown in [
                (0, "0"),
                (float("nan"), "NaN"),
                (10**40, "1e+40"),
            ]
        ),
        (
            "num_hidden_layers",
            10**6,
            "num_hidden_layers must be a whole number from 1 to 1000, not 1000000; correct it in the config.",
        ),
        (
            "num_key_value_heads",
            7,
            "num_attention_heads 32 is not a multiple of num_key_value_heads 7; check the config.",
        ),
        (
            "quantization_config",
            {"quant_method": "gptq", "bits": "four"},
            "bits must be a whole number from 1 to 8, not 'four'.",
        ),
    ],
)
def test_config_with_an_impossible_value_is_reported(server, ask, key, value, problem):
    server.has("me/bad", {**LLAMA, key: value})
    assert said(ask("me/bad"), Trouble.UNREADABLE) == (
        f"The config.json of me/bad cannot be used: {problem}"
    )


# --- not a decoder, or not a modelled one --------------------------------------------------------

CHOOSE = "only decoders, which write text token by token, are estimated. Choose one of those."


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"model_type": "bert"}, f"me/it is an encoder (bert); {CHOOSE}"),
        (
            {"model_type": "new-bert", "architectures": ["NewBertForMaskedLM"]},
            f"me/it is an encoder (NewBertForMaskedLM); {CHOOSE}",
        ),
        ({"model_type": "t5"}, f"me/it is an encoder-decoder (t5); {CHOOSE}"),
        (
            {"model_type": "flan", "is_encoder_decoder": True},
            f"me/it is an encoder-decoder (flan); {CHOOSE}",
        ),
        ({"model_type": "clip", "text_config": {}}, f"me/it is an image model (clip); {CHOOSE}"),
        ({"model_type": "whisper"}, f"me/it is a speech model (whisper); {CHOOSE}"),
        (
            {**LLAMA, "architectures": ["LlamaForSequenceClassification"]},
            "me/it has a head for classes (LlamaForSequenceClassification), not for words; only training with a "
            "language-model head is modelled. Choose the decoder that it was made from, me/base.",
        ),
        (
            {**LLAMA, "architectures": ["LlamaModel"]},
            "me/it is an embedding model (LlamaModel); only training with a language-model head is modelled, not on "
            "pooled vectors. Choose the decoder that it was made from, me/base.",
        ),
    ],
)
def test_non_decoder_is_reported_by_its_kind(server, ask, config, problem):
    server.has("me/it", config, tags=["base_model:finetune:me/base"])
    assert said(ask("me/it"), Trouble.NOT_A_DECODER) == problem


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"model_type": "mamba2"}, f"'mamba2', which is not modelled: {BEYOND['mamba2']}"),
        (
            {"model_type": "chatglm", "auto_map": {"AutoModel": "modeling.py"}},
            "'chatglm', which is not modelled, and code that lies in a repository is never run here",
        ),
        (
            {"model_type": "mllama", "text_config": {"model_type": "mllama_text_model"}},
            f"'mllama_text_model', which is not modelled: {BEYOND['mllama_text_model']}",
        ),
    ],
)
def test_unmodelled_architecture_is_reported(server, ask, config, problem):
    server.has("me/it", config)
    assert said(ask("me/it"), Trouble.NOT_MODELLED) == (
        f"me/it is of the architecture {problem}; choose a model of another one, or change the dimensions of the "
        "nearest known model."
    )


# --- the Hub itself -----------------------------------------------------------------------------

NO_ANSWER = f"The Hub has not answered within 0.4 s; try again, {OTHERWISE}."


@pytest.mark.parametrize("answer", [fake_hub.silence, fake_hub.drip])
def test_hanging_hub_times_out(server, ask, answer):
    hub_id = server.answers("me/slow", answer)
    began = time.monotonic()
    assert said(ask(hub_id, seconds=0.4), Trouble.SLOW) == NO_ANSWER
    assert time.monotonic() - began < 0.6


def test_hanging_config_download_times_out(server, ask):
    def config_alone(handler: Any) -> None:
        if "/api/" in handler.path:
            repository = fake_hub.Repository(files={"config.json": b""})
            handler.describe("me/slow", repository, ["siblings", "sha"])
        else:
            fake_hub.silence(handler)

    hub_id = server.answers("me/slow", config_alone)
    began = time.monotonic()
    assert said(ask(hub_id, seconds=0.4), Trouble.SLOW) == NO_ANSWER
    assert time.monotonic() - began < 0.6
    assert len(server.asked) == 2


def test_endless_response_is_not_held_in_memory(server, ask):
    found = ask(server.answers("me/endless", fake_hub.endless))
    assert said(found, Trouble.UNREADABLE) == (
        f"{server.url} says more than {hub.LONGEST_ANSWER} bytes of me/endless, which are not read; paste its "
        "config.json."
    )


def test_repository_with_many_files_is_read_like_any_other(server, ask):
    """Thirty thousand checkpoints of a training run: about 2 MB of names."""
    files = {f"checkpoint-{step}/optimizer-{'x' * 40}.pt": b"" for step in range(30_000)}
    server.has("me/long", LLAMA, files=files, parameters=LLAMA_PARAMETERS)
    found = ask("me/long")
    assert found.trouble is None, found.sentences
    assert found.parameters == LLAMA_PARAMETERS


def test_unreachable_hub_is_reported():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        assert said(fetch("me/it", endpoint=address), Trouble.DOWN) == (
            f"The Hub cannot be reached at {address}; try again later, {OTHERWISE}."
        )


def teapot(handler: Any) -> None:
    handler.refuse(418, "", "teapot")


def disabled(handler: Any) -> None:
    handler.refuse(403, "", "Access to this resource is disabled.")


@pytest.mark.parametrize(
    ("answer", "trouble", "problem"),
    [
        (fake_hub.hang_up, Trouble.DOWN, "cannot be reached at HUB; try again later, "),
        (fake_hub.fault, Trouble.DOWN, "has a server error (status 503); try again later, "),
        (
            fake_hub.too_many,
            Trouble.RATE_LIMITED,
            "takes no more questions from here for 55 s; try again then, ",
        ),
        (teapot, Trouble.NOT_FOUND, "refuses me/it (status 418); look at HUB/me/it, "),
        (disabled, Trouble.DISABLED, "has disabled me/it; choose another model."),
    ],
)
def test_an_error_of_the_hub_is_reported(server, ask, answer, trouble, problem):
    ends = f"{OTHERWISE}." if problem.endswith(", ") else ""
    expected = f"The Hub {problem.replace('HUB', server.url)}{ends}"
    assert said(ask(server.answers("me/it", answer)), trouble) == expected


def test_web_page_instead_of_the_hub_is_reported(server, ask):
    assert said(ask(server.answers("me/page", fake_hub.web_page)), Trouble.DOWN) == (
        f"{server.url} answers with something else than the Hub would; look whether it is the right address, "
        f"{OTHERWISE}."
    )


def test_offline_mode_is_reported(server, ask, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert said(ask("me/llama"), Trouble.OFFLINE) == (
        f"HF_HUB_OFFLINE is set, so the Hub is not asked for me/llama; unset it, {OTHERWISE}."
    )
    assert server.asked == []


def test_requests_beyond_the_concurrency_limit_wait_for_their_turn(server, ask, monkeypatch):
    monkeypatch.setattr(hub, "_free", hub.threading.BoundedSemaphore(1))
    slow = server.answers("me/slow", fake_hub.silence)
    assert (
        ask(slow, seconds=0.2).trouble is Trouble.SLOW
    )  # its thread waits on for the client's timeout
    server.has("me/llama", LLAMA)
    assert ask("me/llama").model is not None


# --- tokens -------------------------------------------------------------------------------------


def test_server_token_is_never_used_for_visitors(server, ask, monkeypatch, tmp_path):
    (tmp_path / "token").write_text(MEMBER)
    (tmp_path / ".netrc").write_text(f"machine 127.0.0.1 login me password {MEMBER}\n")
    monkeypatch.setenv("HF_TOKEN", MEMBER)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    server.has("them/gated", LLAMA, gated="auto")
    for nobody in (None, "", "  "):
        assert ask("them/gated", token=nobody).trouble is Trouble.GATED
        forget()
        assert set(server.tokens) == {None}


def test_token_is_used_only_for_its_own_call(server, ask):
    server.has("them/gated", LLAMA, gated="auto")
    found = ask("them/gated", token=MEMBER)
    assert set(server.tokens) == {MEMBER}
    assert MEMBER not in repr(found)
    assert ask("them/gated").trouble is Trouble.GATED
    assert set(server.tokens) == {None}


def test_cookies_are_not_shared_between_visitors(server, ask):
    server.has("me/llama", LLAMA)
    server.cookies.clear()
    ask(server.answers("me/cookie", fake_hub.gives_a_cookie), token=MEMBER)
    assert ask("me/llama").model is not None
    assert server.cookies == [None, None, None]


def test_token_is_not_sent_on_redirect_to_another_host(server, ask):
    with FakeHub() as elsewhere:
        elsewhere.has("me/llama", LLAMA)
        away = elsewhere.url.replace("127.0.0.1", "localhost")
        server.answers(
            "me/llama", lambda handler: handler.send(307, b"", location=away + handler.path)
        )
        assert ask("me/llama", token=MEMBER).model is not None
        assert set(elsewhere.tokens) == {None}
        assert set(server.tokens) == {MEMBER}


# --- cached answers -----------------------------------------------------------------------------


def test_answers_are_cached_for_a_while(server, ask, monkeypatch):
    server.has("me/llama", LLAMA)
    first = ask("me/llama")
    assert ask("ME/Llama") is first
    assert server.asked == []
    monkeypatch.setattr(hub, "KEPT_SECONDS", -1.0)
    forget()
    assert ask("me/llama") == ask("me/llama")
    assert len(server.asked) == 2


def test_temporary_errors_are_not_cached(server, ask):
    server.answers("me/llama", fake_hub.fault)
    assert ask("me/llama").trouble is Trouble.DOWN
    server.has("me/llama", LLAMA)
    assert ask("me/llama").model is not None


def test_cache_size_is_bounded(server, ask, monkeypatch):
    monkeypatch.setattr(hub, "KEPT_ANSWERS", 2)
    asked = []
    for name in ("a", "b", "c", "c", "a"):
        server.has(f"me/{name}", LLAMA)
        ask(f"me/{name}")
        asked.append(bool(server.asked))
    assert asked == [True, True, True, False, True]


# --- the command line ---------------------------------------------------------------------------


@pytest.fixture
def command(
    server: FakeHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """The command line in this process, with the fake Hub in place of the real one: status, output, errors."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", MEMBER)

    def commanding(*arguments: str) -> tuple[int, str, str]:
        server.asked.clear()
        server.tokens.clear()
        status = main(arguments)
        return (status, *capsys.readouterr())

    return commanding


def test_command_line_contacts_the_hub_only_on_request(server, command):
    server.has("me/llama", LLAMA, parameters=8_100_000_000)
    status, _, errors = command("me/llama", "--method", "qlora")
    assert status == 2
    assert errors.startswith("model 'me/llama' is not in the catalogue; ")
    assert errors.endswith("Or ask the Hub for it: --hub.\n")
    assert server.asked == []
    status, output, errors = command("me/llama", "--method", "qlora", "--hub")
    assert (status, errors) == (0, "")
    assert output.startswith("me/llama: qlora")
    assert "- The Hub counts 8,100,000,000 parameters in me/llama, " in output


def test_command_line_does_not_fetch_catalogued_models(server, command):
    assert command("openai-community/gpt2", "--hub")[0] == 0
    assert command(json.dumps(LLAMA), "--hub")[0] == 0
    assert server.asked == []


def test_command_line_uses_the_user_s_token_only_on_request(server, command):
    server.has("them/gated", LLAMA, gated="auto", parameters=LLAMA_PARAMETERS)
    status, _, errors = command("them/gated", "--hub")
    assert (status, set(server.tokens)) == (2, {None})
    assert errors.startswith("them/gated is gated; ")
    status, output, _ = command("them/gated", "--hub-token")
    assert (status, set(server.tokens)) == (0, {MEMBER})
    assert MEMBER not in output


def test_json_lines_contact_the_hub_too(server):
    """Runs as a process whose environment names the Hub."""
    server.has("me/llama", LLAMA, parameters=LLAMA_PARAMETERS)
    server.has("them/gated", LLAMA, gated="auto")
    server.tokens.clear()
    like = {"like": "me/llama", "num_hidden_layers": 16}
    models = ("me/llama", "them/gated", "openai-community/gpt2", like)
    done = subprocess.run(
        [sys.executable, "-m", "estimator", "--json", "--hub"],
        input="\n".join(json.dumps({"model": model}) for model in models),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "HF_ENDPOINT": server.url, "HF_TOKEN": MEMBER},
        timeout=60,
    )
    first, second, third, fourth = (json.loads(line) for line in done.stdout.splitlines())
    assert first["total_parameters"] == LLAMA_PARAMETERS
    assert second["error"].startswith("them/gated is gated; ")
    assert third["total_parameters"] == total_parameters(catalog.model("openai-community/gpt2"))
    assert fourth["total_parameters"] < LLAMA_PARAMETERS
    assert done.returncode == 1
    assert set(server.tokens) == {None}
