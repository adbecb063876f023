"""The workbench of a run: its model, strategy and sentences, and the operations on them.

Each method performs one operation, such as training a hop, with the current model and strategy. `xclrun.train.stages`
calls the methods: it loads model and strategy for the required hop, and stores the results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from xclrun.config.schema import FrozenPrecision, Generated, OptimizerState
from xclrun.core.identity import derive, hands_on
from xclrun.core.stream import Hop
from xclrun.data.batches import Batch, Encoded
from xclrun.data.encode import word_numbers
from xclrun.data.transfer import moved
from xclrun.model.heads import Limits, Prediction
from xclrun.model.network import Model, build, store_frozen_in_bf16
from xclrun.plan import Run
from xclrun.store.files import read_json, write_json
from xclrun.store.tensors import load_tensors, save_tensors
from xclrun.strategy import Context, State
from xclrun.strategy.shared.inference import evaluating
from xclrun.train import attention
from xclrun.train.checkpoint import Checkpoints
from xclrun.train.class_gradients import ClassGradients
from xclrun.train.encodings import Encodings, cached_cut, encodings
from xclrun.train.evaluate import Evaluator
from xclrun.train.features import features_key, load_cls, load_features, with_features
from xclrun.train.hop import HopWork
from xclrun.train.loop import GradientObserver, HopTraining, load_weights, trained_tensors
from xclrun.train.optimize import optimizer_state
from xclrun.train.overlap import GradientOverlap
from xclrun.train.points import SPLITS, Points
from xclrun.train.precision import choose_device, set_deterministic, slow_precision
from xclrun.train.progress import Listener
from xclrun.train.ranks import ALONE, Ranks, SharedStop, repeated
from xclrun.train.stop import StopFlag

if TYPE_CHECKING:
    import pyarrow as pa

# A split of a language: (language, name), with the name ``train``, ``dev`` or ``test``.
Split = tuple[str, str]


@dataclass(frozen=True)
class Stored:
    """Implements `Library`: reads weights and states after earlier hops, and features of hop 0, from the store."""

    run: Run

    def tensors(self, hop: int, names: Sequence[str]) -> Mapping[str, Tensor]:
        return load_tensors(self.run.store.path(self.run.stages[hop].train) / "weights.safetensors", names)

    def state(self, hop: int) -> State:
        return load_state(self.run.store.path(str(self.run.stages[hop].state)), STATE)

    def features(self, language: str, split: str) -> np.ndarray:
        """Return a split's [CLS] features from the encoder of hop 0, (n, H) float32."""
        return load_cls(self.run.store.path(lookup_key(self.run, (language, split))))


# File names of `State.facts` and `State.tensors`: `STATE` after `Strategy.end_hop`, `GATHERED` before `end_hop`.
STATE = ("facts.json", "state.safetensors")
GATHERED = ("gathered.json", "gathered.safetensors")
# File with the optimiser's state after a hop, if the next hop continues with this state.
OPTIMIZER = "optimizer.safetensors"


def save_state(folder: Path, files: tuple[str, str], state: State) -> None:
    """Write a strategy's state into a folder of the store."""
    write_json(folder / files[0], state.facts)
    if state.tensors:
        save_tensors(folder / files[1], moved(state.tensors, "cpu"))


def load_state(folder: Path, files: tuple[str, str]) -> State:
    """Return the state that `save_state` wrote."""
    path = folder / files[1]
    return State(read_json(folder / files[0]), load_tensors(path) if path.is_file() else {})


class Workbench:
    """Model, strategy and sentences of a run.

    Each rank of a run has a workbench, and all ranks execute the `repeated` methods.

    Attributes:
        weights_of: the hop whose weights the model currently has; None if they belong to no hop.
        state_of: the hop whose state the strategy currently has; None if it belongs to no hop.
        features: key in the store → sentences with features of a frozen encoder.
    """

    def __init__(self, run: Run, listener: Listener, stop: StopFlag, ranks: Ranks = ALONE) -> None:
        self.run, self.listener, self.ranks = run, listener, ranks
        self.stop = SharedStop(stop, ranks) if ranks.several else stop
        self.device = choose_device(run.config)
        if ranks.several and self.device.type == "cuda":
            self.device = torch.device("cuda", ranks.local)
            torch.cuda.set_device(self.device)
        set_deterministic(run.config, self.device)
        self.strategy = run.strategy()
        self.weights_of: int | None = None
        self.state_of: int | None = 0
        self.features: dict[str, Encoded] = {}

    # Computed on first use, because a run whose stages are all in the store does not need them.

    @cached_property
    def encodings(self) -> Encodings:
        if slow := slow_precision(self.run.config, self.device):
            self.listener.noted(slow)
        return encodings(self.run, self.listener.noted)

    @cached_property
    def model(self) -> Model:
        return self.untrained()

    @cached_property
    def evaluator(self) -> Evaluator:
        evaluate, precision = self.run.config.evaluate, self.run.config.trainer.precision.value
        return Evaluator(
            dataset=self.run.dataset,
            device=self.device,
            batch_size=evaluate.batch_size,
            batch_tokens=evaluate.batch_tokens,
            precision=precision,
            slot_f1=evaluate.slot_f1,
            ranks=self.ranks,
        )

    @cached_property
    def cut(self) -> dict[str, dict[str, int]]:
        """Counts of the data lost to the length limit (see `Encodings.cut`)."""
        if "encodings" not in self.__dict__ and (cut := cached_cut(self.run, self.listener.noted)) is not None:
            return cut
        return self.encodings.cut(self.run.dataset)

    def untrained(self) -> Model:
        """Return a new model before fine-tuning, prepared by the strategy."""
        config, encodings, sizes = self.run.config, self.encodings, self.run.heads
        first, several = sizes[0], sizes if len(sizes) > 1 else ()
        model = build(
            config.model,
            encodings.tokenizer,
            first.classes,
            first.tags,
            config.seed,
            encodings.token_ids,
            first.task,
            several,
            first.settings,
        )
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive(config.seed, "strategy"))
            self.strategy.prepare(model, self.run.stream, Stored(self.run))
        if config.model.frozen_precision is FrozenPrecision.bf16:
            store_frozen_in_bf16(model.encoder)
        return model.to(self.device)

    def check_stop(self) -> None:
        """Check the stop flag. With several ranks do nothing, because only some ranks call this method."""
        if not self.ranks.several:
            self.stop.check()

    @repeated
    def reset(self) -> None:
        """Replace the model by a new model that is not fine-tuned."""
        self.model = self.untrained()

    @repeated
    def load_weights(self, file: Path) -> None:
        """Load a hop's weights from a file that `train` wrote."""
        load_weights(self.model, load_tensors(file))

    @repeated
    def load_state(self, folder: Path | None, files: tuple[str, str] = STATE) -> None:
        """Load the strategy's state from ``folder``; None: the state before the first hop."""
        state = self.run.strategy().state_dict() if folder is None else load_state(folder, files)
        self.strategy.load_state_dict(state)

    @repeated
    def load_features(self, key: str, folder: Path, split: Split) -> None:
        """Load the features of a split from a folder of the store."""
        self.features[key] = load_features(folder, self.encodings.splits[split])

    # Sentences.

    def features_key(self, hop: Hop, split: Split) -> str | None:
        """Return the store's key of the features on which a hop is trained; None if it is trained on subwords."""
        stage = self.run.stages[hop.index]
        if not stage.plan.still:
            return None
        trained = self.run.stages[stage.encoder].train
        return features_key(trained, self.run.dataset.fingerprints[split], self.run.config.trainer.precision.value)

    def with_features(self, split: Split, words: bool = True) -> Encoded:
        """Return a split with the current encoder's features of [CLS], and of words if ``words``."""
        precision = self.run.config.trainer.precision.value
        return with_features(self.model, self.encodings.splits[split], self.device, precision, words)

    def sentences(self, hop: Hop, language: str, split: str) -> Encoded:
        """Return a split for a hop: with loaded features if the hop leaves the encoder unchanged, else as subwords."""
        key = self.features_key(hop, (language, split))
        return self.encodings.splits[language, split] if key is None else self.features[key]

    def dev(self, hop: Hop) -> dict[str, Encoded]:
        """Return the nonempty dev splits of the languages that select the best epoch of a hop."""
        languages = [language for language in hop.select if self.run.dataset.split(language, "dev")]
        return {language: self.sentences(hop, language, "dev") for language in languages}

    def point_splits(self) -> list[Split]:
        """Return the splits that are evaluated at points inside a hop."""
        evaluate = self.run.config.evaluate
        if not evaluate.has_points:
            return []
        return [(language, split) for language in self.run.stream.languages for split in SPLITS[evaluate.point_splits]]

    def context(self, hop: Hop, trains: bool = True) -> Context:
        """Return the context for the strategy's hooks: for the training of a hop if ``trains``, else for evaluation."""
        trainer = self.run.trainer(hop)
        # Include the keys of blocks, because strategies use the training data of all earlier hops.
        stream = self.run.stream
        keys = dict.fromkeys([*stream.languages, *(key for other in stream.hops for key in other.train)])
        train = {key: self.encodings.splits[key, "train"] for key in keys}
        if trains:
            train |= {language: self.sentences(hop, language, "train") for language in hop.train}
        context = Context(
            model=self.model,
            hop=hop,
            stream=self.run.stream,
            train=train,
            device=self.device,
            seed=self.run.config.seed,
            batch_size=0,
            precision=trainer.precision.value,
            check_stop=self.check_stop,
        )
        if trains:
            chosen = self.strategy.choose(context)
            context.train = train | {key: train[key].select(indices) for key, indices in chosen.items()}
        context.batch_size = trainer.batch(sum(len(context.train[language]) for language in hop.train))
        return context

    def work(self, context: Context) -> HopWork:
        """Return what the training of a hop uses; ``context`` is the context of the training."""
        hop = context.hop
        return HopWork(
            context=context,
            strategy=self.strategy,
            trainer=self.run.trainer(hop),
            plan=self.run.plan(hop),
            dev=self.dev(hop),
            points={(language, split): self.sentences(hop, language, split) for language, split in self.point_splits()},
            earlier=self.learned(hop.index - 1),
            weights=lambda: self.stored_weights(hop),
            evaluator=self.evaluator,
            listener=self.listener,
            stop=self.stop,
            ranks=self.ranks,
        )

    # Operations of a hop.

    @repeated
    def train(
        self, hop: Hop, folder: Path, optimizer: Path | None, last: Path | None = None
    ) -> tuple[dict[str, Any], Callable[[Path], None]]:
        """Train a hop, starting with the model and the strategy's state after the parent hop.

        Args:
            folder: folder of the checkpoints; training resumes from the newest one.
            optimizer: file with the optimiser's state after the parent hop; None: start with a new state.
            last: file with the nonzero gradients of the parent's last step, for `GradientOverlap`.

        Returns:
            The counters (`xclrun.train.loop.Position` as a dict), and a function that writes the weights and related
            files into a folder of the store.
        """
        context, trainer, evaluate = self.context(hop), self.run.trainer(hop), self.run.config.evaluate
        # Training changes the weights, and hooks can change the strategy's state.
        self.weights_of = self.state_of = None
        checkpoints = Checkpoints(folder, self.listener.noted)
        inherited, work = self._begin(context, optimizer), self.work(context)
        points, every = None, evaluate.every(sum(len(context.train[language]) for language in hop.train))
        if every is not None:
            points = Points(work, every, evaluate.kept, checkpoints.folder, checkpoints.warn)
        observers: dict[str, GradientObserver] = {}
        if evaluate.gradient_overlap:
            observers["overlap"] = GradientOverlap(self.model, load_tensors(last) if last else {})
        if evaluate.class_gradients:
            observers["class_gradients"] = ClassGradients(self.model, self.run.dataset.targets)
        training = HopTraining(work, checkpoints, points, inherited, observers)
        counters = training.run()
        hands_over = trainer.optimizer_state is OptimizerState.kept and hands_on(hop, self.run.stream)

        def write(folder: Path) -> None:
            save_tensors(folder / "weights.safetensors", moved(self.stored_weights(hop), "cpu"))
            if hands_over:
                # Store the state after the last update, even if an earlier epoch was selected.
                state = optimizer_state(training.optimizer, self.model)
                save_tensors(folder / OPTIMIZER, moved(state, "cpu"))
            if points is not None:
                points.write(folder, counters["points"])
            for observer in observers.values():
                observer.write(folder)
            if training.gathers:
                save_state(folder, GATHERED, training.gathered)

        return counters, write

    def stored_weights(self, hop: Hop) -> Mapping[str, Tensor]:
        """Return the weights to store after a hop: trained weights if it leaves the encoder unchanged, else all."""
        return trained_tensors(self.model) if self.run.plan(hop).still else self.model.state_dict()

    def _begin(self, context: Context, optimizer: Path | None) -> dict[str, Tensor]:
        """Begin a hop; return the entries of the parent's optimiser state with which this hop continues.

        Language-specific parameters, and parameters that the hop resets, start with a new state.
        """
        if optimizer is None:
            self.strategy.begin_hop(context)
            return {}
        before = {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}
        self.strategy.begin_hop(context)
        continued = {
            name
            for name, parameter in self.model.named_parameters()
            if not self.strategy.parameters.language_specific(name) and torch.equal(parameter, before[name])
        }
        return {key: tensor for key, tensor in load_tensors(optimizer).items() if key.rpartition("/")[0] in continued}

    @repeated
    def end_hop(self, hop: Hop) -> dict[str, float]:
        """Update the strategy's state after a trained hop; return its size and the ``seconds`` of the update."""
        self.state_of, began = None, time.monotonic()
        # A model that was trained and one that was loaded would be in different modes.
        with evaluating(self.model):
            self.strategy.end_hop(self.context(hop))
        return {**self.strategy.footprint(), "seconds": time.monotonic() - began}

    @repeated
    def predictions(self, hop: Hop) -> list[dict[str, list[Any]]]:
        """Return the prediction columns of each language's test split after a hop."""
        context, columns = self.context(hop, trains=False), []
        for language in self._served(hop):

            def answer(batch: Batch, language: str = language) -> Prediction:
                # A strategy's prediction can take long, so check the stop flag before every batch.
                self.check_stop()
                return self.strategy.predict(batch, language, "test", context)

            sentences = self.sentences(hop, language, "test")
            columns.append(self.evaluator.predict(self.model, sentences, language, "test", answer, self._limits))
        return columns

    @repeated
    def next_block(self, hop: Hop) -> dict[str, list[Any]]:
        """Return the prediction columns of the block that is learned after a hop (`Hop.codes`)."""
        context, key = self.context(hop, trains=False), hop.codes
        self.strategy.for_language(key, self.learned(hop.index))

        def answer(batch: Batch) -> Prediction:
            self.check_stop()
            return self.strategy.predict(batch, key, "train", context)

        return self.evaluator.predict(self.model, self.sentences(hop, key, "train"), key, "train", answer)

    @property
    def _limits(self) -> Limits | None:
        """Limits of the texts that are written after a hop; None if none are written."""
        config = self.run.config
        if config.evaluate.generate is Generated.none:
            return None
        new = config.new_tokens
        stop, batch_tokens = tuple(config.generation.stop), config.generation.batch_tokens
        # Prompt and text share the positions of a causal model.
        prompt = config.model.max_length - (0 if self.model.decodes else new)
        return Limits(new, prompt, stop, batch_tokens)

    def attention(self, hop: Hop) -> pa.Table:
        """Return the attention of [CLS] in the test splits after a hop (see `xclrun.train.attention`)."""
        config, dataset, summaries = self.run.config, self.run.dataset, {}
        for language in self._served(hop):
            examples, encoded = dataset.split(language, "test"), self.encodings.splits[language, "test"]
            tokenizer, whole = self.encodings.tokenizer, dataset.task_of(language).words
            numbers = word_numbers(examples, tokenizer, config.model.max_length, whole)
            shares = attention.subword_shares(self.model, encoded, self.device, config.trainer.precision.value)
            summaries[language] = attention.by_word(shares, numbers, examples)
        return attention.table(summaries)

    def _served(self, hop: Hop) -> Iterator[str]:
        """Yield each evaluated language after loading its parameters into the model."""
        seen = self.learned(hop.index)
        if self.run.plan(hop).serve:
            # Language-specific parameters replace weights, so the model's weights belong to no hop.
            self.weights_of = None
        for language in sorted(self.run.stream.languages):
            self.stop.check()
            self.strategy.for_language(language, seen)
            yield language

    def learned(self, index: int) -> list[str]:
        """Return the languages of all hops up to ``index``."""
        return [language for hop in self.run.stream.hops[: index + 1] for language in hop.train]


def lookup_key(run: Run, split: Split) -> str:
    """Return the store's key of a split's [CLS] features, computed with the encoder of hop 0."""
    precision = run.config.trainer.precision.value
    return features_key(run.stages[0].train, run.dataset.fingerprints[split], precision, words=False)
