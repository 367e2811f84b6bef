"""The command line: train, evaluate, generate, convert, bench, report, analyse, recipes, demo."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_type_hints

from longshort.version import VERSION

DESCRIPTION = """Long-short attention: train models, evaluate them, let them write, measure them.

longshort recipes lists what can be trained; longshort COMMAND --help tells what a command takes;
longshort --version prints the version.
"""
PACKAGES = {"torch": "train", "tyro": "train", "rich": "train", "accelerate": "train"}
DRAWING = ("demo", "bench", "report", "analyse")  # commands that need matplotlib too


def demo(*, out: Path = Path("out/demo")) -> None:
    """Train a small language model on this machine (about two minutes on two cores), and show what it learned.

    Interrupted, it goes on where it stopped; finished, it shows its results again. Remove `out` to start anew.

    Args:
        out: folder for the run and two figures
    """
    from rich.console import Console

    from longshort.lab.demo import demo

    demo(out, console=Console())


def recipes() -> None:
    """List everything that `longshort train` can do, with the numbers that come out."""
    from rich.console import Console

    from longshort.lab.recipes import RECIPES

    console = Console()
    for name, recipe in RECIPES.items():
        console.print(f"[bold]{name}[/bold]  {first_lines(recipe)}", highlight=False, soft_wrap=True)


def first_lines(recipe: Callable[..., Any]) -> str:
    return " ".join((inspect.getdoc(recipe) or "").split("\n\n")[0].split())


def train_command(recipe: Callable[..., Any]) -> Callable[..., None]:
    """A command with the recipe's options and those that all trainings have."""

    def command(**given: Any) -> None:
        from longshort.lab.recipes.options import adjusted
        from longshort.lab.train import train

        own = {name: given.pop(name) for name in inspect.signature(recipe).parameters}
        where = {name: given.pop(name) for name in ("out", "resume", "cpu", "parallel")}
        run, out = adjusted(recipe(**own), **given), where.pop("out")
        train(run, out, **where, keep_length=given["steps"] is None)

    def common(
        *,
        out: Path = Path("out"),
        resume: bool = False,
        cpu: bool = False,
        parallel: Literal["ddp", "fsdp"] = "ddp",
        steps: int | None = None,
        accumulate: int | None = None,
        precision: Literal["auto", "fp32", "bf16"] | None = None,
        compile: bool | None = None,
        seed: int | None = None,
        log_every: int | None = None,
        evaluate_every: int | None = None,
        save_every: int | None = None,
    ) -> None: ...

    theirs = inspect.signature(recipe).parameters
    mine = {name: p for name, p in inspect.signature(common).parameters.items() if name not in theirs}
    options = [p.replace(kind=p.KEYWORD_ONLY) for p in (*theirs.values(), *mine.values())]
    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    hints = {**get_type_hints(common), **get_type_hints(recipe)}
    command.__annotations__ = {p.name: hints[p.name] for p in options}
    about, _, arguments = (inspect.getdoc(recipe) or "").partition("Args:")
    named = {line.split(":")[0].strip(): line for line in COMMON.splitlines()}
    own = own_values(recipe)
    told = "\n".join(line + own.get(name, "") for name, line in named.items() if name not in theirs)
    command.__doc__ = f"{about}\nArgs:{arguments}\n{told}\n"
    return command


def own_values(recipe: Callable[..., Any]) -> dict[str, str]:
    """What a recipe has for options that are not given, where it needs nothing else to say so."""
    if any(p.default is p.empty for p in inspect.signature(recipe).parameters.values()):
        return {}
    run = recipe()
    values = {name: f"{getattr(run, name):,}" for name in ("log_every", "evaluate_every", "save_every")}
    values["steps"] = " + ".join(f"{each.steps:,}" for each in run.chain)
    return {name: f"; the recipe has {value}" for name, value in values.items()}


COMMON = """    out: the run gets a folder of its name in this one
    resume: go on from the last checkpoint, where there is one
    cpu: leave the GPU alone
    parallel: with several processes, each has the whole model (ddp) or a share of it (fsdp)
    steps: other than the recipe's or those that a resumed run began with; in every run of a chain, and schedules fit
    accumulate: divide each batch into so many parts, for less memory
    precision: auto is bf16 where a GPU has it, else fp32
    compile: use torch.compile on a GPU
    seed: of weights and dropout
    log_every: steps between the lines of the log
    evaluate_every: steps between evaluations on the development set
    save_every: steps between checkpoints: the most that a kill can cost
"""


def replay(record: Path) -> Any:
    """Do a run again as its run.json records it.

    Args:
        record: the file run.json of a run's folder
    """
    from longshort.lab.train import read_run

    return read_run(record)


def evaluate(
    model: str,
    /,
    *,
    split: Literal["dev", "test", "both"] = "both",
    on: tuple[Literal["val", "real", "v2", "c", "a", "r", "nine", "robustness"], ...] = (),
    corrupt: Path | None = None,
    side: int | None = None,
    crop: float | None = None,
    protocol: Literal["paper", "fast"] = "paper",
    corpus: Literal["enwik8", "text8"] | None = None,
    data: Path | None = None,
    text: Path | None = None,
    context: int = 32_768,
    step: int = 512,
    batch: int | None = None,
    which: Literal["best", "last"] = "best",
    compile: bool = False,
    out: Path | None = None,
    cpu: bool = False,
) -> None:
    """Evaluate a model: bits per character of a language model, on the development and test text of its training, or
    accuracy of a classifier, on those examples; of a vision model, on ImageNet and on sets made to find its weaknesses.

    Several processes (torchrun) divide the work. For classifiers of sequences, of the options only `split`, `data`,
    `which`, `out` and `cpu` mean something; for vision models `on`, `corrupt`, `side`, `crop`, `data`, `batch`,
    `which`, `out` and `cpu`.

    Args:
        model: folder of a run, of a checkpoint or of a saved model, a name on the Hugging Face hub, or a .pth file of
            the released ViL-LS
        split: which text, or which examples; not for vision models
        on: sets in the folder --data: val (ImageNet's own), real, v2, c, a, r, nine (ImageNet-9); robustness prints the
            paper's table of them
        corrupt: a folder of pictures, with a folder for each class, to be corrupted as in ImageNet-C on the way
        side: of pictures, in pixels, other than in the training
        crop: share of a picture's shorter side that is seen, with `side` or alone
        protocol: paper: sequences of `context` characters, the last `step` of each counted; fast: the text is read once
        corpus: another text than the model's own: enwik8 or text8
        data: where the text or the examples of the training are now, if they moved; or the folder of --on's sets
        text: another text than the model's own: this file or folder, all of it
        context: characters of a sequence
        step: characters counted in a sequence
        batch: sequences or pictures at once
        which: the best or the last checkpoint of a run
        compile: by torch.compile, which takes half a minute and makes long texts faster
        out: JSON file for the result
        cpu: leave the GPU alone
    """
    options = dict(locals())
    from longshort.lab.cli.evaluate import Options, evaluate_model

    evaluate_model(options.pop("model"), Options(**options))


def generate(
    model: str,
    /,
    *,
    prompt: str | None = None,
    count: int = 500,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    which: Literal["best", "last"] = "best",
    cpu: bool = False,
) -> None:
    """Let a language model go on with a text; Ctrl-C ends it.

    Args:
        model: folder of a run, of a checkpoint or of a saved model, or a name on the Hugging Face hub
        prompt: the text to go on with; unless given, what comes from standard input, and on a terminal a new line
        count: characters (bytes) to write
        temperature: below 1 more likely ones, above 1 more surprising ones; 0 always the likeliest
        top_k: choose among the k likeliest only
        top_p: choose among the fewest whose probabilities reach p
        seed: the same seed writes the same text
        which: the best or the last checkpoint of a run
        cpu: leave the GPU alone
    """
    from longshort.generate import Sampling
    from longshort.lab.cli.generate import write

    if prompt is not None:
        text = prompt.encode(errors="surrogateescape")
    else:
        text = b"" if sys.stdin.isatty() else sys.stdin.buffer.read()
    write(model, text, count, Sampling(temperature, top_k, top_p), seed=seed, which=which, cpu=cpu)


def convert(
    checkpoint: str,
    /,
    *,
    out: Path,
    max_length: int = 4096,
    window: int = 128,
    rank: int = 64,
    global_tokens: int = 1,
    dual_norm: bool = True,
    eps: float = 10.0,
    text: Path | None = None,
    head: Literal["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]
    | None = None,
    classes: int | None = None,
    seed: int = 0,
) -> None:
    """Turn a RoBERTa or BERT into a long-short encoder that reads longer texts, and say how far it moved.

    Weights are copied and learned positions repeated; what long-short attention adds begins near to the original, by
    what that does with a little text. The result is a model of transformers: import longshort.hf, then
    AutoModelForSequenceClassification.from_pretrained(out) and so on.

    Args:
        checkpoint: folder of a model, or a name on the Hugging Face hub
        out: folder for the new model and its tokenizer
        max_length: the most tokens of a text
        window: tokens of a home segment; a token also sees half of that on either side
        rank: rows distilled from the whole text
        global_tokens: so many tokens at the start of a text, CLS at least, see all and are seen by all
        dual_norm: with --no-dual-norm, keys, values and rows are not normalised
        eps: of DualLN, beside a variance of 1; the smaller, the more it normalises, and the further the model moves
        text: a file to begin with, in the language of the model; Python's own manual unless given
        head: other than the checkpoint's own; it is new, but for BERT's pooler, which a masked-LM head does without
        classes: of a new head, 2 unless given
        seed: of what is new
    """
    from longshort.lab.cli.convert import write_converted

    write_converted(
        checkpoint,
        out,
        max_length=max_length,
        window=window,
        rank=rank,
        global_tokens=global_tokens,
        dual_norm=dual_norm,
        eps=eps,
        text=text,
        head=head,
        classes=classes,
        seed=seed,
    )


def bench(
    what: Literal["attention", "charlm", "lengths", "macs", "vision"],
    table: Literal["lra", "vision"] = "lra",
    /,
    *,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    out: Path | None = None,
    repeats: int | None = None,
    only: str = "",
    flex: bool = False,
    compile: bool = False,
) -> None:
    """Measure speed on this machine, or count.

    attention: each layer against full attention; on a GPU the operation alone and the memory too, with a figure.
    charlm: training steps of the language models against a GPT, and time per generated character (on a GPU).
    lengths: time against length on the CPU, as a figure.
    vision: latency, training steps and memory of the vision models over the size of images, beside full attention and
    timm's Swin, with a figure (on a GPU).
    macs lra: multiply-accumulates of the models of the Long Range Arena, beside the paper's.
    macs vision: the same, and parameters, of ViL-LS, CvT*-LS and CvT.

    Args:
        what: what to measure
        table: for macs, the models to count
        device: where to measure; auto takes a GPU if there is one
        out: file for the result: JSON, or PNG for lengths; out/bench_... unless given
        repeats: timed runs of each case, of which the median counts; 5 on a CPU and 20 on a GPU unless given
        only: measure the cases with this in their name
        flex: on a GPU, measure FlexAttention on the same mask too; it compiles for up to half a minute a case
        compile: for vision, compile all models, which takes about a minute each
    """
    if repeats is not None and repeats < 1:
        raise SystemExit(refuse(f"repeats must be at least 1, got {repeats}", 2))
    out = out or Path(f"out/bench_{what}.{'png' if what == 'lengths' else 'json'}")
    from torch.cuda import is_available

    gpu = device == "cuda" or (device == "auto" and is_available())
    if (gpu or what in ("charlm", "vision")) and what not in ("lengths", "macs") and not is_available():
        from longshort.lab.bench.gpu import NO_CUDA

        raise SystemExit(refuse(NO_CUDA, 1))
    attention = bench_gpu if gpu else bench_cpu
    macs = bench_macs if table == "lra" else bench_vision_macs
    benches = {"attention": attention, "charlm": bench_charlm, "lengths": bench_lengths, "macs": macs}
    benches["vision"] = partial(bench_vision, compiled=compile)
    benches[what](out, only=only, repeats=repeats, flex=flex)


def bench_cpu(out: Path, *, only: str, repeats: int | None, flex: bool) -> None:
    from rich.console import Console

    from longshort.lab.bench.attention import bench_attention, cases

    bench_attention(chosen(cases(), only), out, repeats=repeats or 5, console=Console())


def bench_gpu(out: Path, *, only: str, repeats: int | None, flex: bool) -> None:
    from longshort.lab.bench.gpu import REPEATS, bench_gpu, wide_console
    from longshort.lab.bench.settings import settings

    bench_gpu(chosen(settings(), only), out, repeats=repeats or REPEATS, flex=flex, console=wide_console())


def bench_charlm(out: Path, *, only: str, repeats: int | None, flex: bool) -> None:
    from longshort.lab.bench.charlm import bench_charlm, cases
    from longshort.lab.bench.gpu import wide_console

    bench_charlm(chosen(cases(), only), out, repeats=repeats or 5, console=wide_console())


def bench_lengths(out: Path, *, only: str, repeats: int | None, flex: bool) -> None:
    from rich.console import Console

    from longshort.lab.bench.lengths import bench_lengths

    bench_lengths(out, console=Console())


def bench_macs(out: Path, *, only: str, repeats: int | None, flex: bool) -> None:
    from longshort.lab.bench.gpu import wide_console
    from longshort.lab.bench.lra import bench_macs, counted

    bench_macs(chosen(counted(), only), out, console=wide_console())


def bench_vision(out: Path, *, only: str, repeats: int | None, flex: bool, compiled: bool) -> None:
    from longshort.lab.bench.gpu import wide_console
    from longshort.lab.bench.vision import bench_vision, cases

    bench_vision(chosen(cases(), only), out, repeats=repeats or 5, compiled=compiled, console=wide_console())


def bench_vision_macs(out: Path, *, only: str, repeats: int | None, flex: bool) -> None:
    from longshort.lab.bench.gpu import wide_console
    from longshort.lab.bench.vision_macs import LINES, bench_vision_macs

    bench_vision_macs(chosen(LINES, only), out, console=wide_console())


def report(
    table: Literal["lra", "imagenette", "imdb"],
    /,
    *,
    out: Path | None = None,
    data: Path | None = None,
    checkpoint: str = "roberta-base",
    length: int = 2_048,
    only: str = "",
    seeds: int | None = None,
    steps: int | None = None,
    jobs: int = 1,
    train: bool = True,
    cpu: bool = False,
) -> None:
    """Train the models of a table, evaluate them, and print and write the table, beside the paper's where it has one.

    Interrupted, the same command goes on where it stopped; what is finished is not done again. What was not trained is
    "not yet run".
    lra: the Long Range Arena.
    imagenette: CvT*-LS-13 with and without DualLN and CvT-13 with full attention on ten classes of ImageNet; not in the
    paper.
    imdb: a pretrained encoder converted to long-short attention on reviews, beside the original, cut short or with its
    positions repeated.

    Args:
        table: which table
        out: folder for the runs, the table as .md and all figures as .json; out/lra and so on unless given
        data: for lra, a folder with the data sets, each in a folder: imdb, aan, cifar10, and listops and pathfinder for
            the official ones; without it they are looked for in ~/.cache/longshort/lra. For imagenette, its folder, or
            a zip or tar file of it; for imdb, its folder or tar
        checkpoint: for imdb, a RoBERTa or BERT that was not converted: a folder, or a name on the Hugging Face hub
        length: for imdb, the most tokens of a review that long-short attention reads
        only: train and print the lines with this in their name, such as text/ or listops/8,32 or cvt_13/160
        seeds: so many of each line, not the table's number, which is 0 for lines that are there for comparison
        steps: so many, not the recipe's, to try it out: such runs and tables have names of their own
        jobs: runs at a time, which share the GPU
        train: with --no-train, show what there is
        cpu: leave the GPU alone
    """
    from rich.console import Console

    from longshort.lab.report import Wish

    for name, number in dict(seeds=seeds, steps=steps, jobs=jobs).items():
        if number is not None and number < 1:
            raise SystemExit(refuse(f"{name} must be at least 1, got {number}", 2))
    known = import_module(f"longshort.lab.report.{table}")
    whole = known.lines_of(checkpoint, length) if table == "imdb" else known.LINES
    lines = chosen(whole, only)
    wish = Wish(whole, lines, out or Path("out") / table, data, seeds, steps, jobs, train, cpu)
    known.report(wish, console=Console())


def chosen(cases: Sequence[Any], only: str) -> list[Any]:
    from longshort.lab.bench.run import named

    try:
        return named(cases, only)
    except ValueError as error:
        raise SystemExit(refuse(str(error), 2)) from None


def analyse(
    what: Literal["visibility", "curves", "attention", "look", "similarity", "norms"],
    models: tuple[str, ...] = (),
    /,
    *,
    out: Path | None = None,
    against: Literal["step", "seconds"] = "step",
    prompt: Path | None = None,
    image: Path | None = None,
    at: tuple[int, ...] = (),
    data: Path | None = None,
    count: int = 64,
) -> None:
    """Draw what is inside, as a PNG.

    visibility: who sees whom, in the three geometries.
    curves RUN...: bits per character of runs while training, or the cross entropy of classifiers.
    attention MODEL: how much of each layer's attention goes to the window and how much to the rows.
    look MODEL --image FILE --at Y X: where a patch of an image looks, through its window and through the rows.
    look MODEL --prompt FILE --at N: the same for a character of a text.
    similarity MODEL...: how alike the patches of an image become from block to block of vision models.
    norms [MODEL...]: how much longer the window's keys and values are than the rows', with and without DualLN: of a
    language model, an encoder and a vision model at initialisation, each replaced by the given models of its kind.

    Args:
        what: what to draw
        models: folders of runs; for all but curves also saved models or names on the Hugging Face hub
        out: the file, .png, .pdf or .svg; out/visibility.png and so on unless given
        against: curves against steps or seconds
        prompt: attention on this text instead of the model's own development text, norms instead of Python's source
        image: for look, a picture
        at: for look, a pixel of the file (Y X), the middle unless given; or a character of the prompt, the last of its
            first 1,024 unless given
        data: for similarity, a folder, zip or tar of pictures; the models' own development set unless given
        count: for similarity, so many pictures
    """
    from longshort.lab.cli.analyse import as_figure, draw, draw_look, draw_norms, draw_similarity

    to = as_figure(out or Path(f"out/{what}.png"))
    if what == "look":
        draw_look(models, to, image=image, prompt=prompt, at=at)
    elif what == "similarity":
        draw_similarity(models, to, data=data, count=count)
    elif what == "norms":
        draw_norms(models, to, prompt=prompt)
    else:
        draw(what, models, to, against=against, prompt=prompt)


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        return run_command(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        return refuse("interrupted", 130)


def run_command(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        print(VERSION)
        return 0
    packages = {**PACKAGES, "matplotlib": "bench"} if arguments[:1] in [[name] for name in DRAWING] else PACKAGES
    for package, extra in packages.items():
        try:
            import_module(package)
        except ModuleNotFoundError:
            return refuse(f"{package} is not installed; pip install 'longshort[{extra}]'", 1)
    from tyro.extras import subcommand_cli_from_dict

    from longshort.lab.runs.errors import StoppedError, TrainingError
    from longshort.lab.train.processes import leave

    commands: dict[str, Callable[..., Any]] = {
        "demo": demo,
        "recipes": recipes,
        "evaluate": evaluate,
        "generate": generate,
        "convert": convert,
        "bench": bench,
        "report": report,
        "analyse": analyse,
        "train": train,
    }
    prog, description = "longshort", DESCRIPTION
    if arguments[:1] == ["train"]:
        commands, prog, description = trainings(), "longshort train", "Train a model. What is written stays in --out."
        arguments = arguments[1:]
    try:
        subcommand_cli_from_dict(commands, prog=prog, description=description, args=arguments)
        leave()
    except StoppedError as error:
        how = "--resume" if prog == "longshort train" else "the same command"  # demo and report always go on
        return refuse(f"{error}; {how} goes on from there", 130)
    except FileNotFoundError as error:
        return refuse(str(error) if error.filename is None else f"{error.filename} is not there", 1)
    except (TrainingError, ValueError, ImportError) as error:
        return refuse(str(error), 1)
    except BrokenPipeError:  # whoever read has seen enough
        return 0
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        reason = str(error).partition("\n")[0]
        advice = "; --accumulate divides each batch" if prog == "longshort train" else ""
        return refuse(f"out of memory ({reason}){advice}", 1)
    except OSError as error:
        return refuse(f"cannot use {error.filename}: {error.strerror}" if error.filename else str(error), 1)
    return 0


def out_of_memory(error: RuntimeError) -> bool:
    """Of a GPU, which has an error of its own for it, or of the processor."""
    return type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)


def train(*rest: str) -> None:
    """Train a model: longshort train RECIPE. `longshort train --help` lists the recipes."""


def trainings() -> dict[str, Callable[..., Any]]:
    from longshort.lab.recipes import RECIPES

    return {name: train_command(recipe) for name, recipe in {**RECIPES, "replay": replay}.items()}


def refuse(message: str, code: int) -> int:
    print(f"longshort: {message}", file=sys.stderr)
    return code
