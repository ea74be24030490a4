"""The recipe schema (DESIGN 13). Units in names; unknown keys refused; every leaf classified.

Keys that the field already uses keep their names. Cross-field rules that need only this page are
validators here; those that need the sampler table live in `runtime.guards`.
May import: `config.fields`, pydantic.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasChoices, Field, field_validator

from outlast.config.fields import Section, operational, semantic, training

SPEED = "speed only"
RETENTION = "retention only"
CADENCE = "cadence of writing; every published cut is valid on its own"
SHOW = "shown or logged, never read back"
BOUND = "a bound of the run that may be raised and lowered at will"

Seconds = Annotated[float, Field(gt=0)]
Level = Literal["prompt_group", "sibling", "token"]


class ModelSection(Section):
    """The policy to train."""

    path: str = semantic("builtin:tiny", "HF model directory, builtin:tiny or builtin:smollm2-135m")


class DatasetSection(Section):
    """Where prompts come from. Items are addressed by index; order is derived from `seed`."""

    source: Literal["tiny", "sums", "reasoning_gym", "jsonl", "parquet", "hf"] = semantic(
        "tiny", "kind of source"
    )
    name: str | None = semantic(None, "reasoning-gym task, or HF dataset directory")
    path: str | None = semantic(None, "file of a jsonl/parquet source")
    split: str = semantic("train", "split of an HF dataset")
    held_out: str | None = operational(
        None, "held-out jsonl/parquet file, or held-out split of an HF dataset", why=SHOW
    )
    size: int = semantic(10_000, "items of a procedural source", gt=0)
    seed: int = semantic(0, "seed of a procedural source")
    args: dict[str, str | int | float | bool] = semantic({}, "arguments of a procedural source")
    prompt_field: str = semantic("prompt", "column with the prompt text")
    messages_field: str | None = semantic(None, "column with chat messages, instead of a prompt")
    answer_field: str = semantic("answer", "column with the reference answer")


class EnvironmentSection(Section):
    """What turns a prompt into a rewarded rollout."""

    kind: Literal["single_turn"] = semantic("single_turn", "environment adapter")
    reward: str = semantic("tiny", "tiny, last_number, reasoning_gym, or module:function")
    chat: bool = semantic(False, "apply the tokenizer's chat template")
    system_prompt: str | None = semantic(None, "system message when `chat` is true")
    template: str = semantic("{prompt}", "text around the prompt when `chat` is false")
    reward_timeout_s: float = operational(30.0, "deadline of one reward call", why=BOUND, gt=0)


class AlgorithmSection(Section):
    """GRPO and its relatives."""

    name: Literal["grpo"] = semantic("grpo", "algorithm")
    advantage: Literal["grpo", "rloo", "dr_grpo"] = training("grpo", "group advantage estimator")
    num_prompts_per_step: int = semantic(32, "prompt groups per optimizer step (P)", gt=0)
    num_generations_per_prompt: int = semantic(16, "siblings per group", gt=1)
    max_num_steps: int = operational(60, "optimizer steps to run", why=BOUND, ge=0)
    max_num_epochs: int = operational(1_000_000, "passes over the dataset", why=BOUND, gt=0)
    clip_low: float = training(0.2, "importance ratio is clipped below 1 - clip_low", ge=0)
    clip_high: float = training(0.28, "importance ratio is clipped above 1 + clip_high", ge=0)
    importance_correction: bool = training(True, "weight tokens by policy / behaviour ratio")
    truncation: float = training(2.0, "cap of the ratio between trainer and sampler", gt=0)
    normalisation: Literal["token", "sequence"] = training("token", "what the step averages over")
    kl_coef: float = training(0.0, "weight of the KL penalty to the initial model", ge=0)
    filter_zero_variance: bool = semantic(False, "drop groups whose rewards are all equal")


class SamplerSection(Section):
    """Which groups may be admitted and selected (DESIGN 5)."""

    name: Literal["in_order", "weight_fifo", "ready_first", "windowed", "custom"] = semantic(
        "windowed", "sampler"
    )
    lookahead: int = semantic(1, "L of in_order: steps generated ahead", ge=0)
    max_staleness: int = semantic(1, "S of the others: trainer versions a group may lag", ge=0)
    over_sampling_ratio: float = semantic(1.0, "windowed: admitted groups relative to P(S+1)", ge=1)
    freshest_first: bool = semantic(False, "windowed: prefer the freshest groups")
    target: str | None = semantic(None, "module:Class of a custom sampler")
    args: dict[str, str | int | float | bool] = semantic({}, "arguments of a custom sampler")


class RolloutFailureSection(Section):
    """Budgets of DESIGN 5; infrastructure and data failures never share one."""

    infrastructure_attempts: int = operational(5, "attempts of a sibling", why=BOUND, gt=0)
    data_attempts: int = operational(2, "attempts of a sibling", why=BOUND, gt=0)
    backoff_s: float = operational(1.0, "first back-off; doubles", why=SPEED, ge=0)
    backoff_max_s: float = operational(30.0, "longest back-off", why=SPEED, ge=0)
    rollout_timeout_s: float = operational(600.0, "deadline of one attempt", why=BOUND, gt=0)
    on_dropped_prompt: Literal["shrink", "replace"] = operational(
        "shrink", "a given-up prompt shrinks its step, or a later draw replaces it", why=BOUND
    )
    min_step_batch_fraction: float = operational(
        0.9, "smallest step, as a fraction of P", why=BOUND, gt=0, le=1
    )
    max_skipped_prompts: int = operational(100, "given-up prompts in a run", why=BOUND, ge=0)
    max_consecutive_dropped_prompts: int = operational(
        16, "given-up prompts in a row", why=BOUND, ge=0
    )


class StallWatchdogSection(Section):
    """Progress is a committed group, a finished step, or a decoded token."""

    stall_timeout_s: float = operational(900.0, "no progress for this long", why=BOUND, gt=0)
    action: Literal["warn", "abort"] = operational("abort", "what to do then", why=BOUND)


class AsyncSection(Section):
    """How far generation may run ahead of training."""

    sampler: SamplerSection = SamplerSection()
    min_groups_for_streaming_train: int = operational(
        8, "smallest chunk of a streamed step", why="a step equals its full batch", gt=0
    )
    max_inflight_prompts: int = operational(64, "groups generating at once", why=SPEED, gt=0)
    max_buffered_rollouts: int = operational(
        128, "permits: groups not yet trained", why=BOUND, gt=0
    )
    rollout_failure: RolloutFailureSection = RolloutFailureSection()
    stall_watchdog: StallWatchdogSection = StallWatchdogSection()


class GenerationSection(Section):
    """Sampling, and the engines that do it."""

    engine: Literal["torch", "vllm"] = semantic("torch", "generation engine")
    placement: Literal["embedded", "ray"] = operational(
        "embedded", "engines in the controller's process, or as Ray actors", why="placement"
    )
    num_engines: int = operational(1, "engines that share the requests", why=SPEED, gt=0)
    min_healthy_engines: int = operational(
        1, "with fewer engines alive for health_timeout_s the run stops", why=BOUND, gt=0
    )
    health_interval_s: float = operational(2.0, "cadence of health probes", why=SPEED, gt=0)
    health_timeout_s: float = operational(
        60.0, "a probe or a weight update without an answer for so long", why=BOUND, gt=0
    )
    start_timeout_s: float = operational(
        600.0, "from the start of an engine of a pool until it can be used", why=BOUND, gt=0
    )
    weight_transfer: Literal["auto", "in_process", "file", "ray"] = operational(
        "auto", "how weights reach the engines; auto: by placement", why="the same bytes"
    )
    vllm: dict[str, str | int | float | bool] = operational(
        {}, "further arguments of vLLM's engine", why=SPEED
    )

    max_new_tokens: int = semantic(32, "response budget", gt=0)
    temperature: float = semantic(1.0, "sampling temperature; 0 is greedy", ge=0)
    top_p: float = semantic(1.0, "nucleus", gt=0, le=1)
    top_k: int = semantic(0, "0 is off", ge=0)
    dtype: Literal["float32", "bfloat16"] = semantic("float32", "engine weights")
    max_batch_size: int = operational(256, "sequences decoded together", why=SPEED, gt=0)
    threads: int = operational(1, "CPU threads of the engine", why=SPEED, gt=0)


class TrainingSection(Section):
    """Optimizer and schedule (AdamW)."""

    learning_rate: float = training(1e-4, "peak learning rate", gt=0)
    beta1: float = training(0.9, "AdamW", ge=0, lt=1)
    beta2: float = training(0.95, "AdamW", ge=0, lt=1)
    eps: float = training(1e-8, "AdamW", gt=0)
    weight_decay: float = training(0.0, "AdamW", ge=0)
    warmup_steps: int = training(0, "linear warm-up", ge=0)
    schedule: Literal["constant", "linear", "cosine"] = training("constant", "after warm-up")
    schedule_steps: int = training(0, "steps until the schedule ends; 0 with constant", ge=0)
    grad_clip: float = training(1.0, "global gradient norm", gt=0)
    autocast: Literal["float32", "bfloat16"] = training("float32", "compute dtype; master is fp32")
    micro_batch_size: int = operational(8, "sequences per forward pass", why=SPEED, gt=0)
    threads: int = operational(1, "CPU threads of the trainer", why=SPEED, gt=0)
    device: str = operational("cpu", "cpu or cuda", why="placement")
    backend: Literal["torch", "fsdp2"] = operational(
        "torch", "one process, or sharded over Ray actors", why="the same optimizer step"
    )
    world_size: int = operational(1, "ranks of a sharded trainer", why=SPEED, gt=0)
    timeout_s: float = operational(
        600.0, "a call to the ranks of a sharded trainer without an answer", why=BOUND, gt=0
    )


class DataPlaneSection(Section):
    """Where rows live between generation and training."""

    impl: Literal["memory", "transfer_queue"] = operational(
        "memory", "implementation", why="rows are the same"
    )
    checkpoint: Literal["segments", "native"] = operational(
        "segments", "how rows are saved", why="same rows"
    )
    storage_units: int = operational(1, "storage actors of TransferQueue", why=SPEED, gt=0)
    timeout_s: float = operational(
        30.0, "a call to TransferQueue without an answer for so long", why=BOUND, gt=0
    )


class RaySection(Section):
    """The Ray cluster that actors run on, where a recipe asks for one."""

    address: str | None = operational(
        None, "of a standing cluster, or auto; null starts one for this run", why="placement"
    )
    num_cpus: int = operational(
        8,
        "logical CPUs of a cluster started for this run; too few, and actors wait",
        why=SPEED,
        gt=0,
    )


class CheckpointingSection(Section):
    """Trainer checkpoints."""

    enabled: bool = operational(True, "write trainer checkpoints", why=CADENCE)
    checkpoint_dir: str | None = operational(None, "run directory", why="placement")
    save_period: int = operational(1, "steps between trainer checkpoints", why=CADENCE, gt=0)
    metric_name: str | None = operational(
        None, "train:NAME or val:NAME for keep_top_k", why=RETENTION
    )
    keep_top_k: int = operational(
        0, "best checkpoints kept besides the newest two", why=RETENTION, ge=0
    )
    checkpoint_must_save_by: str | None = operational(
        None, "save and stop after DD:HH:MM:SS", why=CADENCE
    )
    save_data_plane: bool = operational(True, "bundle rollout state in step_N", why=CADENCE)

    @field_validator("checkpoint_must_save_by")
    @classmethod
    def _duration(cls, value: str | None) -> str | None:
        parts = (value or "0:0:0:0").split(":")
        if len(parts) != 4 or not all(part.isdigit() for part in parts):
            raise ValueError(f"{value!r} is not a duration DD:HH:MM:SS such as '00:03:45:00'")
        return value

    @property
    def must_save_by_s(self) -> float | None:
        """Seconds of `checkpoint_must_save_by`."""
        if self.checkpoint_must_save_by is None:
            return None
        days, hours, minutes, seconds = map(int, self.checkpoint_must_save_by.split(":"))
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


class RolloutCheckpointingSection(Section):
    """Snapshots of the rollout side between trainer checkpoints."""

    snapshot_attempt_interval_s: Seconds | Literal["auto"] | None = operational(
        10.0,
        "cadence of attempts; auto: sqrt(2 mtbf_s cost) with the measured cost of a snapshot; "
        "null writes none (existing ones are still read)",
        why=CADENCE,
    )
    mtbf_s: float | None = operational(
        None,
        "mean time between kills that interval auto (and `plan`) reckons with",
        why=CADENCE,
        gt=0,
    )
    keep_latest_k: int = operational(2, "live snapshots", why=RETENTION, gt=0)
    restore_mode: Literal["latest", "trainer_checkpoint"] = operational(
        "latest", "which cut a restart uses", why="a choice among valid cuts"
    )
    anchor_policy: Literal["exact", "replay"] = operational(
        "replay",
        "exact: snapshots only while a durable checkpoint of the step exists; replay: any time, "
        "and a restart re-executes the steps in between from stored rows",
        why=CADENCE,
    )
    max_replay_steps: int = operational(
        8, "applied steps that request a trainer checkpoint", why=CADENCE, gt=0
    )
    applied_bytes_max: int = operational(
        1 << 30, "row bytes of applied groups that request a trainer checkpoint", why=CADENCE, gt=0
    )
    extra_fingerprint_excluded_paths: tuple[str, ...] = semantic(
        (), "semantic dotpaths the user declares operational (* one level, ** any)"
    )
    max_consecutive_failures: int = operational(3, "failed saves in a row", why=BOUND, gt=0)
    telemetry_interval_s: float = operational(5.0, "cadence of gauges", why=SHOW, gt=0)


class RolloutRecoverySection(Section):
    """How finely groups survive an interruption; resolved when a prompt is drawn."""

    default_level: Level = Field(
        "token",
        validation_alias=AliasChoices("default_level", "default_granularity"),
        description="recovery level",
        json_schema_extra={"class": "semantic", "reason": ""},
    )
    overrides: dict[str, Level] = semantic({}, "level by environment kind or dataset name")


class TokenCaptureSection(Section):
    """Whether rows carry captured tokens, logprobs and versions."""

    enabled: bool = semantic(True, "always true on the embedded path")


class PreemptionSection(Section):
    """SIGTERM and SIGINT."""

    grace_s: float = operational(25.0, "from the signal to exit", why=BOUND, gt=0)


class ValidationSection(Section):
    """Greedy, on a held-out split, at one pinned version."""

    val_period: int = operational(
        0, "steps between validations; 0: start and end only", why=CADENCE, ge=0
    )
    enabled: bool = operational(True, "validate at all", why=CADENCE)
    size: int = operational(64, "held-out prompts", why=SHOW, gt=0)


class TelemetrySection(Section):
    """Sinks of the event stream."""

    console: bool = operational(True, "live progress", why=SHOW)
    jsonl: bool = operational(True, "RUN_DIR/telemetry/*.jsonl", why=SHOW)
    tensorboard: bool = operational(False, "RUN_DIR/telemetry/tensorboard", why=SHOW)


class Recipe(Section):
    """Everything a run needs to know, resolved."""

    seed: int = semantic(0, "root of every random stream")
    deterministic: bool = semantic(False, "bit-reproducible on CPU; slower")
    model: ModelSection = ModelSection()
    dataset: DatasetSection = DatasetSection()
    environment: EnvironmentSection = EnvironmentSection()
    algorithm: AlgorithmSection = AlgorithmSection()
    async_rl: AsyncSection = AsyncSection()
    generation: GenerationSection = GenerationSection()
    training: TrainingSection = TrainingSection()
    data_plane: DataPlaneSection = DataPlaneSection()
    checkpointing: CheckpointingSection = CheckpointingSection()
    rollout_checkpointing: RolloutCheckpointingSection = RolloutCheckpointingSection()
    rollout_recovery: RolloutRecoverySection = RolloutRecoverySection()
    token_capture: TokenCaptureSection = TokenCaptureSection()
    preemption: PreemptionSection = PreemptionSection()
    validation: ValidationSection = ValidationSection()
    telemetry: TelemetrySection = TelemetrySection()
    ray: RaySection = RaySection()
