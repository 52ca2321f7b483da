"""Several GPUs: how they share the work."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, Hashed, Section, Whose, Widget, key
from estimator.values.kinds import Choice, Flag, WholeNumber
from estimator.values.parallelisms import strategy_asks_for
from estimator.values.specs import Offload, Strategy

_OFFLOAD = Choice(tuple(Offload), enum=Offload)
_UNMODELLED = "only 1 is modelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh(Checked):
    """How many GPUs there are, how they share the work, and what rests outside them."""

    __hash__ = Hashed.__hash__

    num_gpus: int = key(
        1,
        WholeNumber(65_536),
        "GPUs in the job",
        whose=Whose.OURS,
        code="n",
        widget=Widget(
            shape="slider",
            section=Section.SEVERAL_GPUS,
            label="GPUs",
            help="GPUs that train one model together; the sizes shown are those of the fullest.",
            steps=(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512, 1024),
        ),
    )
    strategy: Strategy = key(
        Strategy.NONE,
        Choice(tuple(Strategy), enum=Strategy, stands_for=strategy_asks_for),
        "how GPUs share the work",
        whose=Whose.OURS,
        code="st",
        widget=Widget(
            shape="select",
            section=Section.SEVERAL_GPUS,
            label="Strategy",
            help="Who keeps what: ddp all on each; zero1, zero2, zero3 divide states, gradients, weights (DeepSpeed); "
            "fsdp divides all (accelerate's FSDP2), hsdp in groups; device_map puts layers on different GPUs, "
            "which work in turn.",
        ),
    )
    gpus_per_node: int = key(
        8,
        WholeNumber(1024),
        "GPUs in one machine",
        whose=Whose.OURS,
        code="nn",
        widget=Widget(
            shape="number",
            section=Section.SEVERAL_GPUS,
            label="GPUs in one machine",
            help="Accelerators that share a machine's links.",
            decides=True,
        ),
    )
    dp_replicate_size: int = key(
        1,
        WholeNumber(65_536),
        "replicas of the sharded model, for hsdp",
        whose=Whose.ACCELERATE,
        code="dr",
        widget=Widget(
            shape="number",
            section=Section.SEVERAL_GPUS,
            label="Groups (hsdp)",
            help="accelerate's dp_replicate_size: groups that are replicas of each other.",
        ),
    )
    tp_size: int = key(
        1,
        WholeNumber(1024),
        "ranks of tensor parallelism",
        whose=Whose.ACCELERATE,
        code="tp",
        modelled=(1,),
        widget=_UNMODELLED,
    )
    pp_size: int = key(
        1,
        WholeNumber(1024),
        "ranks of pipeline parallelism",
        whose=Whose.ACCELERATE,
        code="pp",
        modelled=(1,),
        widget=_UNMODELLED,
    )
    cp_size: int = key(
        1,
        WholeNumber(1024),
        "ranks of context parallelism",
        whose=Whose.ACCELERATE,
        code="cp",
        modelled=(1,),
        widget=_UNMODELLED,
    )
    ep_size: int = key(
        1,
        WholeNumber(1024),
        "ranks of expert parallelism",
        whose=Whose.ACCELERATE,
        code="ep",
        modelled=(1,),
        widget=_UNMODELLED,
    )
    fsdp_version: int = key(
        2,
        WholeNumber(2),
        "1: the older FSDP, of flat parameters (fsdp_config's version)",
        whose=Whose.OURS,
        beside="of accelerate's launcher: 1",
        widget=Widget(
            shape="segments",
            section=Section.SEVERAL_GPUS,
            label="FSDP",
            help="fsdp_version: 2 divides each parameter; 1, torch's FullyShardedDataParallel, flattens those of a "
            "layer into one.",
        ),
    )
    checkpoint_around_fsdp: bool = key(
        False,
        Flag(),
        "checkpoints lie around FSDP 1's modules: transformers before 4.52",
        whose=Whose.TRANSFORMERS,
        widget=Widget(
            shape="toggle",
            section=Section.SEVERAL_GPUS,
            label="Checkpoints around FSDP's modules",
            help="checkpoint_around_fsdp: as in transformers before 4.52, where frozen layers' inputs stay until "
            "backward has ended.",
        ),
    )
    offload_optimizer: Offload = key(
        Offload.NONE,
        _OFFLOAD,
        "where optimizer states rest",
        whose=Whose.DEEPSPEED,
        code="oo",
        widget=Widget(
            shape="select",
            section=Section.SEVERAL_GPUS,
            label="Optimizer rests on",
            help="ZeRO-Offload: states and gradients lie in the host's memory, or on NVMe (zero3), and the CPU steps "
            "the optimizer. FSDP offloads weights with it.",
        ),
    )
    offload_param: Offload = key(
        Offload.NONE,
        _OFFLOAD,
        "where weights rest",
        whose=Whose.DEEPSPEED,
        code="of",
        widget=Widget(
            shape="select",
            section=Section.SEVERAL_GPUS,
            label="Weights rest on",
            help="Weights come from the host's memory, or from NVMe (zero3), whenever a layer needs them.",
        ),
    )

    @property
    def shard_ranks(self) -> int:
        """GPUs that one copy of what is divided is spread over."""
        return self.num_gpus // self.dp_replicate_size

    @property
    def uses_fsdp1(self) -> bool:
        """Whether torch's older FSDP divides the work."""
        return self.strategy.is_fsdp and self.fsdp_version == 1

    @property
    def replicas(self) -> int:
        """Processes that each take a micro-batch of their own: one a GPU, but one in all under ``device_map``."""
        return 1 if self.strategy is Strategy.DEVICE_MAP else self.num_gpus
