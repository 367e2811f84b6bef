"""The Long Range Arena's recipes are the paper's, and the lines of its tables can be told apart, without any data."""

import json
import re
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from training import same_weights

from longshort import baselines
from longshort.lab.data.aan import Aan
from longshort.lab.data.cifar10 import Cifar10
from longshort.lab.data.imdb import Imdb
from longshort.lab.data.listops import VOCABULARY, ListOps
from longshort.lab.data.pathfinder import Pathfinder
from longshort.lab.recipes import RECIPES
from longshort.lab.recipes.lra import (
    ATTENTIONS,
    attention_named,
    image,
    listops,
    listops_modern,
    pathfinder,
    retrieval,
    text,
    text_modern,
)
from longshort.lab.recipes.lra_table import LINES, LISTOPS, TEXT, TEXT_PAPER, Line
from longshort.lab.runs.folder import RunFolder
from longshort.lab.tasks import Classification, MaskedModelling, PairClassification
from longshort.lab.train import AdamW, Schedule
from longshort.lab.train.fit import TorchLoop
from longshort.lab.train.processes import Processes
from longshort.models.sequence import PairConfig, SequenceConfig
from longshort.nn.spec import LongShort
from longshort.serial import as_json, from_json

RELEASED = {  # steps, warm-up, tokens, dropout, classes
    listops: (5_000, 1_000, 2_000, 0.0, 10),
    text: (20_000, 8_000, 4_000, 0.1, 2),
    retrieval: (30_000, 8_000, 4_000, 0.1, 2),
}
EACH = (listops, text, retrieval, image, pathfinder)
by_name = pytest.mark.parametrize("recipe", EACH, ids=lambda recipe: recipe.__name__)


@pytest.fixture(autouse=True)
def no_data(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    assert not (tmp_path / "cache").exists()  # a recipe reads nothing, and makes nothing


@pytest.mark.parametrize("recipe", RELEASED, ids=lambda recipe: recipe.__name__)
def test_the_papers_settings(recipe):
    steps, warmup, tokens, dropout, classes = RELEASED[recipe]
    run = recipe()
    assert (run.steps, run.schedule) == (steps, Schedule("linear", warmup=warmup))
    assert (run.task.length, run.task.sequences, run.accumulate) == (tokens, 32, 1)
    assert run.model.length >= tokens
    assert (run.model.dropout, run.model.attention_dropout, run.model.classes) == (dropout, dropout, classes)


@by_name
def test_what_all_tasks_have_in_common(recipe):
    run = recipe()
    assert run.optimizer == AdamW(lr=1e-4, eps=1e-6, weight_decay=0.0) and run.clip is None
    assert run.schedule.kind == "linear" and run.schedule.final == 0 and run.schedule.hold == 0
    assert (run.model.layers, run.model.width, run.model.heads, run.model.feedforward) == (2, 64, 2, 128)
    assert (run.model.vocabulary, run.model.head, run.model.positions) == (512, 128, "learned")
    assert run.model.attention == LongShort(8, 32)
    assert run.precision == "auto" and run.compile and run.graph
    assert run.evaluate_every <= run.steps // 10  # the best checkpoint is one of many


def test_each_task_reads_its_own_data(tmp_path):
    sources = {
        listops: ListOps(path=tmp_path),
        text: Imdb(tmp_path, held_out=0.1),
        retrieval: Aan(tmp_path),
        image: Cifar10(tmp_path),
        pathfinder: Pathfinder(tmp_path),
    }
    kinds = {retrieval: (PairClassification, PairConfig)}
    for recipe, source in sources.items():
        run = recipe(data=tmp_path)
        assert run.task.source == source and source.classes == run.model.classes
        assert (type(run.task), type(run.model)) == kinds.get(recipe, (Classification, SequenceConfig))


def test_attentions_have_names():
    assert attention_named("8,32") == LongShort(window=8, rank=32)
    assert attention_named("0,4") == LongShort(window=0, rank=4)
    assert attention_named("16,0") == LongShort(window=16, rank=0)
    assert attention_named("linformer+1") == baselines.LinformerWindow(window=1, rank=256)
    assert attention_named("linformer").rank == 256  # as the paper annotates them
    assert attention_named("performer").features == 256
    assert attention_named("nystromformer").landmarks == 128
    assert attention_named("reformer").hashes == 2
    others = set(baselines.__all__) - {"LinformerWindow"}
    assert {type(spec).__name__ for spec in ATTENTIONS.values()} == {"Full", *others}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_what_counts_padding_is_evaluated_with_as_much_as_it_was_trained_with(name):
    assert listops(name).task.pads_alike == ATTENTIONS[name].counts_padding
    assert listops("nystromformer").task.pads_alike and not listops("8,32").task.pads_alike


def test_nothing_to_attend_to_is_refused_at_once():
    with pytest.raises(ValueError, match="window and rank are both 0"):
        listops("0,0")


@pytest.mark.parametrize(
    "name", ["", "8", "8,", "8,32,1", "-8,32", "8, 32", "Full", "linformer+", "linformer1", "flash"]
)
def test_a_name_that_is_none_is_refused_with_those_that_are(name):
    with pytest.raises(ValueError, match=f"there is no attention '{re.escape(name)}'") as refused:
        attention_named(name)
    assert [
        known for known in ("WINDOW,RANK", "'8,32'", "linformer+WINDOW", *ATTENTIONS) if known not in str(refused)
    ] == []
    with pytest.raises(ValueError, match="there is no attention"):
        listops(name)


@by_name
@pytest.mark.parametrize("name", ["16,2", "full", "linformer+8"])
def test_the_attention_reaches_the_model(recipe, name):
    assert recipe(attention=name).model.attention == attention_named(name)


def test_text_has_two_protocols():
    """The paper's chooses on the test set, which is dev where nothing is held out."""
    honest, paper = text(), text(protocol="paper")
    assert honest.task.source.held_out == 0.1 and paper.task.source.held_out == 0.0
    assert honest.name == "lra.text.w8r32.seed0" and paper.name == "lra.text_paper.w8r32.seed0"
    assert honest.model == paper.model and (honest.steps, honest.schedule) == (paper.steps, paper.schedule)


def test_lists_with_brackets_are_another_task():
    with_them, without = listops(brackets=True), listops()
    assert with_them.task.source.brackets and not without.task.source.brackets
    assert with_them.name != without.name and with_them.model == without.model


@by_name
def test_the_seed_is_of_weights_and_order(recipe):
    for seed in (0, 3):
        run = recipe(seed=seed)
        assert (run.seed, run.task.order) == (seed, seed) and run.name.endswith(f".seed{seed}")


@pytest.mark.parametrize(
    ("recipe", "source", "mask"),
    [(listops_modern, ListOps(brackets=True), len(VOCABULARY)), (text_modern, Imdb(held_out=0.1), 257)],
)
def test_the_modern_recipe_first_restores_tokens_of_the_same_sequences(recipe, source, mask):
    masked, run = recipe("16,2", seed=3).chain
    assert masked.task.source == run.task.source == source
    assert type(masked.task) is MaskedModelling and type(run.task) is Classification
    assert masked.task.mask == run.model.vocabulary - 1 == mask
    assert run.model == SequenceConfig(**vars(masked.model)) and run.model.classes == source.classes
    assert run.model.attention == LongShort(16, 2, rotary=True) and run.model.positions == "none"
    assert [(phase.seed, phase.task.order) for phase in (masked, run)] == [(3, 3), (3, 3)]
    for name in ("linformer", "performer", "linformer+8"):
        with pytest.raises(
            ValueError, match=re.escape(f"WINDOW,RANK or full, which know rotary positions, got '{name}'")
        ):
            recipe(name)


@by_name
@pytest.mark.parametrize("name", ATTENTIONS)
def test_what_is_not_known_to_run_compiled_is_not_compiled(recipe, name):
    run = recipe(attention=name)
    assert run.compile is run.graph is (name in ("full", "linformer"))


def write_lists(folder):
    """As the official files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in dict(train=64, val=4, test=4).items():
        trees = [f"[MAX {i % 10} {i // 10} ]\t{max(i % 10, i // 10)}\n" for i in range(count)]
        (folder / f"basic_{name}.tsv").write_text("Source\tTarget\n" + "".join(trees))
    return folder


def test_other_seeds_begin_with_other_weights_and_examples(tmp_path):
    def begun(seed, out):
        run = listops(data=write_lists(tmp_path / "lists"), seed=seed)
        processes = Processes("fp32", cpu=True)
        loop = TorchLoop(run, RunFolder(tmp_path / out), processes, resume=False, console=Console(quiet=True))
        return {name: t.clone() for name, t in loop.model.state_dict().items()}, run.task.batch(0, 0, 1)[0][0]

    first, again, other = begun(0, "a"), begun(0, "b"), begun(1, "c")
    same_weights(first[0], again[0])
    assert torch.equal(first[1], again[1]) and first[1].shape == (32, 2_000)
    assert not torch.equal(first[0]["encoder.embedding.weight"], other[0]["encoder.embedding.weight"])
    assert not torch.equal(first[1], other[1])


def test_runs_of_the_tables_have_folders_of_their_own():
    """Those included that others start from."""
    runs = [phase for line in LINES for seed in range(5) for phase in line.run(seed).chain]
    names = [run.name for run in runs]
    assert len({name.casefold() for name in names}) == len(names)
    assert [name for name in names if not re.fullmatch(r"lra\.[a-z0-9_+.]+\.seed\d", name)] == []
    for run in runs:
        assert any(run.name.startswith(name) for name in RECIPES)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_every_line_can_be_written_down_and_read_back(line):
    run = line.run(1)
    assert from_json(json.loads(json.dumps(as_json(run)))) == run
    for phase in run.chain:
        attention = attention_named(line.attention)
        assert phase.model.attention in (attention, replace(attention, rotary=True) if run.starts_from else attention)
        assert (phase.seed, phase.task.order) == (1, 1)


def test_every_line_is_there_once_with_what_the_paper_has():
    assert len({line.name for line in LINES}) == len(LINES)
    for line in LINES:
        assert line.seeds >= 0
        assert line.paper is None or 30 < line.paper < 90
        assert line.macs is None or 0.1 < line.macs < 10
        assert (line.insertion is None) == (line.deletion is None)
        assert line.insertion is None or line.deletion < line.insertion < line.paper
        assert line.deviation is None or line.paper is not None
    table_2 = {(line.task.name, line.attention) for line in LINES if line.insertion is not None}
    both = {(task, name) for task in ("text_paper", "retrieval") for name in ("linformer", "linformer+1")}
    best = {("text_paper", "1,1"), ("text_paper", "0,128"), ("retrieval", "1,254"), ("retrieval", "0,256")}
    assert table_2 == both | best


def test_the_papers_averages_are_those_of_the_lines():
    """Its last column, which the lines do not have."""
    average = {"full": 61.59, "reformer": 59.99, "linformer": 57.62, "performer": 59.90, "nystromformer": 61.46}
    models = {(name,) * 3: mean for name, mean in {**average, "8,32": 61.77}.items()}
    models |= {("0,4", "0,128", "0,256"): 61.98, ("16,2", "1,1", "1,254"): 62.90}
    paper = {line.name: line.paper for line in LINES}
    for attentions, mean in models.items():
        tasks = zip(("listops", "text_paper", "retrieval"), attentions, strict=True)
        assert f"{sum(paper[f'{task}/{attention}'] for task, attention in tasks) / 3:.2f}" == f"{mean:.2f}"


def test_the_protocol_of_the_table_is_the_papers_where_the_paper_has_a_number():
    for line in LINES:
        if line.task in (TEXT, TEXT_PAPER):
            assert (line.paper is not None) == (line.run(0).task.source.held_out == 0.0) == (line.task is TEXT_PAPER)
        if line.task.name.startswith("listops"):
            assert (line.paper is None) == line.run(0).task.source.brackets


def test_a_line_takes_its_own_folder_where_there_is_one(tmp_path):
    line = Line(LISTOPS, "8,32")
    assert line.run(0).task.source.path is None
    assert line.run(0, tmp_path).task.source.path is None
    (tmp_path / "listops").mkdir()
    assert line.run(0, tmp_path).task.source.path == tmp_path / "listops"
    folders = {"listops", "imdb", "aan", "cifar10", "pathfinder"}
    assert {each.task.folder for each in LINES} == folders
    for folder in folders:
        (tmp_path / folder).mkdir(exist_ok=True)
    for each in LINES:
        assert each.run(0, tmp_path).task.source.path == tmp_path / each.task.folder


def test_pictures_of_another_kind_and_the_mean_are_other_runs():
    usual, unlike = pathfinder(), pathfinder(dashes=9, balanced=False, pooling="mean")
    assert usual.name == "lra.pathfinder.w8r32.seed0" and usual.task.source == Pathfinder()
    assert unlike.name == "lra.pathfinder9_unbalanced_mean.w8r32.seed0"
    assert unlike.task.source == Pathfinder(dashes=9, balanced=False) and unlike.model.pooling == "mean"
    assert image().model.pooling == "mean" and image(pooling="cls").model.pooling == "cls"
    assert image().name == "lra.image.w8r32.seed0" and image(pooling="cls").name == "lra.image_cls.w8r32.seed0"
