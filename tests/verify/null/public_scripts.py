"""Public training scripts that are rehearsed, what is typed after each, and the models and rows that they get."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

REVISIONS = {
    "transformers": "4a42c1b08",  # of github.com/macorisd/transformers-qwen3, whose examples are 5.10's
    "trl": "f2cd57710",
    "peft": "5d602fdbf",
    "axolotl": "067b021c8",
    "LLaMA-Factory": "ff6d4d12e",
}

TINY = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}
REAL = TINY | {  # unsloth/Llama-3.2-1B, config.json
    "num_hidden_layers": 16,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}
TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|> {{ message['role'] }} {{ message['content'] }} <|im_end|> "
    "{% endfor %}"
)
LONG, SHORT = "word " * 700, "word " * 200
CHAT = [{"role": "user", "content": SHORT}, {"role": "assistant", "content": LONG}]
ROWS: Mapping[str, Mapping[str, object] | Sequence[Mapping[str, object]]] = {
    "chat": {"messages": CHAT},
    "pairs": {"prompt": CHAT[:1], "chosen": CHAT[1:], "rejected": [{**CHAT[1], "content": SHORT}]},
    "triples": {"prompt": CHAT[:1], **dict.fromkeys(("chosen", "rejected", "reference"), CHAT[1:])},
    "labels": {"prompt": CHAT[:1], "completion": CHAT[1:], "label": True},
    "prompts": {"prompt": CHAT[:1]},
    "alpaca": {"instruction": SHORT, "input": "", "output": LONG, "text": LONG},
    "sharegpt": {
        "conversations": [{"from": "human", "value": SHORT}],
        "chosen": {"from": "gpt", "value": LONG},
        "rejected": {"from": "gpt", "value": SHORT},
    },
    "turns": {"conversations": [{"from": "human", "value": SHORT}, {"from": "gpt", "value": LONG}]},
    "liked": {"messages": CHAT, "label": True},
    "text": {"text": LONG},
    "queries": {"query": SHORT, "response": LONG},
    "sentences": [{"sentence1": SHORT, "sentence2": LONG, "label": label} for label in (0, 1)],
    "entities": {"tokens": LONG.split(), "ner_tags": ["O", "B-WORD"] * (len(LONG.split()) // 2)},
    "questions": {
        "id": "one",
        "question": "word",
        "context": LONG,
        "answers": {"text": ["word"], "answer_start": [500]},
    },
}  # fmt: skip


class Play(NamedTuple):
    """One script."""

    project: str
    path: str
    rows: str
    arguments: Sequence[str] = ()
    """What is typed beside the script's usual words, as its id shows it."""
    words: str = ""
    """The script's usual words; ours are {model}, {rows} (a folder), {file} (of the same rows) and {output}."""

    flags: Sequence[str] = ()
    """Of ``headroom rehearse`` itself."""
    sizes: Sequence[str] = ("tiny", "real")
    reason: str = ""
    """Why its estimate differs, where it does."""
    environment: str = ""
    """The variable that names its environment, where that is not its project's."""

    @property
    def id(self) -> str:
        """Its project and place, and what is added."""
        return " ".join([f"{self.project}/{self.path}", *self.arguments])


SIZES = (
    "--bf16 True --report_to none --per_device_train_batch_size 2 --gradient_accumulation_steps 2"
)
OF_TRL = f"--model_name_or_path {{model}} --dataset_name {{rows}} --output_dir {{output}} {SIZES}"
LORA = ("--use_peft", "--lora_target_modules", "all-linear")
ONLINE = (
    "--reward_funcs",
    "think_format_reward",
    "--num_generations",
    "4",
    "--max_completion_length",
    "64",
)
FLASH = ("--attn_implementation", "flash_attention_2", "--gradient_checkpointing", "False")
VLLM = ("--use_vllm", "True", "--vllm_mode", "colocate", "--vllm_gpu_memory_utilization", "0.3")

ONLINE_LENGTH = "271"
"""A prompt's 207 tokens and 64 of its completion."""
ALL_SELECTED = (
    "In a rehearsal the mask of a completion's tokens, which is made on the card, selects the prompt's, too: so many "
    "more are scored."
)


def _of_trl() -> Iterator[Play]:
    def play(path: str, rows: str, *more: str, words: str = OF_TRL) -> Play:
        return Play("trl", path, rows, more, words)

    for name, rows in (("sft", "chat"), ("dpo", "pairs"), ("kto", "labels"), ("reward", "pairs")):
        classifier = ("--lora_task_type", "SEQ_CLS") * (name == "reward")
        yield play(f"trl/scripts/{name}.py", rows)
        yield play(f"trl/scripts/{name}.py", rows, *LORA, *classifier)
    yield play("trl/scripts/sft.py", "chat", *LORA, "--load_in_4bit")
    yield play("trl/scripts/sft.py", "chat", "--packing", "--max_length", "2048")
    yield play(
        "trl/scripts/sft.py", "chat", "--gradient_checkpointing", "False", "--optim", "adafactor"
    )
    for more in (("--packing", "--max_length", "2048"), LORA):
        yield play("trl/scripts/sft.py", "chat", *FLASH, *more)
    yield play("trl/scripts/dpo.py", "pairs", *FLASH)
    yield play("trl/scripts/dpo.py", "pairs", "--precompute_ref_log_probs")
    for name in ("grpo", "rloo"):
        online = play(f"trl/scripts/{name}.py", "prompts", *ONLINE)
        yield online._replace(flags=("--max-length", ONLINE_LENGTH), reason=ALL_SELECTED)
    vllm = (*ONLINE, *VLLM)
    for name, more in (
        ("grpo", vllm),
        ("grpo", (*vllm, *LORA)),
        ("grpo", (*vllm, "--vllm_enable_sleep_mode", "True")),
        ("grpo", (*ONLINE, "--use_vllm", "True", "--vllm_mode", "server")),
        ("rloo", vllm),
    ):
        online = play(f"trl/scripts/{name}.py", "prompts", *more)
        flags = ("--max-length", ONLINE_LENGTH)
        yield online._replace(flags=flags, reason=ALL_SELECTED, environment="HEADROOM_VLLM")
    for name, rows in (
        ("orpo", "pairs"), ("cpo", "pairs"), ("tpo", "triples"), ("reward_modeling", "pairs"), ("kto", "labels"),
    ):  # fmt: skip
        yield play(f"examples/scripts/{name}.py", rows)
    yield play(
        "examples/scripts/gkd.py", "chat", words=f"{OF_TRL} --teacher_model_name_or_path {{model}}"
    )


def _of_peft() -> Iterator[Play]:
    sft = "--model_name_or_path {model} --dataset_name {rows} --splits train,test --output_dir {output}"
    more = ("--use_peft_lora", "True", "--dataset_text_field", "text")
    yield Play("peft", "examples/sft/train.py", "chat", more, f"{sft} --bf16 True --report_to none")
    words = "--base_model {model} --data_path {rows} --output_dir {output} --batch_size 4"
    for name in ("olora", "shira", "hira", "glora", "waveft"):
        more = ("--cutoff_len", "512", "--dtype", "bfloat16")
        yield Play(
            "peft", f"examples/{name}_finetuning/{name}_finetuning.py", "alpaca", more, words
        )
    for name in ("delora", "gralora", "lily", "deft"):
        yield Play("peft", f"examples/{name}_finetuning/{name}_finetuning.py", "text", (), words)
    words = (
        "--base_model_name_or_path {model} --data_path {rows} --output_dir {output} --dataset_split train "
        f"--dataset_field instruction output {SIZES}"
    )
    for name in ("pissa", "miss"):
        more = ("--bits", "bf16")
        yield Play(
            "peft", f"examples/{name}_finetuning/{name}_finetuning.py", "alpaca", more, words
        )


def _of_transformers() -> Iterator[Play]:
    def play(name: str, rows: str, *more: str, files: Sequence[str] = ("train",)) -> Play:
        given = " ".join(f"--{file}_file {{file}}" for file in files)
        sizes = "--per_device_train_batch_size 2"
        if not name.endswith("_no_trainer"):
            sizes += " --do_train --bf16 True --report_to none"
        words = f"--model_name_or_path {{model}} {given} --output_dir {{output}} {sizes}"
        return Play("transformers", f"examples/pytorch/{name}.py", rows, more, words)

    both = ("train", "validation")
    yield play("language-modeling/run_clm", "text", "--block_size", "1024")
    for end, long in (("", "--max_seq_length"), ("_no_trainer", "--max_length")):
        yield play(f"text-classification/run_glue{end}", "sentences", long, "512", files=both)
        yield play(f"token-classification/run_ner{end}", "entities", long, "512", files=both)
        yield play(
            f"question-answering/run_qa{end}", "questions", "--max_seq_length", "384", files=both
        )
    yield play(
        "text-classification/run_classification", "sentences", "--text_column_names", "sentence2", "--max_seq_length",
        "512", files=both,
    )  # fmt: skip
    yield play(
        "language-modeling/run_clm",
        "text",
        "--block_size",
        "2048",
        "--gradient_checkpointing",
        "True",
    )


def _of_tools() -> Iterator[Play]:
    for path, rows in (
        ("llama-3/lora-1b.yml", "alpaca"), ("llama-3/qlora-1b.yml", "alpaca"), ("llama-3/qlora.yml", "alpaca"),
        ("llama-3/lora-8b.yml", "alpaca"), ("llama-3/fft-8b.yaml", "alpaca"),
        ("llama-3/instruct-lora-8b.yml", "chat"), ("llama-3/lora-1b-kernels.yml", "alpaca"),
        ("llama-3/lora-1b-sample-packing-sequentially.yml", "alpaca"),
        ("llama-2/lora.yml", "alpaca"), ("llama-2/qlora.yml", "alpaca"), ("llama-2/fft_optimized.yml", "alpaca"),
    ):  # fmt: skip
        yield Play("axolotl", f"examples/{path}", rows)
    yield Play(
        "axolotl", "examples/llama-2/lisa.yml", "alpaca", sizes=("real",)
    )  # it draws 4 layers
    for path, rows in (
        ("train_lora/qwen3_lora_sft", "alpaca"), ("train_lora/qwen3_lora_dpo", "sharegpt"),
        ("train_lora/qwen3_lora_kto", "liked"), ("train_lora/qwen3_lora_pretrain", "text"),
        ("train_lora/qwen3_lora_reward", "sharegpt"), ("train_qlora/qwen3_lora_sft_otfq", "alpaca"),
        ("train_full/qwen3_full_sft", "alpaca"), ("extras/loraplus/llama3_lora_sft", "alpaca"),
        ("extras/fsdp_qlora/llama3_lora_sft", "alpaca"), ("extras/oft/llama3_oft_sft", "alpaca"),
        ("extras/pissa/llama3_lora_sft", "alpaca"), ("extras/dft/qwen2_full_sft", "alpaca"),
        ("extras/eaft/qwen25_05b_eaft_full", "alpaca"), ("extras/muon/qwen2_full_sft", "alpaca"),
    ):  # fmt: skip
        yield Play("LLaMA-Factory", f"examples/{path}.yaml", rows)


PLAYS = (*_of_trl(), *_of_peft(), *_of_transformers(), *_of_tools())
