"""The recipes are the paper's where they say so, and can be made without data, network or a GPU."""

import inspect
import sysconfig
from pathlib import Path

import pytest

from longshort.lab.data.source import CorpusSource
from longshort.lab.recipes import RECIPES
from longshort.lab.recipes.charlm import NOT_STANDARD, demo
from longshort.lab.train import AdamW, Schedule
from longshort.models.charlm import PRESETS

PAPERS = {
    "charlm.enwik8_small": ("enwik8", "small", 2.5e-4, 0.01, 0.2),
    "charlm.enwik8_large": ("enwik8", "large", 2.5e-4, 0.1, 0.4),
    "charlm.text8_small": ("text8", "small", 5e-4, 0.01, 0.2),
}


def run_of(name):
    recipe = RECIPES[name]
    parameters = inspect.signature(recipe).parameters.values()
    needed = [p.name for p in parameters if p.default is p.empty]  # where the text or the pictures are
    return recipe(**{name: 3 if name == "classes" else Path("somewhere") for name in needed})


@pytest.mark.parametrize("name", PAPERS)
def test_the_papers_three_phases(name):
    corpus, preset, rate, decay, dropout = PAPERS[name]
    run = run_of(name)
    phases = run.chain
    assert [phase.name for phase in phases] == [f"{name}.phase{i}" for i in (1, 2, 3)]
    assert [phase.starts_from for phase in phases] == [None, phases[0], phases[1]] and phases[2] == run
    assert [phase.task.length for phase in phases] == [2048, 4096, 8192]
    assert [phase.task.sequences for phase in phases] == [32, 32, 16]
    assert [phase.steps for phase in phases] == [430_000, 50_000, 50_000]
    assert [phase.schedule for phase in phases] == [Schedule("constant", warmup=n) for n in (10_000, 5_000, 5_000)]
    for phase in phases:
        assert phase.task.source == CorpusSource(corpus)
        assert isinstance(phase.optimizer, AdamW)
        assert (phase.optimizer.lr, phase.optimizer.weight_decay) == (rate, decay)
        assert phase.clip is None and phase.accumulate == 1
        assert phase.model.memory == phase.task.length
        assert (phase.model.layers, phase.model.dropout) == (PRESETS[preset].layers, dropout)
        assert (phase.model.window, phase.model.segment, phase.model.rank) == (512, 16, 1)
        assert phase.model.positions == "relative"


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_says_what_it_is(name):
    recipe = RECIPES[name]
    said = inspect.getdoc(recipe)
    assert said and said.splitlines()[0].endswith(".")
    for parameter in inspect.signature(recipe).parameters:
        assert f"\n    {parameter}: " in said, parameter


@pytest.mark.parametrize("name", RECIPES)
def test_every_run_is_named_after_its_recipe_and_remembers_what_it_reads(name):
    for phase in run_of(name).chain:
        assert phase.name.startswith(name)
        assert not name.startswith("charlm") or phase.model.memory == phase.task.length


def test_the_users_own_path_is_taken(tmp_path):
    for name in RECIPES:
        parameters = inspect.signature(RECIPES[name]).parameters
        if given := {"data", "path"} & parameters.keys():
            needed = {"classes": 3} if "classes" in parameters else {}
            run = RECIPES[name](**{given.pop(): tmp_path}, **needed)
            sources = [phase.task.source for phase in run.chain]
            within = [getattr(source, "source", source) for source in sources]  # what a tokenizer reads
            assert all(source.path == tmp_path for source in within), name


def test_the_demo_reads_pythons_standard_library_alone(tmp_path, monkeypatch):
    """Nothing of what others have installed below it."""
    library = tmp_path / "python"
    for name in ("ast.py", "json/decoder.py", "site-packages/other.py", "dist-packages/x/other.py", "test/test_ast.py"):
        (library / name).parent.mkdir(parents=True, exist_ok=True)
        (library / name).write_text("# other\n" if "other" in name or "test" in name else "x = 1\n" * 99)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert demo().task.source.path == Path(sysconfig.get_paths()["stdlib"])
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(library)})
    splits = demo().task.source.splits()
    text = b"".join(part.tobytes() for part in (splits.train, splits.dev, splits.test))
    assert text == b"x = 1\n" * 198
    assert {"site-packages", "dist-packages"} <= set(NOT_STANDARD)


@pytest.mark.parametrize("given", [{"length": 0}, {"sequences": 0}])
def test_what_the_user_gave_is_what_is_refused(tmp_path, given):
    with pytest.raises(ValueError, match=f"{next(iter(given))} 0"):
        RECIPES["charlm.text"](tmp_path, **given)
