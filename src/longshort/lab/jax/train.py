"""Training of the Long Range Arena's classifiers in JAX, with the data, batches and settings of the PyTorch recipes:

python -m longshort.lab.jax.train listops

A run has a folder: `last.safetensors` is all it needs to go on, `best` the model that was best on the development set
(with long-short or full attention, PyTorch's SequenceClassifier.from_pretrained reads it), `log.jsonl` what happened,
`result.json` what came out.
B sequences of a batch, L length.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from flax import nnx
from jax import Array
from rich.console import Console
from rich.progress import BarColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from longshort.lab.data.epochs import Epochs
from longshort.lab.runs.files import whole_file
from longshort.lab.data.imdb import Imdb
from longshort.lab.data.labelled import Labelled, LabelledSplits
from longshort.lab.data.listops import ListOps
from longshort.jax.sequence import SequenceClassifier, SequenceConfig
from longshort.jax.specs import AttentionSpec, Full, Linformer, Local, LongShort, Performer
from longshort.jax.weights import from_torch, to_torch

ATTENTIONS: dict[str, AttentionSpec] = {
    "full": Full(),
    "local": Local(window=50),
    "linformer": Linformer(rank=256),
    "performer": Performer(features=256),
}
JUDGED = 250  # sequences at once in an evaluation
SAVE_EVERY = 1_000  # steps: the most that a kill can cost


def attention_named(name: str) -> AttentionSpec:
    """ "8,32", or a name."""
    if name == "0,0":
        raise ValueError("window and rank are both 0: nothing to attend to")  # before any data is made
    if sizes := re.fullmatch(r"(\d+),(\d+)", name):
        return LongShort(int(sizes[1]), int(sizes[2]))
    if name not in ATTENTIONS:
        raise ValueError(
            f"there is no attention {name!r}; there are WINDOW,RANK such as '8,32', and {', '.join(ATTENTIONS)}"
        )
    return ATTENTIONS[name]


@dataclass(frozen=True)
class Training:
    """All that decides what comes out.

    longest: tokens of a sequence, at most; all batches are padded to it, since a step is compiled for one shape. The
    rate rises to its peak in `warmup` steps and falls evenly to the end.
    """

    task: Literal["listops", "text"]
    attention: str = "8,32"
    brackets: bool = False
    steps: int = 5_000
    warmup: int = 1_000
    longest: int = 2_000
    batch: int = 32
    rate: float = 1e-4
    dropout: float = 0.0
    evaluate_every: int = 50
    dtype: Literal["float32", "bfloat16"] = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "longest", "batch", "evaluate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.warmup < self.steps:
            raise ValueError(f"warmup must be below steps {self.steps}, got {self.warmup}")
        if self.brackets and self.task != "listops":
            raise ValueError(f"brackets are ListOps', not those of {self.task}")
        attention_named(self.attention)

    @property
    def name(self) -> str:
        task = f"{self.task}_brackets" if self.brackets else self.task
        attention = re.sub(r"^(\d+),(\d+)$", r"w\1r\2", self.attention)
        return f"jax.{task}.{attention}.seed{self.seed}"

    @cached_property
    def model(self) -> SequenceConfig:
        return SequenceConfig(
            attention_named(self.attention),
            classes=10 if self.task == "listops" else 2,
            length=-(-self.longest // 1024) * 1024,
            dropout=self.dropout,
            attention_dropout=self.dropout,
            dtype=self.dtype,
        )

    def splits(self, data: Path | None) -> LabelledSplits[Labelled]:
        source = ListOps(self.brackets, data) if self.task == "listops" else Imdb(data, held_out=0.1)
        return source.splits()

    def rate_at(self, step: Any) -> Any:
        fall = (self.steps - step) / (self.steps - self.warmup)
        return self.rate * jnp.where(step < self.warmup, (step + 1) / max(self.warmup, 1), fall)


USUAL = {
    "listops": Training("listops"),
    "text": Training("text", steps=20_000, warmup=8_000, longest=4_000, dropout=0.1, evaluate_every=500),
}


class Trainer:
    """A model, its optimizer and the functions compiled for them."""

    def __init__(self, training: Training) -> None:
        self.training = training
        model = SequenceClassifier(training.model, rngs=nnx.Rngs(params=training.seed, dropout=training.seed))
        parts: Any = nnx.split(model, nnx.Param, ...)
        self.graph, self.weights, self.rest = parts
        self.optimizer = optax.adamw(training.rate_at, eps=1e-6, weight_decay=0.0)
        self.state = self.optimizer.init(self.weights)
        self.step = jax.jit(self.stepped, donate_argnums=(0, 1))
        self.found = jax.jit(self.labels_found)

    def model(self, weights: Any) -> SequenceClassifier:
        made: SequenceClassifier = nnx.merge(self.graph, weights, self.rest, copy=True)
        return made

    def stepped(self, weights: Any, state: Any, number: Array, tokens: Array, labels: Array) -> tuple[Any, Any, Array]:
        def loss(weights: Any) -> Array:
            model = self.model(weights)
            nnx.reseed(model, dropout=jax.random.fold_in(jax.random.key(self.training.seed), number))
            scores = model(tokens).astype(jnp.float32)
            return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()

        value, grads = jax.value_and_grad(loss)(weights)
        updates, state = self.optimizer.update(grads, state, weights)
        return optax.apply_updates(weights, updates), state, value

    def learn(self, number: int, tokens: Any, labels: Any) -> Array:
        """A step; its loss."""
        self.weights, self.state, loss = self.step(self.weights, self.state, number, tokens, labels)
        return loss

    def labels_found(self, weights: Any, tokens: Array, labels: Array) -> Array:
        model = self.model(weights)
        model.eval()
        return (model(tokens).argmax(1) == labels).sum()

    def accuracy(self, items: Labelled) -> float:
        """In batches of like lengths, of which there are few, since each is compiled for."""
        order = np.argsort(items.lengths, kind="stable")
        at_once, most = min(JUDGED, len(order)), self.training.longest
        counts = []
        for a in range(0, len(order), at_once):
            which = order[a : a + at_once]
            tokens = items.sequences.padded(which, most, multiple=-(-most // 4))
            missing = at_once - len(which)  # of a last batch; its sequences have no tokens and a label of their own
            tokens = np.pad(tokens, ((0, missing), (0, 0)))
            labels = np.pad(items.labels[which], (0, missing), constant_values=-1)
            counts.append(self.found(self.weights, tokens, labels))
        return sum(int(count) for count in counts) / len(order)

    @property
    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        return {str(i): np.asarray(t) for i, t in enumerate(jax.tree.leaves((self.weights, self.state)))}

    def restore(self, arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        tree = jax.tree.structure((self.weights, self.state))
        self.weights, self.state = jax.tree.unflatten(tree, [jnp.asarray(arrays[str(i)]) for i in range(len(arrays))])


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    step: int = 0
    best: float = -1.0
    best_step: int = 0
    seconds: float = 0.0


class Folder:
    """What a run writes, each file whole or not at all."""

    def __init__(self, path: Path, training: Training, resume: bool) -> None:
        self.path, self.training, self.last, self.best = path, training, path / "last.safetensors", path / "best"
        if self.last.exists() and not resume:
            raise FileExistsError(f"{path} holds a run: go on with --resume, or give another --out or --seed")

    def save(self, trainer: Trainer, progress: Progress, data: str) -> None:
        record = {
            "training": json.dumps(asdict(self.training)),
            "progress": json.dumps(asdict(progress)),
            "data": data,
        }
        with whole_file(self.last) as file:
            file.write(save(trainer.arrays, metadata=record))

    def load(self, trainer: Trainer, data: str) -> Progress:
        """Where the run stopped; its beginning, if it is new. data: the fingerprint of what it learns from."""
        if not self.last.exists():
            return Progress()
        try:
            with safe_open(self.last, "np") as file:
                record, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{self.last} cannot be read: {error}") from None
        before, now = json.loads(record["training"]), asdict(self.training)
        changed = [f"{name} was {before.get(name)}, now {now[name]}" for name in now if before.get(name) != now[name]]
        if changed:
            raise ValueError(f"{self.path} was begun with other settings: {'; '.join(changed)}")
        if record["data"] != data:
            raise ValueError(f"{self.path} was begun with other data")
        trainer.restore(arrays)
        return Progress(**json.loads(record["progress"]))

    def save_best(self, trainer: Trainer) -> None:
        with whole_file(self.best / "model.safetensors") as file:
            file.write(save(to_torch(trainer.model(trainer.weights))))
        if (config := config_of_pytorch(self.training.model)) is not None:
            with whole_file(self.best / "config.json") as file:
                file.write(json.dumps(config, indent=2).encode())

    def load_best(self, trainer: Trainer) -> None:
        model = from_torch(load_file(self.best / "model.safetensors"), trainer.model(trainer.weights))
        trainer.weights = nnx.state(model, nnx.Param)

    def log(self, **facts: Any) -> None:
        with (self.path / "log.jsonl").open("a") as file:
            file.write(json.dumps(facts) + "\n")


def config_of_pytorch(config: SequenceConfig) -> dict[str, Any] | None:
    """As longshort.models.sequence writes it down; None of an attention that PyTorch's side has no like of."""
    spec = config.attention
    if not isinstance(spec, LongShort | Full):
        return None
    made = {f.name: getattr(config, f.name) for f in fields(config) if f.name not in ("attention", "dtype")}
    settings = asdict(spec) if isinstance(spec, LongShort) else {}
    return {"attention": {"type": f"longshort.nn.spec:{type(spec).__name__}", **settings}, **made}


class Signals:
    """Ctrl-C and SIGTERM end a run after the step it is in; the second one at once."""

    def __init__(self) -> None:
        self.stopped = False

    def __enter__(self) -> Signals:
        self.before = {each: signal.signal(each, self.stop) for each in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *unused: object) -> None:
        for each, handler in self.before.items():
            signal.signal(each, handler)

    def stop(self, *unused: object) -> None:
        if self.stopped:
            raise KeyboardInterrupt
        self.stopped = True


def fit(training: Training, data: Path | None, out: Path, resume: bool = False) -> dict[str, Any]:
    """Train, choose on the development set, and judge what was chosen on the test set."""
    folder = Folder(out / training.name, training, resume)
    splits, trainer = training.splits(data), Trainer(training)
    fingerprint = splits.fingerprint()
    progress = folder.load(trainer, fingerprint)
    epochs = Epochs(len(splits.train), training.batch, training.seed)
    folder.best.mkdir(parents=True, exist_ok=True)  # once nothing can be wrong with what was asked for
    with bar(training, progress) as tell, Signals() as signals:
        since = time.perf_counter() - progress.seconds
        while progress.step < training.steps and not signals.stopped:
            step = progress.step + 1
            which = epochs.at(step - 1)
            tokens = splits.train.sequences.padded(which, training.longest, training.longest)
            loss = trainer.learn(step, tokens, splits.train.labels[which])
            progress = replace(progress, step=step, seconds=time.perf_counter() - since)
            last = step == training.steps
            if step % training.evaluate_every == 0 or last:
                accuracy = trainer.accuracy(splits.dev)
                if accuracy > progress.best:
                    progress = replace(progress, best=accuracy, best_step=step)
                    folder.save_best(trainer)
                folder.log(step=step, loss=float(loss), accuracy=accuracy, seconds=progress.seconds)
                if not np.isfinite(loss):
                    raise ValueError(f"the loss is {float(loss)} at step {step}: try a lower rate, or float32")
            if step % SAVE_EVERY == 0:
                folder.save(trainer, progress, fingerprint)
            tell(progress)
    folder.save(trainer, progress, fingerprint)
    if progress.step < training.steps:
        raise KeyboardInterrupt(f"stopped after step {progress.step} of {training.steps}; go on with --resume")
    folder.load_best(trainer)
    result = {**asdict(training), **asdict(progress), "test": trainer.accuracy(splits.test), "device": device()}
    with whole_file(folder.path / "result.json") as file:
        file.write(json.dumps(result, indent=1).encode())
    return result


def device() -> str:
    return str(jax.devices()[0].device_kind)


@contextmanager
def bar(training: Training, begun: Progress) -> Iterator[Callable[[Progress], None]]:
    columns = ("{task.description}", BarColumn(), "{task.completed:,} of {task.total:,}", TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True)) as shown:
        task = shown.add_task(training.name, total=training.steps, completed=begun.step)

        def tell(progress: Progress) -> None:
            best = f", dev {100 * progress.best:.1f} %" if progress.best_step else ""
            shown.update(task, completed=progress.step, description=f"{training.name}{best}")

        yield tell


def main(
    task: Literal["listops", "text"],
    /,
    *,
    attention: str = "8,32",
    data: Path | None = None,
    brackets: bool = False,
    steps: int | None = None,
    batch: int = 32,
    longest: int | None = None,
    evaluate_every: int | None = None,
    dtype: Literal["float32", "bfloat16"] = "float32",
    seed: int = 0,
    out: Path = Path("out"),
    resume: bool = False,
) -> None:
    """Train a classifier of the Long Range Arena in JAX, with the paper's settings.

    Args:
        task: listops, or text (whether a review of IMDb is positive)
        attention: WINDOW,RANK, or full, local, linformer, performer
        data: for listops, the folder of the official files (generated unless given); for text, IMDb
        brackets: ListOps with closing brackets, which the paper's has not
        steps: other than the paper's 5,000 and 20,000; the warm-up is as much shorter
        batch: sequences of a step
        longest: tokens of a sequence, at most; 2,000 and 4,000 unless given
        evaluate_every: steps between evaluations on the development set; 50 and 500 unless given
        dtype: what is computed in
        seed: of weights, dropout and the order of examples
        out: the run gets a folder of its name in this one
        resume: go on with the run that is there
    """
    usual = USUAL[task]
    steps = usual.steps if steps is None else steps
    training = replace(
        usual,
        attention=attention,
        brackets=brackets,
        steps=steps,
        warmup=usual.warmup * steps // usual.steps,
        batch=batch,
        longest=usual.longest if longest is None else longest,
        evaluate_every=usual.evaluate_every if evaluate_every is None else evaluate_every,
        dtype=dtype,
        seed=seed,
    )
    result = fit(training, data, out, resume)
    print(f"test: {100 * result['test']:.2f} %, at step {result['best_step']:,}, the best on the development set")
    print(f"{out / training.name}: {result['seconds'] / 60:.1f} minutes on {result['device']}")


def command_line(command: Callable[..., None], name: str, arguments: Sequence[str] | None = None) -> int:
    """What is wrong, in one line."""
    try:
        tyro.cli(command, prog=name, args=arguments)
    except KeyboardInterrupt as stop:
        print(f"longshort.jax: {stop or 'interrupted'}", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        print(f"longshort.jax: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(command_line(main, "python -m longshort.lab.jax.train"))
