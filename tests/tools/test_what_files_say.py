"""Nothing that a file or a command says of a run is lost or guessed in silence."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest

from estimator import Fate, Imported, read_files
from estimator.check.command import run as check
from estimator.tools.writing.changes import changed_files


def setup(*texts: str, names: tuple[str, ...] = ("a.yaml", "b.yaml")) -> dict[str, Any]:
    return dict(run(*texts, names=names).setup)


def run(*texts: str, names: tuple[str, ...] = ("a.yaml", "b.yaml")) -> Imported:
    return read_files(dict(zip(names, texts, strict=False)))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--num_processes 4", {"num_gpus": 4, "strategy": "ddp"}),
        ("--num_processes 8 --num_machines 2", {"num_gpus": 8, "gpus_per_node": 4}),
        (
            "--use_fsdp --num_processes 4 --fsdp_version 2",
            {"strategy": "fsdp", "fsdp_version": 2, "num_gpus": 4},
        ),
        ("--use_deepspeed --zero_stage 3 --num_processes 2", {"strategy": "zero3", "num_gpus": 2}),
    ],
)
def test_trl_hands_what_is_not_its_own_to_accelerate(flags, expected):
    """trl 1.16, cli/commands/training.py:64: what the script's classes do not know goes to ``accelerate launch``."""
    found = setup(f"trl sft --model_name_or_path Qwen/Qwen2.5-0.5B {flags}", names=("run.sh",))
    assert expected.items() <= found.items()
    config = "\n".join(
        f"{name}: {value or 'true'}"
        for name, _, value in (word.strip().partition(" ") for word in flags.split("--")[1:])
    )
    files = ("trl sft --config a.yaml", f"model_name_or_path: Qwen/Qwen2.5-0.5B\n{config}")
    assert expected.items() <= setup(*files, names=("run.sh", "a.yaml")).items()


@pytest.mark.parametrize("flag", ["--config-name=my_grpo", "--config-name my_grpo", "-m"])
def test_a_flag_of_hydra_takes_no_overrides(flag):
    """Hydra 1.3: overrides are ``key=value``, wherever they stand."""
    found = setup(
        f"python3 -m verl.trainer.main_ppo {flag} actor_rollout_ref.model.path=Qwen/Qwen3-8B "
        "trainer.nnodes=2 algorithm.adv_estimator=grpo",
        names=("run.sh",),
    )
    assert (found["model"], found["num_gpus"], found["objective"]) == ("Qwen/Qwen3-8B", 16, "grpo")


LLAMAFACTORY = "model_name_or_path: Qwen/Qwen3-8B\nstage: sft\nfinetuning_type: full\n"
SCRIPT = """
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B")
args = TrainingArguments(deepspeed={"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}})
"""


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            f"{LLAMAFACTORY}deepspeed:\n  zero_optimization:\n    stage: 3\n    offload_param: {{device: cpu}}\n",
            "train.yaml",
        ),
        (SCRIPT, "train.py"),
        (
            "torchrun --nproc_per_node 2 train.py --model_name_or_path Qwen/Qwen3-8B --output_dir x --deepspeed "
            '\'{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}\'',
            "run.sh",
        ),
    ],
)
def test_deepspeed_s_config_may_stand_in_its_argument(text, name):
    """transformers 5.23, training_args.py:761: a path, a mapping, or an object's JSON."""
    found = setup(text, names=(name,))
    assert (found["strategy"], found["offload_param"]) == ("zero3", "cpu")


TRL = "model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: trl-lib/tldr\n"


@pytest.mark.parametrize(
    ("keys", "name", "objective", "is_guess"),
    [
        ("packing: true", "config.yaml", "sft", False),
        ("beta: 0.1\nmax_length: 1024\nmax_prompt_length: 512", "config.yaml", "dpo", True),
        ("beta: 0.1\nmax_length: 1024", "recipes/zephyr/orpo/config.yaml", "orpo", True),
        ("beta: 0.1\ndesirable_weight: 1.0", "config.yaml", "kto", False),
        ("num_generations: 8\nmax_prompt_length: 64\nbeta: 0.0", "config.yaml", "grpo", True),
        ("num_generations: 8\nmax_prompt_length: 64\nscale_rewards: true", "c.yaml", "grpo", False),
        ("max_length: 512\noutput_dir: out/reward-qwen", "config.yaml", "reward", True),
        ("max_length: 512", "config.yaml", "sft", True),
        ("num_generations: 8\nmax_prompt_length: 64\npacking: false", "config.yaml", "grpo", True),
        ("beta: 2.0\nsimpo_gamma: 0.5", "config.yaml", "cpo", False),
        ("kl_coef: 0.05\nnum_ppo_epochs: 4", "config.yaml", "ppo", False),
    ],
)
def test_the_keys_of_a_trl_config_say_its_trainer(keys, name, objective, is_guess):
    """An argument belongs to the classes that have it in trl 1.16 (or had it in 0.24); what several have is a guess."""
    found = run(f"{TRL}{keys}\n", names=(name,))
    assert found.tool == "trl"
    assert found.setup.get("objective", found.refused.get("objective", "")).count(objective)
    assert (
        any(guess.startswith(f"objective is taken as {objective}") for guess in found.guesses)
        is is_guess
    )


def test_cpo_without_its_cross_entropy_reads_as_alphapo():
    """``alphapo`` is loss_type simpo with cpo_alpha 0: trl 1.16, experimental/cpo/cpo_config.py, ``__post_init__``."""
    for keys, loss_type in {
        "loss_type: simpo\nsimpo_gamma: 0.5\ncpo_alpha: 0.0": "alphapo",
        "loss_type: simpo\nsimpo_gamma: 0.5": "simpo",
    }.items():
        found = run(f"{TRL}{keys}\n", names=("config.yaml",))
        assert [found.setup[key] for key in ("objective", "loss_type")] == ["cpo", loss_type]


@pytest.mark.parametrize("own", ["padding_value: 0", "simpo_gamma: 0.5"])
def test_experimental_trainers_cut_rows_at_1024_tokens(own):
    """Their ``max_length``: trl 1.16, experimental/orpo/orpo_config.py:79, experimental/cpo/cpo_config.py:99."""
    found = run(f"{TRL}{own}\n", names=("config.yaml",))
    assert (found.setup["max_length"], found.guesses) == (1024, ())


def test_a_command_says_the_trainer_whatever_the_keys_are():
    found = run("trl kto --config a.yaml", f"{TRL}beta: 0.1\n", names=("run.sh", "a.yaml"))
    assert (found.setup["objective"], found.guesses) == ("kto", ())


def test_what_is_guessed_stands_in_the_first_line(tmp_path):
    (tmp_path / "a.yaml").write_text(f"{TRL}max_length: 512\n")
    (tmp_path / "b.yaml").write_text(f"{TRL}packing: true\n")
    alone, both = StringIO(), StringIO()
    check([str(tmp_path / "a.yaml")], {"gpu": "L4"}, alone)
    assert "objective is taken as sft" in alone.getvalue().splitlines()[0]
    check([str(tmp_path)], {"gpu": "L4"}, both)
    assert both.getvalue().count("is taken as") == 1


@pytest.mark.parametrize(
    ("flags", "guessed"),
    [
        ({"gpu": "A100-SXM4-80GB"}, ["longest; 1,024 is taken", "set num_gpus; 1 is taken"]),
        ({"gpu": "A100-SXM4-80GB", "max_length": 64}, ["set num_gpus; 1 is taken"]),
        ({"gpu": "2x A100-SXM4-80GB", "max_length": 64}, []),
    ],
)
def test_a_guess_is_left_out_where_a_flag_says_the_key(flags, guessed, tmp_path):
    (tmp_path / "train.py").write_text(
        'Trainer(AutoModelForCausalLM.from_pretrained("openai-community/gpt2"), TrainingArguments("o", bf16=True))\n'
    )
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}}')
    written = StringIO()
    check([str(path) for path in tmp_path.iterdir()], flags, written, together=True)
    first = written.getvalue().splitlines()[0]
    assert first.count("is taken") == len(guessed)
    assert all(one in first for one in guessed)


AXOLOTL = "base_model: Qwen/Qwen2.5-0.5B\nmicro_batch_size: 2\nbf16: true\n"
TRAINED = 'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")\n'


@pytest.mark.parametrize(
    ("text", "name", "asked"),
    [
        (f"{AXOLOTL}sequence_len: ${{oc.env:LEN}}", "a.yaml", {"max_length"}),
        (f"{AXOLOTL}sequence_len: $LEN", "a.yaml", {"max_length"}),
        (f"{AXOLOTL}sequence_len: 512\nadapter: {{{{ adapter }}}}", "a.yaml", {"method"}),
        (f"{AXOLOTL}sequence_len: 512\noptimizer: ${{OPTIM}}\nlora_r: ${{R}}", "a.yaml", {"optim"}),
        (f"{AXOLOTL}sequence_len: 512\nnum_epochs: ${{EPOCHS}}\nseed: ${{SEED}}", "a.yaml", set()),
        (f"{AXOLOTL}sequence_len: ${{oc.env:LEN,512}}", "a.yaml", set()),
        (f"{AXOLOTL}sequence_len: 512\noptimizer: none_such", "a.yaml", {"optim"}),
        (f"{AXOLOTL}sequence_len: 512\ndeepspeed: my_config.json", "a.yaml", {"strategy"}),
        ("trl sft --model_name_or_path a/b --num_processes $N", "run.sh", {"num_gpus"}),
        ("NPROC_PER_NODE=$N swift sft --model a/b --max_length 64", "run.sh", {"num_gpus"}),
        ("accelerate launch --config_file x.yaml train.py", "run.sh", {"num_gpus", "strategy"}),
        (
            f"{TRAINED}SFTConfig(per_device_train_batch_size=cfg.batch)",
            "train.py",
            {"per_device_train_batch_size"},
        ),
    ],
)
def test_what_decides_memory_and_only_the_run_knows_is_asked_for(text, name, asked):
    """By hand: each of these keys decides the memory of its run, and its value stands in no file."""
    assert set(run(text, names=(name,)).asked) == asked


def test_of_several_keys_that_a_value_decides_the_first_is_asked_for():
    """The order of the rule that reads it: without checkpointing there is no use_reentrant to say."""
    keys = run(f"{TRAINED}SFTConfig(gradient_checkpointing=cfg.on)", names=("train.py",)).keys
    (key,) = (key for key in keys if key.key == "gradient_checkpointing")
    assert key.says.endswith("which only the run knows: set gradient_checkpointing.")


def test_a_flag_answers_what_is_asked(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(f"{AXOLOTL}sequence_len: ${{oc.env:LEN}}\n")
    said = StringIO()
    assert check([str(file)], {"gpu": "L4"}, said) == 2
    assert "sequence_len is '${oc.env:LEN}'" in said.getvalue()
    assert "--max-length" in said.getvalue()
    assert check([str(file)], {"gpu": "L4", "max_length": 512}, said) == 0
    file.write_text("trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --num_processes $N\n")
    script = file.rename(tmp_path / "run.sh")
    assert check([str(script)], {"gpu": "L4"}, said) == 2
    assert check([str(script)], {"gpu": "2x L4"}, said) == 0


def test_a_change_splits_the_rows_that_axolotl_joins():
    """Of 4 · 8,192 packed tokens the micro-batch becomes 1 and the accumulation 4 times: the same tokens a step."""
    keys = "adapter: lora\nlora_target_linear: true\ngradient_checkpointing: true\nflash_attention: true\n"
    text = (
        f"{AXOLOTL}{keys}sequence_len: 8192\nsample_packing: true\ngradient_accumulation_steps: 4\n"
    )
    text = text.replace("micro_batch_size: 2", "micro_batch_size: 4")
    found = run(text)
    joined, apart = (
        (row["per_device_train_batch_size"], row["max_length"]) for row in (found.setup, found.rows)
    )
    assert (joined, apart) == ((1, 4 * 8192), (4, 8192))
    changes = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 16}
    changed = changed_files({"a.yaml": text}, changes).files["a.yaml"]
    assert "micro_batch_size: 1\n" in changed
    assert "gradient_accumulation_steps: 16" in changed
    assert "sequence_len: 8192\n" in changed


def test_a_packed_model_without_adapters_is_a_contradiction():
    """transformers 5.23, trainer_utils.py:133."""
    command = "trl sft --model_name_or_path gpt2 --load_in_4bit true"
    (said,) = run(command, names=("run.sh",)).contradictions
    assert "set use_peft true" in said
    assert run(f"{command} --use_peft true", names=("run.sh",)).contradictions == ()


def test_empty_keys_of_sharding_leave_it_to_the_gpus(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(f"{AXOLOTL}sequence_len: 512\ndeepspeed:\nfsdp:\n")
    assert check([str(file)], {"gpu": "2x L4"}, StringIO()) == 0


def test_a_flag_with_its_value_takes_no_more():
    """argparse: ``--flag=value`` is whole."""
    command = "trl sft --model_name_or_path gpt2 --max_length=64 128"
    assert setup(command, names=("run.sh",))["max_length"] == 64


CONF = (
    "expandable_segments:True,roundup_power2_divisions:[256:1,>:4],max_split_size_mb:128,"
    "per_process_memory_fraction:0.9,garbage_collection_threshold:0.8"
)
SFT = "trl sft --model_name_or_path a/b --max_length 64"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True {SFT}", "run.sh"),
        (f"export PYTORCH_ALLOC_CONF='expandable_segments:True'\n{SFT}", "run.sh"),
        ('os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"\n', "train.py"),
        (
            'os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")\n',
            "train.py",
        ),
        ('os.environ.update(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")\n', "train.py"),
    ],
)
def test_what_a_run_sets_of_the_allocator_is_read(text, name):
    if name == "train.py":
        text += f"{TRAINED}SFTConfig(max_length=64)"
    found = run(text, names=(name,))
    assert found.setup["expandable_segments"] is True
    assert "roundup_power2_divisions" not in found.setup


def test_an_allocators_setting_that_is_not_modelled_is_said():
    found = run(f"PYTORCH_CUDA_ALLOC_CONF={CONF} {SFT}", names=("run.sh",))
    assert found.setup["expandable_segments"] is True
    assert found.setup["max_split_size_mb"] == 128
    said = " ".join(read.says for read in found.of(Fate.NOT_MODELLED))
    assert "a share of the card" in said
    assert "roundup_power2_divisions" in found.refused
    # torch 2.13 does not ask for the threshold without a share of the card (CUDACachingAllocator.cpp, set_fraction)
    alone = f"PYTORCH_CUDA_ALLOC_CONF=garbage_collection_threshold:0.8 {SFT}"
    assert [one.key for one in run(alone, names=("run.sh",)).of(Fate.NO_EFFECT)] == [
        "PYTORCH_CUDA_ALLOC_CONF"
    ]


@pytest.mark.parametrize(
    ("keys", "steps"),
    [
        ("torch_empty_cache_steps: 5\ngc_steps: 3\n", 5),
        ("gc_steps: 3\n", 3),
        ("gc_steps: 3\ngc_collect_steps: 2\n", None),
        ("gc_steps: -1\n", None),
    ],
)
def test_axolotl_empties_the_cache_as_its_old_key_says_too(keys, steps):
    """axolotl 0.19, utils/schemas/config.py, ``migrate_gc_steps``."""
    found = run(f"{AXOLOTL}sequence_len: 512\n{keys}", names=("a.yaml",))
    assert found.setup.get("torch_empty_cache_steps") == steps


def test_axolotl_sets_the_allocator_unless_the_environment_does():
    """axolotl 0.19, axolotl/utils/__init__.py, ``set_pytorch_cuda_alloc_conf``."""
    text = f"{AXOLOTL}sequence_len: 512\n"
    keys = ("expandable_segments", "roundup_power2_divisions")
    found = run(text, names=("a.yaml",)).setup
    assert [found.get(key) for key in keys] == [True, 16]
    started = "PYTORCH_CUDA_ALLOC_CONF=roundup_power2_divisions:4 axolotl train a.yaml"
    found = run(started, text, names=("run.sh", "a.yaml")).setup
    assert [found.get(key, False) for key in keys] == [False, 4]


def test_a_part_that_no_tool_has_is_said_once():
    run = read_files(
        {
            "recipe.yaml": """
model_name_or_path: openai-community/gpt2
max_length: 512
my_rewards:
  length: {weight: 0.5, most: 9}
  style: {weight: 0.5}
fsdp_config:
  my_own: 1
"""
        }
    )
    assert [(key.key, key.line) for key in run.of(Fate.UNKNOWN)] == [
        ("my_rewards", 5),
        ("fsdp_config.my_own", 8),  # TRL has the part, so the key in it is named
    ]


def test_keys_of_well_known_recipes_have_no_effect():
    # github.com/huggingface/alignment-handbook, recipes/zephyr-7b-beta/dpo/config_full.yaml
    run = read_files(
        {
            "config.yaml": """
model_name_or_path: mistralai/Mistral-7B-v0.1
chat_template: "{{ bos_token }}{% for message in messages %}{{ message }}{% endfor %}"
dataset_mixture:
  datasets:
  - {id: HuggingFaceH4/ultrafeedback_binarized, split: train_prefs, weight: 1.0}
max_length: 1024
"""
        }
    )
    assert not run.of(Fate.UNKNOWN)
