"""What a tool's files are: one record for each tool that setups are written for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from estimator.tools.rules import Rule, Value, Values
from estimator.tools.writing.several_gpus import write_sharing
from estimator.tools.writing.texts import nested
from estimator.values.specs import Model

ACCELERATE_FILE = "accelerate.yaml"
LEARNING_RATES = {"sft": 2e-4, "reward": 1e-4}
"""Of the tools' LoRA examples, 5e-6 for preferences: LLaMA-Factory, examples/train_lora."""
SHARE = 0.05
"""Of the rows that are kept for evaluation: a twentieth."""


@dataclass(frozen=True, slots=True)
class Said:
    """A setup in a tool's words, and what its files say beside it."""

    theirs: Values
    """By full names."""
    about: str
    """A sentence for the head of a file; empty: none."""
    dataset: str
    objective: str

    @property
    def args(self) -> dict[str, Value]:
        """The tool's own keys, nested."""
        return nested(self.theirs, "args")

    @property
    def comment(self) -> str:
        """The sentence as a line of YAML or of a shell."""
        return f"# {self.about}\n" if self.about else ""

    def rest(self, share_key: str = "") -> dict[str, Value]:
        """What no setup says; ``share_key``: of the rows that are kept for evaluation, where there is one."""
        found: dict[str, Value] = {
            "output_dir": "output",
            "learning_rate": LEARNING_RATES.get(self.objective, 5e-6),
        }
        evaluates = self.args.get("eval_strategy", "no") != "no"
        return found | ({share_key: SHARE} if evaluates and share_key else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A combination of our keys at which a tool stops before it trains."""

    when: Callable[[Values], bool]
    says: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolWriter:
    """How a setup is written for one tool."""

    parts: frozenset[str] = frozenset()
    """Of a config, those that its files can hold; empty: no files are written for it."""
    datasets: Mapping[str, str] = field(default_factory=dict)
    """By objective, what is trained on until somebody names their own: the tool's own examples."""
    files: Callable[[Said], dict[str, str]] = lambda said: {}
    """Its own files by name, the first of which is run."""
    command: Callable[[Said], str] = lambda said: ""
    """What starts the run."""
    command_is_a_file: bool = False
    """Whether its first file is the command, with the environment's variables."""
    takes_accelerate_file: bool = True
    rows: tuple[Rule, ...] = ()
    """Rows that only write what its readers take apart."""
    sharing: Callable[[Values], Values] = write_sharing
    """Its keys of how several GPUs share the work."""
    states: tuple[str, ...] = ()
    """Our keys that its own examples state, beside those that every config states."""
    needed: frozenset[str] = frozenset()
    """Keys of theirs that it needs beside others that imply them here."""
    stops: tuple[Stop, ...] = ()
    """What it can be told and stops at."""
    stated: Callable[[Values, Model | None], Values] = lambda keys, model: keys
    """Our keys with those that must be said because it has other defaults by itself."""
    extras: str = ""
    """What it installs on demand alone, as pip names it."""
    packages: Callable[[Values], list[str]] = lambda keys: []
    """Packages of a setup that it does not install itself."""


def only_writes(ours: tuple[str, ...], write: Callable[..., Values]) -> Rule:
    """A row that reads nothing."""
    return Rule(theirs=(), ours=ours, read=lambda theirs, so_far: {}, write=write)
