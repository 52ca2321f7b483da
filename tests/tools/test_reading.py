"""A user's files become one run: reading YAML, JSON, commands and scripts, and invalid input."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest

from estimator import Fate, Imported, estimate, read_files
from estimator.contract.setups import parse
from estimator.tools import imported


def read(**files: str) -> Imported:
    return read_files({name.replace("_", "."): text for name, text in files.items()})


def fates(run: Imported) -> Mapping[str, Fate]:
    return {key.key: key.fate for key in run.keys}


SCRIPT = """
import torch
from trl import SFTConfig, SFTTrainer
from peft import LoraConfig
base = 512
name = "Llama-3.1-8B"
common = dict(per_device_train_batch_size=2, gradient_accumulation_steps=4)
args = SFTConfig(output_dir=f"out/{name}", max_length=base * 8, **common, learning_rate=2e-4)
args.gradient_checkpointing = True
peft_config = LoraConfig(r=32, lora_alpha=64, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
trainer = SFTTrainer(model=f"meta-llama/{name}", args=args, peft_config=peft_config, train_dataset=load())
trainer.train()
"""


def test_a_trl_script_is_read_through_names_dicts_and_arithmetic():
    run = read(train_py=SCRIPT)
    assert run.tool == "trl"
    asked = {
        "model": "meta-llama/Llama-3.1-8B",
        "method": "lora",
        "max_length": 4096,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "lora_r": 32,
        "lora_alpha": 64,
        "lora_dropout": 0.0,  # peft 0.21.2, tuners/lora/config.py: an explicit LoraConfig, not ModelConfig's
        "lora_target_modules": ["q_proj", "v_proj"],
        "dtype": "float32",  # trl 1.16.0, trainer/utils.py:1332: a model given by name
        "mixed_precision": "bf16",
        "gradient_checkpointing": True,
        "loss": "chunked_trl",
    }
    assert {key: run.setup[key] for key in asked} == asked
    assert fates(run)["learning_rate"] is Fate.NO_EFFECT
    assert fates(run)["r"] is Fate.TAKEN
    assert not run.of(Fate.UNKNOWN)
    parse(run.setup)


def test_a_model_loaded_by_the_script_has_the_script_s_dtype():
    loads = 'model = AutoModelForCausalLM.from_pretrained("openai-community/gpt2", dtype=torch.bfloat16)\n'
    assert read(a_py=loads + "args = SFTConfig()").setup["dtype"] == "bfloat16"
    by_name = 'trainer = SFTTrainer("openai-community/gpt2", args=SFTConfig(model_init_kwargs={"dtype": "bfloat16"}))'
    assert read(a_py=by_name).setup["dtype"] == "bfloat16"


def test_what_a_method_is_called_on_is_read_too():
    loads = 'AutoModelForCausalLM.from_pretrained("openai-community/gpt2", dtype=torch.bfloat16)'
    trains = 'SFTTrainer(model, SFTConfig("o", per_device_train_batch_size=3)).train()'
    run = read(a_py=f"model = {loads}.to('cuda').train()\n{trains}\n")
    asked = {
        "model": "openai-community/gpt2",
        "dtype": "bfloat16",
        "per_device_train_batch_size": 3,
    }
    assert run.tool == "trl"
    assert {key: run.setup[key] for key in asked} == asked


@pytest.mark.parametrize(
    "changed",
    [
        'setattr(args, "per_device_train_batch_size", 3)',
        "args = replace(args, per_device_train_batch_size=3)",
        "args.per_device_train_batch_size = 3",
    ],
)
def test_a_config_that_is_changed_later_is_read_as_it_is_then(changed):
    script = f'args = SFTConfig("o", per_device_train_batch_size=30)\n{changed}\n'
    trains = '(trainer := SFTTrainer("openai-community/gpt2", args)).train()\n'
    assert read(a_py=script + trains).setup["per_device_train_batch_size"] == 3
    assert read(a_py=trains.replace("args", "SFTConfig(max_length=7)")).setup["max_length"] == 7


def test_trainer_defaults_to_no_checkpointing_and_trl_to_checkpointing():
    assert read(a_py="args = SFTConfig(output_dir='o')").setup["gradient_checkpointing"] is True
    assert read(a_py="args = TrainingArguments('o')").setup["gradient_checkpointing"] is False


def test_flags_of_a_command_override_its_config_file():
    run = read(
        sft_yaml="model_name_or_path: openai-community/gpt2\nmax_length: 512\nuse_peft: true\n",
        run_sh="accelerate launch --num_processes 4 \\\n trl sft --config sft.yaml --max_length 256",
    )
    assert run.tool == "trl"
    asked = {"max_length": 256, "num_gpus": 4, "strategy": "ddp", "method": "lora", "lora_r": 16}
    assert {key: run.setup[key] for key in asked} == asked
    assert not run.notes


def test_a_missing_file_is_reported():
    run = read(run_sh="trl sft --config sft.yaml --max_length 256")
    assert run.notes == (
        "sft.yaml is named and was not given: drop it here, too, where its keys matter.",
    )


def test_a_script_takes_its_flags_from_the_command():
    script = (
        "parser = argparse.ArgumentParser()\nparser.add_argument('--bs', type=int, default=1)\n"
        "a = parser.parse_args()\nargs = TrainingArguments('o', per_device_train_batch_size=a.bs)\n"
    )
    assert read(train_py=script).setup["per_device_train_batch_size"] == 1
    run = read(train_py=script, run_sh="torchrun --nproc_per_node 2 train.py --bs 16")
    assert run.setup["per_device_train_batch_size"] == 16
    assert run.setup["num_gpus"] == 2
    assert fates(run)["bs"] is Fate.TAKEN


def test_values_known_only_at_run_time_are_named():
    run = read(a_py="args = SFTConfig(max_length=config['length'], per_device_train_batch_size=n)")
    unknown = {one.key: one.says for one in run.of(Fate.UNKNOWN)}
    assert unknown["per_device_train_batch_size"].startswith(
        "per_device_train_batch_size is 'n', which only the run"
    )
    assert run.setup["max_length"] == 1024, "TRL's default"


def test_values_set_by_the_tool_are_reported_with_their_line():
    run = read(a_py="args = SFTConfig('o', bf16=True)")
    told = {one.key: one for one in run.set_by_tool}
    assert told["gradient_checkpointing"].source.startswith(
        "trl 1.16.0, trl/trainer/base_config.py:"
    )
    assert told["gradient_checkpointing"].differs
    assert "mixed_precision" not in told, "the script says it itself"


UNSLOTH = """
length = 2048
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name="unsloth/Meta-Llama-3.1-8B", max_seq_length=length, dtype=None, load_in_4bit=True)
model = FastLanguageModel.get_peft_model(model, r=16, target_modules=["q_proj", "k_proj"], lora_alpha=16,
    lora_dropout=0, bias="none", use_gradient_checkpointing="unsloth", random_state=3407)
trainer = SFTTrainer(model=model, max_seq_length=length, dataset_text_field="text", args=TrainingArguments(
    per_device_train_batch_size=2, gradient_accumulation_steps=4, max_steps=60,
    fp16=not is_bfloat16_supported(), bf16=is_bfloat16_supported(), optim="adamw_8bit", output_dir="o"))
"""
MESH = """
from transformers.distributed import DistributedConfig
model = AutoModelForCausalLM.from_pretrained("mistralai/Mistral-7B-v0.1", distributed_config=DistributedConfig(SIZES))
trainer = Trainer(model=model, args=TrainingArguments("o", save_only_model=True))
"""
BITSANDBYTES = """
config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
model = AutoModelForCausalLM.from_pretrained("mistralai/Mistral-7B-v0.1", quantization_config=config, device_map=0)
model = prepare_model_for_kbit_training(model)
model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
trainer = Trainer(model=model, args=TrainingArguments("o", per_device_train_batch_size=1, fp16=True))
"""
FIRE = """
def train(base_model: str = "", batch_size: int = 128, micro_batch_size: int = 4, lora_r: int = 8):
    model = LlamaForCausalLM.from_pretrained(base_model, load_in_8bit=True, torch_dtype=torch.float16)
    model = get_peft_model(model, LoraConfig(r=lora_r, lora_alpha=16, target_modules=["q_proj", "v_proj"]))
    args = TrainingArguments("o", per_device_train_batch_size=micro_batch_size,
        gradient_accumulation_steps=batch_size // micro_batch_size, fp16=True, optim="adamw_torch")
"""
CLASSES = """
CONFIG = {"model": "Qwen/Qwen2.5-7B", "lora": {"r": 64}}
@dataclass
class Args(TrainingArguments):
    per_device_train_batch_size: int = 2
    gradient_checkpointing: bool = field(default=True)
(args,) = HfArgumentParser((Args,)).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained(CONFIG["model"], attn_implementation="flash_attention_2")
lora = LoraConfig(r=CONFIG["lora"]["r"], target_modules="all-linear")
"""
SCRIPTS: dict[str, tuple[str, str, dict[str, object]]] = {
    "a notebook of Unsloth's": (
        UNSLOTH,
        "unsloth",
        {
            "model": "unsloth/Meta-Llama-3.1-8B",
            "method": "qlora",
            "max_length": 2048,
            "optim": "adamw_8bit",
            "mixed_precision": "bf16",
            "offload_checkpoints": True,
            "lora_target_modules": ["q_proj", "k_proj"],
            "num_train_examples": 60 * 2 * 4,
        },
    ),
    "bitsandbytes and PEFT by hand": (
        BITSANDBYTES,
        "trainer",
        {
            "method": "qlora",
            "bnb_4bit_quant_type": "fp4",  # transformers' own default, which is not QLoRA's
            "bnb_4bit_use_double_quant": False,
            "prepare_model_for_kbit_training": True,
            "gradient_checkpointing": True,  # peft's helper turns it on
            "mixed_precision": "fp16",
            "lora_alpha": 8,
        },
    ),
    "a function for fire": (
        FIRE,
        "trainer",
        {
            "method": "lora",
            "load_in_8bit": True,
            "dtype": "float16",
            "gradient_accumulation_steps": 32,
            "per_device_train_batch_size": 4,
            "optim": "adamw_torch",
        },
    ),
    "dataclasses": (
        CLASSES,
        "trainer",
        {
            "model": "Qwen/Qwen2.5-7B",
            "per_device_train_batch_size": 2,
            "gradient_checkpointing": True,
            "lora_r": 64,
            "attn_implementation": "flash_attention_2",
            "mixed_precision": "no",
        },
    ),
    "mesh": (
        MESH.replace("SIZES", "tp_size=2, fsdp_size=4"),
        "trainer",
        {"num_gpus": 8, "tp_size": 2, "strategy": "fsdp"},
    ),
    "replicas of ranks": (
        MESH.replace("SIZES", "2, dp_replicate_size=3"),
        "trainer",
        {"num_gpus": 6, "tp_size": 2, "strategy": "hsdp", "dp_replicate_size": 3},
    ),
    "ranks alone": (
        MESH.replace("SIZES", "tp_size=4"),
        "trainer",
        {"num_gpus": 4, "tp_size": 4, "strategy": "none"},
    ),
}


@pytest.mark.parametrize(("script", "tool", "expected"), SCRIPTS.values(), ids=SCRIPTS)
def test_typical_scripts_are_read(script, tool, expected):
    run = read(train_py=script)
    assert run.tool == tool
    assert {key: run.setup.get(key) for key in expected} == expected
    assert not run.of(Fate.UNKNOWN)


@pytest.mark.parametrize(
    ("command", "key"),
    [
        ("swift sft --model a/b --per_device_train_batch_size 0", "per_device_train_batch_size"),
        ("python -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=all", "num_generations"),
    ],
)
def test_a_count_that_is_none_is_refused_by_its_key(command: str, key: str) -> None:
    assert key in read(run_sh=command).refused


def test_a_recipes_override_may_be_a_list() -> None:
    command = (
        "tune run lora_finetune_single_device --config c model._component_=torchtune.models.llama3_1.lora_llama3_1_8b"
        " model.lora_attn_modules=[q_proj,k_proj] model.apply_lora_to_mlp=False"
    )
    assert read(run_sh=command).setup["lora_target_modules"] == ["q_proj", "k_proj"]


AXOLOTLS_PARTS = (
    "base_model: meta-llama/Llama-3.1-8B\nmicro_batch_size: 1\ntensor_parallel_size: 2\n"
)


@pytest.mark.parametrize(
    ("more", "fate", "sharing"),
    [
        ("", Fate.TAKEN, (2, 2, "none")),
        (
            "fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: true\n",
            Fate.NOT_MODELLED,
            (1, 1, "fsdp"),
        ),
        ("deepspeed: deepspeed_configs/zero1.json\n", Fate.NOT_MODELLED, (1, 1, "zero1")),
    ],
)
def test_layers_that_axolotl_divides_alone_are_divided_as_transformers_does_it(
    more: str, fate: Fate, sharing: tuple[int, int, str]
) -> None:
    # axolotl 0.19, loaders/model.py, _build_model: from_pretrained(tp_size=2, tp_plan="auto")
    run = read(a_yaml=f"{AXOLOTLS_PARTS}{more}")
    assert fates(run)["tensor_parallel_size"] is fate
    keys = [run.setup.get(key, 1) for key in ("num_gpus", "tp_size", "strategy")]
    assert tuple(keys) == sharing


def test_accelerates_mesh_is_that_of_the_model_or_stops() -> None:
    # transformers 5.23, trainer.py:777; accelerate 1.15, accelerator.py:1904
    mesh = """compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
num_processes: 4
parallelism_config:
  parallelism_config_tp_size: 4
"""
    script = MESH.replace("SIZES", "tp_size=4")
    both, alone = (
        read(a_yaml=mesh, b_py=script),
        read(a_yaml=mesh, b_py="Trainer(args=TrainingArguments('o'))"),
    )
    (key,) = (key for key in alone.keys if key.key.endswith("tp_size"))
    assert (key.fate, both.setup["tp_size"]) == (Fate.NOT_MODELLED, 4)
    assert key.says.startswith("accelerate divides no layer itself")
    assert not both.of(Fate.NOT_MODELLED)


@pytest.mark.parametrize(("packs", "evaluated"), [("true", 4), ("false", 2)])
def test_axolotl_packs_evaluation_into_the_rows_of_training(packs, evaluated):
    # axolotl, core/trainers/base.py, _create_multipack_sampler: batch 1 of train_batch_size · max_seq_length tokens
    text = f"""
base_model: meta-llama/Llama-3.1-8B
sample_packing: true
eval_sample_packing: {packs}
sequence_len: 8192
micro_batch_size: 4
eval_batch_size: 2
val_set_size: 0.1
"""
    run = read(axolotl_yaml=text)
    assert run.rows["per_device_eval_batch_size"] == evaluated
    assert (run.rows["per_device_train_batch_size"], run.rows["max_length"]) == (4, 8192)
    assert run.setup["per_device_eval_batch_size"] == 1
    assert (run.setup["per_device_train_batch_size"], run.setup["max_length"]) == (1, 4 * 8192)


@pytest.mark.parametrize(("machines", "replicas"), [(1, 1), (2, 2), (4, 4)])
def test_hybrid_sharding_has_a_replica_on_each_machine(machines, replicas):
    # accelerate 1.15, docs/source/concept_guides/fsdp_and_deepspeed.md: hybrid shards within a node
    accelerate = f"""
distributed_type: FSDP
num_machines: {machines}
num_processes: {4 * machines}
fsdp_config:
  fsdp_sharding_strategy: HYBRID_SHARD
"""
    run = read(train_py="SFTTrainer('openai-community/gpt2')", accelerate_yaml=accelerate)
    assert (run.setup["strategy"], run.setup["dp_replicate_size"]) == ("hsdp", replicas)


@pytest.mark.parametrize(
    ("said", "strategy"),
    [
        ("sharding_strategy: FULL_SHARD", "fsdp"),
        ("sharding_strategy: 1", "fsdp"),
        ("sharding_strategy: SHARD_GRAD_OP", "fsdp_grad_op"),
        ("sharding_strategy: 2", "fsdp_grad_op"),
        ("sharding_strategy: NO_SHARD", "ddp"),
        ("sharding_strategy: 3", "ddp"),
        ("sharding_strategy: 4", "hsdp"),
        ("sharding_strategy: 5", "hsdp"),
        ("version: 2\n  fsdp_reshard_after_forward: true", "fsdp"),
        ("version: 2\n  fsdp_reshard_after_forward: false", "fsdp_grad_op"),
    ],
)
def test_sharding_is_read_by_name_number_and_what_is_resharded(said, strategy):
    # accelerate 1.15, utils/constants.py, FSDP_SHARDING_STRATEGY, counted from 1
    accelerate = f"distributed_type: FSDP\nnum_processes: 4\nfsdp_config:\n  fsdp_{said}\n"
    run = read(train_py="SFTTrainer('openai-community/gpt2')", accelerate_yaml=accelerate)
    assert run.setup["strategy"] == strategy


def test_rows_that_no_tool_truncates_are_reported():
    (note,) = read(train_py=BITSANDBYTES).guesses
    assert note.startswith("Trainer cuts no row here")


def test_llama_from_real_scripts_has_the_expected_peaks():
    """8B, LoRA on all linears, 2 × 4,096 tokens: Trainer with checkpointing, TRL with its loss, TRL in float32."""
    lora = 'p = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.05, target_modules="all-linear")\n'
    name = '"meta-llama/Llama-3.1-8B"'
    trainer = lora + (
        f"model = AutoModelForCausalLM.from_pretrained({name}, dtype=torch.bfloat16)\n"
        'args = TrainingArguments("o", per_device_train_batch_size=2, bf16=True, gradient_checkpointing=True)'
    )
    sft = lora + (
        f'args = SFTConfig("o", per_device_train_batch_size=2, max_length=4096%s)\ntrainer = SFTTrainer({name}, args)'
    )
    as_bf16 = sft % ', model_init_kwargs={"dtype": "bfloat16"}'
    for script, gib in ((trainer, 29.3), (as_bf16, 21.0), (sft % "", 38.4)):
        found = parse({**read(a_py=script).setup, "max_length": 4096})
        assert estimate(*found).peak.bytes / 2**30 == pytest.approx(gib, abs=0.1)


# --- bad input ----------------------------------------------------------------------------------

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(9)
)
BAD = {
    "empty": (b"", "x.yaml is empty; give the YAML, JSON, script or command itself."),
    "binary": (
        b"\x80\x04\x95\x00",
        "x.yaml is no text; give the YAML, JSON, script or command itself.",
    ),
    "too long": (
        b"a: 1\n" * 900_000,
        "x.yaml is longer than 4 MB, which no config is; give the config alone.",
    ),
    "a tab": (
        b"max_length: 1\ntraining:\n\tbf16: true\n",
        "x.yaml, line 3: YAML takes no tabs for indentation; write blanks instead.",
    ),
    "an object": (
        b"seed: 1\nmax_length: !!python/object/apply:os.system ['true']\n",
        "x.yaml, line 2: the tag '!!python/object/apply:os.system' makes an object, and nothing of a file is made "
        "here; write the plain value.",
    ),
    "truncated": (b"max_length: [1, 2\n", "x.yaml, line 2: no YAML at 'max_length: [1, 2' ("),
    "a bomb": (BOMB.encode(), "x.yaml, line "),
    "another program's": (
        b"services:\n  web: {image: x}\n",
        "x.yaml is no config that is known here: its keys are services; give one of TRL, Trainer, PEFT, axolotl, "
        "LLaMA-Factory, ms-swift, torchtune, verl, accelerate or DeepSpeed.",
    ),
    "a mapping in itself": (
        b"a: 1\nb: &x\n  c: *x\n",
        "x.yaml, line 2: it contains itself by its anchor, without end; write it plainly.",
    ),
    "a mapping merged into itself": (
        b"a: &x\n  <<: *x\n",
        "x.yaml, line 1: it contains itself by its anchor, without end; write it plainly.",
    ),
    "a list in itself": (
        b"a: &x [1, *x]\n",
        "x.yaml, line 1: it contains itself by its anchor, without end; write it plainly.",
    ),
    "a list of 300 levels": (
        b"a: " + b"[" * 300 + b"]" * 300,
        "x.yaml, line 1: it is nested more than 40 deep; write it plainly.",
    ),
    "comments": (b"# nothing\n", "x.yaml has nothing but comments; give a config with keys."),
    "a list": (
        b"- 1\n- 2\n",
        "x.yaml must be keys with values, such as max_length: 2048; it is not.",
    ),
}


@pytest.mark.parametrize(("text", "sentence"), BAD.values(), ids=BAD)
def test_invalid_yaml_gets_one_sentence(text, sentence):
    started = time.perf_counter()
    with pytest.raises(ValueError, match=r"\.$") as caught:
        read_files({"x.yaml": text})
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)
    assert time.perf_counter() - started < 5


def test_errors_in_json_and_python_name_the_line():
    with pytest.raises(ValueError, match=r"^ds\.json, line 2: no JSON \("):
        read(ds_json='{"zero_optimization":\n {"stage": 3,,}}')
    with pytest.raises(ValueError, match=r"^a\.py, line 2: no Python at 'b = = 3' \("):
        read(a_py="a = 1\nb = = 3")
    with pytest.raises(ValueError, match=r"^run\.sh has no command that trains"):
        read(run_sh="ls -l")


def test_anchors_and_merge_keys_are_followed():
    run = read(x_yaml="common: &c\n  max_length: 4096\n  seed: 1\n<<: *c\nseed: 2\nuse_peft: yes\n")
    assert run.setup["max_length"] == 4096
    assert run.setup["method"] == "lora", "YAML 1.1, as the tools read it: yes is true"


def test_scripts_are_never_executed(tmp_path):
    trap = tmp_path / "sprung"
    spring = f"open({str(trap)!r}, 'w').write('x')"
    script = f"""
import os
{spring}
os.system("touch {trap}")
exec({spring!r})
args = SFTConfig(max_length=eval("{1 + 1}"), seed=__import__("os").system("touch {trap}"), output_dir=f"{{{spring}}}")
class A:
    {spring}
"""
    run = read(a_py=script)
    assert not trap.exists()
    assert {one.key for one in run.of(Fate.UNKNOWN)} >= {"max_length"}
    with pytest.raises(ValueError, match="makes an object"):
        read(a_yaml=f"max_length: !!python/object/apply:os.system ['touch {trap}']")
    read(run_sh=f"trl sft --max_length $(touch {trap}) --seed `touch {trap}`")
    assert not trap.exists()


def test_large_arithmetic_is_not_evaluated():
    run = read(a_py="args = SFTConfig(max_length=9**9**9**9, seed='a' * 10**12)")
    assert {one.key for one in run.of(Fate.UNKNOWN)} >= {"max_length"}


# --- contradictions -----------------------------------------------------------------------------


def test_deepspeed_and_the_arguments_must_agree():
    run = read(
        a_py="args = SFTConfig('o', gradient_accumulation_steps=8, deepspeed='ds.json')",
        ds_json='{"zero_optimization": {"stage": 2},\n"gradient_accumulation_steps": 4, "bf16": {"enabled": true}}',
    )
    assert run.contradictions == (
        "gradient_accumulation_steps 4 (ds.json, line 2) contradicts gradient_accumulation_steps 8 (a.py, line 1), and "
        "Trainer stops there; write auto.",
    )
    assert run.setup["strategy"] == "zero2"


def test_both_16_bit_modes_at_once_are_refused():
    (said,) = read(a_py="args = TrainingArguments('o', bf16=True, fp16=True)").contradictions
    assert said.endswith("are both on, and Trainer takes one of the two; turn one off.")


def test_of_many_keys_a_hundred_are_looked_up_and_of_too_many_none(monkeypatch):
    """Work is counted, not timed: similar names are looked for a hundred times at most."""
    looked_up: list[str] = []
    monkeypatch.setattr(imported, "near", lambda name, _: looked_up.append(name) or [])
    command = "trl sft --model_name_or_path openai-community/gpt2 "
    run = read(x_sh=command + " ".join(f"--flag_{index} 1" for index in range(500)))
    assert len(run.of(Fate.UNKNOWN)) == 500
    assert len(looked_up) == imported.MOST_LOOKED_UP
    with pytest.raises(ValueError, match=r"has more than 5,000 keys; give the config alone"):
        read(x_sh=command + " ".join(f"--f{index} 1" for index in range(6000)))
    doubled = "A=xxxxxxxx\n" + "A=$A$A\n" * 40  # 8 TB
    assert len(str(read(x_sh=f"{doubled}{command} --output_dir $A"))) < 100_000
    read(x_py="a = 'xxxxxxxx'\n" + "a = f'{a}{a}'\n" * 40 + "args = SFTConfig(output_dir=a)\n")
    with pytest.raises(ValueError, match="longer than 200 kB"):
        read(x_sh=command + "--seed 1 " * 30_000)
