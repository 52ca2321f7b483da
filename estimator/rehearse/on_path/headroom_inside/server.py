"""TRL's vLLM server, which is not there: it answers with tokens of zeros, and weights sent to it go nowhere."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

from . import record

SENDERS = ("_get", "_post", "check_server", "get_server_info")
"""Methods of TRL's client through which all requests go; versions that have others are left as they are."""


def answer(module: ModuleType) -> None:
    """Let the client answer itself. What it allocates to send weights, it allocates.

    Source: trl 1.16, generation/vllm_client.py, VLLMClient.
    """
    trl: Any = module
    client = trl.VLLMClient
    if not all(hasattr(client, name) for name in SENDERS):
        return
    client.check_server = lambda *_, **__: record.note(
        "The vLLM server is not there: every token is the first of the vocabulary, and weights go nowhere."
    )
    client._get = lambda *_, **__: {"data": [{"id": ""}], "world_size": 1}
    client.get_server_info = lambda _: {
        "weight_transfer_config": {},
        "model_config": {"logprobs_mode": "processed_logprobs"},
    }
    client._post = _posted
    client.reset_prefix_cache = lambda _: None
    if hasattr(trl, "open_trainer_endpoint"):
        trl.open_trainer_endpoint = _group
    if hasattr(trl, "NCCLWeightTransferEngine"):
        trl.NCCLWeightTransferEngine.trainer_init = _group


def _posted(_: Any, url: str, json: Any = None, **__: Any) -> dict[str, Any]:
    if not url.endswith("/completions"):
        return {}
    length = json["max_tokens"]
    logprobs = {
        "tokens": ["token_id:0"] * length,
        "token_logprobs": [0.0] * length,
        "top_logprobs": [{}] * length,
    }
    return {
        "choices": [
            {"prompt_token_ids": prompt, "token_ids": [0] * length, "logprobs": logprobs}
            for prompt in json["prompt"]
            for _ in range(json["n"])
        ]
    }


def _group(*_: Any, **__: Any) -> Any:
    """Where weights are sent to."""
    return SimpleNamespace(broadcast=lambda *_, **__: None, group=SimpleNamespace())
