"""How several GPUs share the work."""

from __future__ import annotations

from dataclasses import dataclass

from estimator.values.declaration import Checked, DefaultSource, Hashed, Section, Widget, flag, key
from estimator.values.kinds import Choice, Flag, Number, WholeNumber
from estimator.values.parallelisms import strategy_asks_for
from estimator.values.specs import Offload
from estimator.values.strategies import Strategy

OF_THE_MACHINE = (
    *("gpus_per_node", "overlap_comm", "num_cpu_threads_per_process", "host_cores"),
    *("host_memory_bandwidth_gb_per_s", "pcie_generation", "pcie_lanes"),
)
"""Keys that a run's time reads and no tensor of its steps depends on, besides offload."""

_OFFLOAD = Choice(tuple(Offload), member=Offload)


def _one_rank(of: str) -> int:
    """Declare the ranks of a parallelism that is not modelled."""
    return key(
        1,
        WholeNumber(1024),
        f"ranks of {of}",
        default_from=DefaultSource.ACCELERATE,
        modelled=(1,),
        widget="only 1 is modelled",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh(Checked):
    """The number of GPUs, how they share the work, and what is offloaded."""

    __hash__ = Hashed.__hash__

    num_gpus: int = key(
        1,
        WholeNumber(65_536),
        "GPUs in the job",
        "They train one model together. Sizes are those of the fullest GPU.",
        default_from=DefaultSource.OURS,
        widget=Widget(
            Section.SEVERAL_GPUS,
            "GPUs",
            steps=(1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512, 1024),
        ),
    )
    strategy: Strategy = key(
        Strategy.NONE,
        Choice(tuple(Strategy), member=Strategy, stands_for=strategy_asks_for),
        "how the GPUs share the work",
        "ddp: every GPU holds everything. zero1, zero2, zero3 (DeepSpeed) shard optimizer states, then gradients, "
        "then weights. fsdp (accelerate's FSDP2) shards all three; hsdp does so within groups. device_map puts "
        "layers on different GPUs, which work in turn.",
        default_from=DefaultSource.OURS,
        widget=Widget(Section.SEVERAL_GPUS, "Strategy"),
    )
    gpus_per_node: int = key(
        8,
        WholeNumber(1024),
        "GPUs per machine",
        "The machine's links connect them.",
        default_from=DefaultSource.OURS,
        widget=Widget(Section.SEVERAL_GPUS, "GPUs per machine", decides=True),
    )
    dp_replicate_size: int = key(
        1,
        WholeNumber(65_536),
        "replicas of the sharded model, with hsdp",
        "Each holds a full copy of the model.",
        default_from=DefaultSource.ACCELERATE,
        widget=Widget(Section.SEVERAL_GPUS, "Replica groups (hsdp)"),
    )
    tp_size: int = key(
        1,
        WholeNumber(1024),
        "ranks that every layer is divided over (tensor parallelism), with strategy none, fsdp or hsdp",
        "They work on the same rows. They are all GPUs of the run, or FSDP 2 shards over the others (fsdp_size of "
        "DistributedConfig); Trainer then saves weights alone.",
        default_from=DefaultSource.ACCELERATE,
        widget=Widget(Section.SEVERAL_GPUS, "Ranks of a layer (tensor parallelism)"),
    )
    pp_size: int = _one_rank("pipeline parallelism")
    cp_size: int = _one_rank("context parallelism")
    ep_size: int = _one_rank("expert parallelism")
    fsdp_version: int = key(
        2,
        WholeNumber(2),
        "1 is the older FSDP with flat parameters (fsdp_config's version)",
        "2 shards each parameter.",
        default_from=DefaultSource.OURS,
        remark="accelerate's launcher: 1",
        widget=Widget(Section.SEVERAL_GPUS, "FSDP version", shape="segments"),
    )
    checkpoint_around_fsdp: bool = flag(
        False,
        "checkpointing wraps FSDP 1's modules, as in transformers before 4.52",
        "Frozen layers' inputs then stay until the end of backward.",
        default_from=DefaultSource.TRANSFORMERS,
        widget=Widget(Section.SEVERAL_GPUS, "Checkpointing outside FSDP modules"),
    )
    overlap_comm: bool | None = key(
        None,
        Flag(nullable=True),
        "DeepSpeed reduces gradients beside backward",
        default_from=DefaultSource.DEEPSPEED,
        null="unknown, from on to off; of stage 3 on",
        widget="read from a DeepSpeed config, whose word it is",
    )
    offload_optimizer: Offload = key(
        Offload.NONE,
        _OFFLOAD,
        "where optimizer states are stored",
        "ZeRO-Offload: states and gradients are kept in host memory, or on NVMe (zero3), and the CPU runs the "
        "optimizer. FSDP also offloads the weights.",
        default_from=DefaultSource.DEEPSPEED,
        widget=Widget(Section.SEVERAL_GPUS, "Optimizer offload"),
    )
    offload_param: Offload = key(
        Offload.NONE,
        _OFFLOAD,
        "where weights are stored",
        "In host memory, or on NVMe (zero3), they are copied to the GPU when a layer needs them.",
        default_from=DefaultSource.DEEPSPEED,
        widget=Widget(Section.SEVERAL_GPUS, "Weight offload"),
    )

    num_cpu_threads_per_process: int | None = key(
        None,
        WholeNumber(1024, nullable=True),
        "threads of each process that step an offloaded optimizer (OMP_NUM_THREADS)",
        default_from=DefaultSource.OURS,
        remark="torchrun's and accelerate launch's: 1; DeepSpeed's launcher: all cores",
        null="from 1 to all cores",
        widget=Widget(Section.SEVERAL_GPUS, "CPU threads per process"),
    )
    host_cores: int | None = key(
        None,
        WholeNumber(4096, nullable=True),
        "cores of a machine's CPUs",
        "Physical ones, all sockets together. They bound the threads of an offloaded optimizer.",
        default_from=DefaultSource.OURS,
        null="enough for the memory's bandwidth",
        widget=Widget(Section.SEVERAL_GPUS, "CPU cores per machine"),
    )
    host_memory_bandwidth_gb_per_s: float | None = key(
        None,
        Number(100_000, low=1, nullable=True),
        "bandwidth of a machine's memory, 10⁹ bytes per second",
        "All sockets together, by the datasheet: channels × 8 bytes × transfers. A desktop's two channels of "
        "DDR5-5600 have 90, two EPYC 7742 have 410.",
        default_from=DefaultSource.OURS,
        null="that of machines of the GPU's age",
        widget=Widget(Section.SEVERAL_GPUS, "CPU memory bandwidth (GB/s)"),
    )
    pcie_generation: int | None = key(
        None,
        WholeNumber(6, nullable=True),
        "PCIe generation of the host's slots",
        "A card in an older host has the older rate: offload and cards without NVLink are slower.",
        default_from=DefaultSource.OURS,
        null="the card's",
        widget=Widget(Section.SEVERAL_GPUS, "PCIe generation of the host"),
    )
    pcie_lanes: int | None = key(
        None,
        WholeNumber(16, nullable=True),
        "PCIe lanes of a GPU's slot",
        "As nvidia-smi says: pcie.link.width.current. Risers and second slots often have 8 or 4.",
        default_from=DefaultSource.OURS,
        null="the card's",
        widget=Widget(Section.SEVERAL_GPUS, "PCIe lanes per GPU"),
    )

    @property
    def shard_ranks(self) -> int:
        """GPUs that one copy of the model is sharded over."""
        return self.num_gpus // (self.dp_replicate_size * self.tp_size)

    @property
    def loads_divided(self) -> bool:
        """Whether ``from_pretrained`` divides the model, by ``DistributedConfig``: accelerate casts nothing of it."""
        return self.tp_size > 1

    @property
    def way(self) -> str:
        """How the GPUs share the work, as a sentence names it: the strategy, that each layer is divided, or both."""
        if self.tp_size == 1:
            return self.strategy.value
        beside = "" if self.strategy.is_alone else f"{self.strategy.value} and "
        return f"{beside}tensor parallelism"

    @property
    def uses_fsdp1(self) -> bool:
        """Whether the run uses torch's older FSDP, ``FullyShardedDataParallel``."""
        return self.strategy.is_fsdp and self.fsdp_version == 1

    @property
    def replicas(self) -> int:
        """Micro-batches at a time: one per GPU, or one in total under ``device_map`` and for ranks of a tensor."""
        return 1 if self.strategy.places_layers else self.num_gpus // self.tp_size
