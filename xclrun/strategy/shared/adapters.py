"""Language adapters in the encoder, through the library ``adapters``: CCL, section 3.2 ("Ada").

Each language has separate adapters; the heads are shared. A hop starts from the language's pretrained adapters if they
are available. Otherwise it starts from a fresh initialisation, which is equal for all languages. Languages not learned
yet also use this initialisation.

``adapter`` selects the kind. In each layer, x is the input and f the output of the feed-forward block, d the width of
the hidden states, and r the ``reduction``:

- ``madx`` (Pfeiffer et al. 2020, "MAD-X: an adapter-based framework for multi-task cross-lingual transfer"):
  f ← f + U relu(D LN(f + x) + b) + c, with D of shape (d/r, d) and U of shape (d, d/r), before the encoder's
  LN(f + x); and one invertible adapter (NICE coupling, reduction 2) on the embeddings.
- ``pfeiffer``: as ``madx``, but without the invertible adapter (Pfeiffer et al. 2021, "AdapterFusion").
- ``houlsby``: U swish(D f + b) + c + f, after attention and after the feed-forward part (Houlsby et al. 2019).
- ``lora``: W ← W + (α/rank) B A for the matrices ``lora_targets``, with A of shape (rank, d) and B zero at first (Hu et
  al. 2022, "LoRA").
- ``ia3``: keys, values and inner feed-forward states, multiplied by vectors that are 1 at first (Liu et al. 2022,
  "Few-shot parameter-efficient fine-tuning …").
- ``prefix``: ``prefix_length`` additional keys and values in each attention, computed by an MLP with 512 inner states
  (Li and Liang 2021, "Prefix-tuning").
- ``compacter``: as houlsby, with matrices that are sums of four Kronecker products of rank 1 (Karimi Mahabadi et al.
  2021).

Settings: ``adapter``; ``reduction`` r (null: the kind's default, `DEFAULT_REDUCTION`). MAD-X's language adapters have
r = 2. For mBERT this gives 7,387,776 parameters per language (CCL's totals imply 7,370,000, rounded). LoRA has the
settings ``lora_rank``, ``lora_alpha``, ``lora_targets``, some of q, k, v, intermediate and output, and ``library``
(`xclrun.strategy.shared.low_rank`).

``pretrained`` maps a language to the local folder or hub name of its pretrained adapters
(`xclrun.model.adapter_files`). Pretrained adapters must have the run's kind and reduction, and must have been trained
in the same encoder. The run ID depends on the content of these adapters, not on their location.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar

from xclrun.config.schema import StrategyConfig
from xclrun.core.errors import UsageError, require
from xclrun.core.identity import digest
from xclrun.core.stream import Stream
from xclrun.model.adapter_files import adapter_identity, quiet, read_adapter
from xclrun.strategy.base import Length, Library, Parameters, bounded
from xclrun.strategy.shared.added import AddsParameters
from xclrun.strategy.shared.language_parameters import LanguageParameters
from xclrun.strategy.shared.updates import add_updates, check_targets

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.model.families import Family
    from xclrun.model.network import Model

# Name of the adapter in the model; it holds the current language's values.
NAME = "language"


class Adapter(Enum):
    madx = "madx"
    pfeiffer = "pfeiffer"
    houlsby = "houlsby"
    lora = "lora"
    ia3 = "ia3"
    prefix = "prefix"
    compacter = "compacter"


class LoraLibrary(Enum):
    """Library that adds LoRA to the encoder; ``auto`` is resolved when a run is planned (`resolved_library`)."""

    auto = "auto"
    adapters = "adapters"
    peft = "peft"


# Default reduction of each kind with a bottleneck, from its paper.
DEFAULT_REDUCTION = {Adapter.madx: 2, Adapter.pfeiffer: 16, Adapter.houlsby: 16, Adapter.compacter: 32}
# Number of Kronecker products in each sum of compacter; the bottleneck's width must be a multiple of this number.
PRODUCTS = 4
TARGETS = ("q", "k", "v", "intermediate", "output")


@dataclass
class AdapterSettings(StrategyConfig):
    reduction: int | None = bounded(2, at_least=1)
    # Language → str. Not typed, because Hydra does not add keys to a typed mapping.
    pretrained: Any = None
    adapter: Adapter = Adapter.madx
    lora_rank: int = bounded(8, at_least=1)
    lora_alpha: int = bounded(8, at_least=1)
    lora_targets: list[str] = field(default_factory=lambda: ["q", "v"])
    prefix_length: int = bounded(30, at_least=1)
    library: LoraLibrary = LoraLibrary.auto


@dataclass
class LoraAdapterSettings(AdapterSettings):
    adapter: Adapter = Adapter.lora


@dataclass
class LowRankSettings(StrategyConfig):
    lora_rank: int = bounded(8, at_least=1)
    lora_alpha: int = bounded(32, at_least=1)
    lora_targets: list[str] = field(default_factory=lambda: ["q", "v"])
    library: LoraLibrary = LoraLibrary.auto


class LanguageAdapters(AddsParameters[AdapterSettings], LanguageParameters[AdapterSettings]):
    """Language-specific adapters. The encoder is trained too, unless ``freezes_encoder`` is true."""

    freezes_encoder: ClassVar[bool] = True
    has_adapters = True
    settings_type = AdapterSettings

    def __init__(self, settings: AdapterSettings) -> None:
        self.kind = Adapter(settings.adapter)
        check_library(settings)
        super().__init__(settings)
        self.sources: dict[str, str] = settings.pretrained or {}
        if not isinstance(self.sources, dict) or not all(isinstance(name, str) for name in self.sources.values()):
            raise UsageError(
                f"strategy.pretrained={self.sources}: must be null, or a folder or hub name per language, for example "
                "{en: DIR}"
            )
        if self.sources and uses_peft(settings):
            raise UsageError(
                "strategy.pretrained strategy.library=peft: only the library 'adapters' reads pretrained adapters; use "
                "strategy.library=adapters"
            )
        self.pretrained: dict[str, Mapping[str, Tensor]] = {}

    @property
    def parameters(self) -> Parameters:
        return Parameters(
            language_specific=lambda name: NAME in name.split("."),
            adapters=self.settings,
            encoder_frozen=self.freezes_encoder,
        )

    @property
    def reduction(self) -> int | None:
        """Width of the hidden states divided by the width of the bottleneck; None without a bottleneck."""
        default = DEFAULT_REDUCTION.get(self.kind)
        return default and (self.settings.reduction or default)

    @cached_property
    def contents(self) -> dict[str, str]:
        """Language → hash of its pretrained adapters."""
        return {language: adapter_identity(_key(language), name) for language, name in self.sources.items()}

    def version_id(self) -> int | str:
        return f"{self.version}+{digest(self.contents)[:12]}" if self.contents else self.version

    def described(self) -> dict[str, Any]:
        return super().described() | {"pretrained": self.contents}

    def notes(self, lengths: Sequence[Length]) -> Sequence[str]:
        kind, reduction = self.kind, self.settings.reduction
        if kind is Adapter.madx or self.reduction is None or reduction != DEFAULT_REDUCTION[Adapter.madx]:
            return ()
        return (
            f"strategy.reduction={reduction} is MAD-X's default, not {kind.value}'s; "
            f"set strategy.reduction=null to use {DEFAULT_REDUCTION[kind]}",
        )

    def check_encoder(self, family: Family | None, width: int | None, layers: int | None) -> None:
        kind = self.kind
        check_family(self.settings, family)
        if family is not None and kind is Adapter.prefix and not family.attends:
            raise UsageError(
                f"strategy.adapter=prefix: tested only with BERT's and RoBERTa's families, not with {family.title}; "
                "choose another kind"
            )
        if width is None or self.reduction is None:
            return
        if width % self.reduction:
            raise UsageError(f"strategy.reduction={self.reduction}: must divide the encoder's width {width}")
        if kind is Adapter.compacter and (width // self.reduction) % PRODUCTS:
            raise UsageError(
                f"strategy.reduction={self.reduction}: gives a bottleneck of {width // self.reduction}, but compacter "
                f"needs a multiple of {PRODUCTS}"
            )

    def config(self) -> Any:
        """Return the library's config of an adapter."""
        import adapters as library

        if self.kind is Adapter.lora:
            return lora_config(self.settings)
        if self.kind is Adapter.ia3:
            return library.IA3Config()
        if self.kind is Adapter.prefix:
            return library.PrefixTuningConfig(prefix_length=self.settings.prefix_length)
        if self.kind is Adapter.compacter:
            return library.CompacterConfig(reduction_factor=self.reduction, phm_dim=PRODUCTS)
        names = {Adapter.madx: "SeqBnInvConfig", Adapter.pfeiffer: "SeqBnConfig", Adapter.houlsby: "DoubleSeqBnConfig"}
        return getattr(library, names[self.kind])(reduction_factor=self.reduction)

    def prepare(self, model: Model, stream: Stream, library: Library) -> None:
        encoder: Any = model.encoder
        if uses_peft(self.settings):
            add_updates(model, self.settings, [NAME])
        else:
            add_adapters(encoder, self.settings, {NAME: self.config()}, NAME)
            _share_prefixes(encoder)
        for name, parameter in model.encoder.named_parameters():
            parameter.requires_grad_(not self.freezes_encoder or self.parameters.language_specific(name))
        super().prepare(model, stream, library)
        for language, source in self.sources.items():
            # Skip a model on the meta device: it has no values and is only used to count parameters.
            if language in stream.languages and not next(encoder.parameters()).is_meta:
                tensors = read_adapter(encoder, NAME, _key(language), source)
                self.pretrained[language] = {f"encoder.{name}": tensor for name, tensor in tensors.items()}

    def initial_parameters(self, language: str) -> Mapping[str, Tensor]:
        return self.pretrained.get(language, self.initial)


def resolved_library(settings: AdapterSettings | LowRankSettings, writes: bool) -> LoraLibrary:
    """Return the library: for LoRA with ``auto``, peft for models that write and with transformers 5, else adapters.

    Args:
        writes: whether the model writes texts (`xclrun.core.task.Task.writes`).

    Raises:
        UsageError: peft is set for another kind of adapter than LoRA.
    """
    library = LoraLibrary(settings.library)
    if isinstance(settings, AdapterSettings) and (kind := Adapter(settings.adapter)) is not Adapter.lora:
        if library is LoraLibrary.peft:
            raise UsageError(f"strategy={settings.name} strategy.library=peft: adds LoRA, not adapter={kind.value}")
        return LoraLibrary.adapters
    if library is LoraLibrary.auto:
        newer = int(version("transformers").partition(".")[0]) >= 5
        return LoraLibrary.peft if writes or newer else LoraLibrary.adapters
    return library


def uses_peft(settings: AdapterSettings | LowRankSettings) -> bool:
    return LoraLibrary(settings.library) is LoraLibrary.peft


def check_library(settings: AdapterSettings | LowRankSettings) -> None:
    """Check the LoRA targets, and that the library is installed."""
    targets = settings.lora_targets
    if not targets or len(set(targets)) < len(targets) or not {*targets} <= {*TARGETS}:
        raise UsageError(f"strategy.lora_targets={targets}: must be distinct values of {', '.join(TARGETS)}")
    library = LoraLibrary(settings.library)
    if library is not LoraLibrary.auto:
        require(library.value, f"strategy={settings.name}", library.value)


def check_family(settings: AdapterSettings | LowRankSettings, family: Family | None) -> None:
    """Check that the library supports a family of encoders."""
    if family is None:
        return
    if uses_peft(settings):
        check_targets(settings, family)
    elif not family.adapted:
        low_rank = not isinstance(settings, AdapterSettings) or Adapter(settings.adapter) is Adapter.lora
        choose = "use strategy.library=peft" if low_rank else "choose another strategy or encoder"
        raise UsageError(
            f"strategy={settings.name}: the library adapters does not support {family.title}'s family; {choose}"
        )


def lora_config(settings: AdapterSettings | LowRankSettings) -> Any:
    """Return the library's config of a LoRA."""
    import adapters

    targets = settings.lora_targets
    return adapters.LoRAConfig(
        r=settings.lora_rank,
        alpha=settings.lora_alpha,
        attn_matrices=[name for name in targets if len(name) == 1],
        selfattn_lora=any(len(name) == 1 for name in targets),
        intermediate_lora="intermediate" in targets,
        output_lora="output" in targets,
    )


def add_adapters(encoder: Any, settings: StrategyConfig, configs: Mapping[str, Any], active: Any) -> None:
    """Add adapters to an encoder.

    Args:
        configs: name → the library's config.
        active: the active adapter or composition.
    """
    import adapters

    try:
        adapters.init(encoder)
    except ValueError as error:
        raise UsageError(
            f"strategy={settings.name}: adapters do not fit this encoder ({error}); choose another encoder"
        ) from error
    if hasattr(encoder, "prompt_tuning"):
        # Remove an unused second reference to the embeddings.
        encoder.prompt_tuning.base_model_embeddings = None
    with quiet("adapters.model_mixin"):
        for name, config in configs.items():
            encoder.add_adapter(name, config=config)
        encoder.set_active_adapters(active)


def _share_prefixes(encoder: Any) -> None:
    """Register the prefixes under one name instead of one per layer, so that they are saved only once."""
    pool = getattr(encoder, "prefix_tuning", None)
    for module in encoder.modules():
        if pool is not None and module._modules.get("pool") is pool:
            del module._modules["pool"]
            vars(module)["pool"] = pool


def _key(language: str) -> str:
    return f"strategy.pretrained.{language}"
