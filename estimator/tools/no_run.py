"""Files that train nothing: of inference, of evaluation, of merging. A verdict on training would be of another run."""

from __future__ import annotations

from collections.abc import Iterator

from estimator.tools.documents import Pool
from estimator.tools.known.parallel import is_on
from estimator.tools.lists import listed
from estimator.tools.parsed import Text
from estimator.tools.rules import Tool
from estimator.values.refusals import InputError

TRAINS_NOTHING = "trains nothing"
"""What every refusal here says."""
OF_TRAINING = frozenset(
    listed("""learning_rate per_device_train_batch_size num_train_epochs max_steps gradient_accumulation_steps optim
    optimizer micro_batch_size num_epochs epochs gradient_checkpointing warmup_ratio warmup_steps
    lr_scheduler_type lr_scheduler lora_r lora_rank use_peft packing sample_packing sequence_len num_generations beta
    save_steps train_type tuner_type""")
)
"""Keys of which a config of training has at least one."""
OF_INFERENCE = frozenset(
    listed("""infer_backend infer_dtype max_new_tokens do_sample num_beams temperature top_p top_k repetition_penalty
    vllm_maxlen ckpt_dir eval_backend tensor_parallel_size max_model_len prompt prompts""")
)
OF_EVALUATION = frozenset(listed("task tasks n_shot num_fewshot lm_eval_tasks metric_list"))
CALLS_OF_INFERENCE = frozenset(
    listed("generate pipeline LLM merge_and_unload simple_evaluate for_inference")
)
CALLS_OF_TRAINING = frozenset(listed("backward train fit"))


def refuse_what_trains_nothing(tool: Tool, pool: Pool, texts: tuple[Text, ...]) -> None:
    """``InputError`` where the files are of inference, evaluation or merging alone."""
    what = next(_kinds(tool, pool, texts), "")
    if what:
        names = " and ".join(text.name for text in texts)
        raise InputError(f"{names} {TRAINS_NOTHING}: {what}. Give the config of the training run.")


def _kinds(tool: Tool, pool: Pool, texts: tuple[Text, ...]) -> Iterator[str]:
    keys = {key.removeprefix("args.") for key in pool.entries if key.startswith("args.")}
    top = {key.partition(".")[0] for key in keys}

    def on(*names: str) -> str:
        return next(
            (name for name in names if name in keys and is_on(pool.entries[f"args.{name}"].value)),
            "",
        )

    kinds = {text.kind for text in texts}
    if kinds <= {"yaml", "json"}:
        if said := on("inference", "merge_lora"):
            yield f"{said} is on"
        if "export_dir" in keys and not on("do_train"):
            yield "export_dir is of merging adapters"
        if (said := on("do_predict", "do_eval")) and "do_train" in keys and not on("do_train"):
            yield f"{said} is on and do_train is not"
        if tool.name == "llamafactory" and on("do_predict") and not on("do_train"):
            yield "do_predict is on and do_train is not"
        if not top & OF_TRAINING:
            if found := sorted(top & OF_EVALUATION):
                yield f"{', '.join(found)} {_are(found)} of evaluation, and no key is of training"
            if found := sorted(top & OF_INFERENCE):
                yield f"{', '.join(found[:3])} {_are(found)} of inference, and no key is of training"
        if tool.reads_recipes and not top & {"optimizer", "loss"}:
            yield "it has no optimizer and no loss"
    if kinds == {"python"}:
        called = frozenset[str]().union(*(text.called for text in texts))
        made = {call.name for text in texts for call in text.calls}
        found = sorted(called & CALLS_OF_INFERENCE)
        has_trainer = any(name.endswith(("Trainer", "TrainingArguments")) for name in made)
        if found and not has_trainer and not called & CALLS_OF_TRAINING:
            yield f"it calls {', '.join(found)}, and no trainer"


def _are(found: list[str]) -> str:
    return "is" if len(found) == 1 else "are"
