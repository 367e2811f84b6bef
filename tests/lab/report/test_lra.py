"""The report trains what is missing and nothing else, keeps what was done, and its tables say what was found."""

import io
import json
import math
import os
import shutil
import signal
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from training import before_call, same_weights, weights

from longshort.lab.bench.step import Step
from longshort.lab.data.imdb import Imdb
from longshort.lab.data.listops import ListOps
from longshort.lab.recipes.lra import attention_named
from longshort.lab.recipes.lra_table import RETRIEVAL, Line, Task
from longshort.lab.report import Wish, jobs, runs
from longshort.lab.report import lra as module
from longshort.lab.report.jobs import trained
from longshort.lab.report.lra import report
from longshort.lab.report.table import NOT_RUN, Found, markdown
from longshort.lab.tasks import Classification
from longshort.lab.train import AdamW, DivergedError, Run, StoppedError, TrainingError
from longshort.models.sequence import SequenceConfig

STEPS, EVALUATED = 6, "evaluated.json"
pytestmark = pytest.mark.usefixtures("one_thread", "own_cache")


def classifier(name, attention, source, seed):
    sizes = dict(length=48, layers=1, width=16, heads=2, feedforward=16, head=8, vocabulary=300, dropout=0.1)
    model = SequenceConfig(attention_named(attention), classes=source.classes, **sizes)
    task = Classification(source, length=40, sequences=8, order=seed)
    every = dict(log_every=2, evaluate_every=2, save_every=3)
    return Run(f"{name}.{attention}.seed{seed}", model, task, STEPS, optimizer=AdamW(lr=0.03), seed=seed, **every)


def digits(attention, data, seed):
    return classifier("digits", attention, ListOps(path=data, train=24, dev=20, test=40), seed)


def reviews(attention, data, seed):
    return classifier("reviews", attention, Imdb(data, held_out=0.2), seed)


DIGITS = Task("digits", "Digits of lists", "listops", digits)
REVIEWS = Task("reviews", "Reviews", "imdb", reviews, "They are few.")
WINDOW = Line(DIGITS, "4,2", 37.5, 0.3, seeds=2)
LINES = (
    WINDOW,
    Line(DIGITS, "full", 37.13),
    Line(REVIEWS, "4,2", 68.4, seeds=1, insertion=66.34, deletion=62.62),
)
ALL = ["digits.4,2.seed0", "digits.4,2.seed1", "reviews.4,2.seed0"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with the reviews alone: the lists are generated."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "imdb").mkdir()
    for split, count in (("train", 20), ("test", 31)):
        texts = [f"{'so, ' * (i % 5)}{('bad', 'good!')[i % 2]} {i}; ..." for i in range(count)]
        lines = [json.dumps(dict(text=text, label=i % 3 % 2)) for i, text in enumerate(texts)]
        (folder / "imdb" / f"{split}.jsonl").write_text("\n".join(lines))
    return folder


def do(out, lines=LINES, **wish):
    """What was found, and what was printed."""
    console = Console(file=io.StringIO(), width=200)
    return report(Wish(lines, lines, out, cpu=True, **wish), console=console), console.file.getvalue()


def evaluated(out, name):
    return json.loads((out / name / EVALUATED).read_text())["accuracy"]


def cells(out, attention, heading):
    """Of the line of this attention in the table of this heading."""
    table = next(part for part in (out / "lra.md").read_text().split("### ") if part.startswith(heading))
    line = next(line for line in table.splitlines() if line.startswith(f"| {attention} |"))
    return [cell.strip() for cell in line.split("|")[1:-1]]


def test_every_seed_is_trained_and_evaluated(finished):
    out, _, printed = finished
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == ALL
    for name in ALL:
        result = json.loads((out / name / "result.json").read_text())
        assert result["step"] == STEPS and f"{name}: {100 * evaluated(out, name)['test']:.2f} % on the test" in printed
    assert str(out / "lra.md") in printed.replace("\n", "")


def test_the_table_has_mean_and_deviation_over_seeds(finished):
    out, *_ = finished
    a, b = (100 * evaluated(out, name)["test"] for name in ALL[:2])
    mean, deviation = (a + b) / 2, abs(a - b) / math.sqrt(2)
    ours = f"{mean:.2f} ± {deviation:.2f} (2 seeds)"
    assert cells(out, "4,2", "Digits of lists") == ["4,2", "37.50 ± 0.3", ours, "", "", ""]
    assert cells(out, "4,2", "Reviews")[1:3] == ["68.40", f"{100 * evaluated(out, ALL[2])['test']:.2f} (1 seed)"]
    assert "\n\nThey are few." in (out / "lra.md").read_text()


def test_the_deviation_is_that_of_a_sample():
    found = Found(WINDOW, {"test": [25.0, 50.0, 75.0]})
    assert "| 37.50 ± 0.3 | 50.00 ± 25.00 (3 seeds) |" in markdown([found])
    assert "| 50.00 (1 seed) |" in markdown([replace(found, accuracy={"test": [50.0]})])


def test_texts_have_a_second_table(finished):
    out, *_ = finished
    found = evaluated(out, ALL[2])
    assert list(found) == ["test", "insertion", "deletion"]
    ours = " / ".join(f"{100 * found[name]:.2f}" for name in found)
    assert cells(out, "reviews", "Test-time") == ["reviews", "4,2", "68.40 / 66.34 / 62.62", ours]
    assert "insertion" not in evaluated(out, ALL[0])
    several = Found(LINES[2], {"test": [60.0, 80.0], "insertion": [50.0, 60.0], "deletion": [40.0, 41.0]})
    assert "| 70.00 / 55.00 / 40.50 |" in markdown([several])
    assert "Table 2" not in markdown([Found(WINDOW)])


def test_the_figures_are_in_a_file_too(finished):
    out, found, printed = finished
    facts = json.loads((out / "lra.json").read_text())["lines"]
    assert [fact["line"] for fact in facts] == ["digits/4,2", "digits/full", "reviews/4,2"]
    assert [fact["paper"] for fact in facts] == [37.5, 37.13, 68.4]
    assert facts[0]["accuracy"] == {"test": [100 * evaluated(out, name)["test"] for name in ALL[:2]]}
    assert [fact["accuracy"] for fact in facts] == [each.accuracy for each in found]
    assert (out / "lra.md").read_text() == markdown(found) + "\n" and markdown(found) in printed


def test_lines_without_seeds_are_not_run(finished):
    out, found, _ = finished
    assert cells(out, "full", "Digits of lists") == ["full", "37.13", NOT_RUN, "", "", ""] and found[1].accuracy == {}
    wished = Wish(LINES, LINES, out, seeds=3).runs(LINES[1])
    assert [run.seed for run in wished] == [run.task.order for run in wished] == [0, 1, 2]
    assert [len(Wish(LINES, LINES, out).runs(line)) for line in LINES] == [2, 0, 1]


def test_what_is_done_is_not_done_again(finished, data, tmp_path, begun):
    out, found, _ = finished
    shutil.copytree(out, tmp_path / "out")
    (tmp_path / "out" / "lra.md").unlink()
    again, printed = do(tmp_path / "out", data=data)
    assert begun == [] and again == found and "on the test set" not in printed
    assert (tmp_path / "out" / "lra.md").read_text() == (out / "lra.md").read_text()


def test_another_seed_is_all_that_is_trained(finished, data, tmp_path, begun):
    out, found, _ = finished
    shutil.copytree(out, tmp_path / "out")
    more, _ = do(tmp_path / "out", [WINDOW], data=data, seeds=3)
    assert begun == ["digits.4,2.seed2"]
    assert more[0].accuracy["test"][:2] == found[0].accuracy["test"] and len(more[0].accuracy["test"]) == 3


def test_a_stopped_report_keeps_what_is_done_and_goes_on(finished, data, tmp_path, begun, monkeypatch):
    whole, found, _ = finished
    with monkeypatch.context() as patch, pytest.raises(StoppedError, match="stopped at step 4, which is saved"):
        before_call(patch.setattr, Classification, "batch", STEPS + 4, lambda: os.kill(os.getpid(), signal.SIGINT))
        do(tmp_path, data=data)
    assert begun == ALL[:2] and evaluated(tmp_path, ALL[0]) == evaluated(whole, ALL[0])
    assert cells(tmp_path, "4,2", "Digits of lists")[2].endswith("(1 seed)")
    assert cells(tmp_path, "4,2", "Reviews")[2] == NOT_RUN
    again, _ = do(tmp_path, data=data)
    assert begun == ALL[:2] + ALL[1:] and again == found
    for run in (WINDOW.run(0), WINDOW.run(1), LINES[2].run(0, data)):
        same_weights(weights(run, tmp_path), weights(run, whole))


def test_a_report_interrupted_at_once_keeps_what_is_done(finished, tmp_path, begun, monkeypatch):
    """Here between the training of the second run and its evaluation, which is then all that is done."""
    _, found, _ = finished

    def interrupt():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        before_call(patch.setattr, jobs, "evaluate_run", 2, interrupt)
        do(tmp_path, [WINDOW])
    assert begun == ALL[:2] and cells(tmp_path, "4,2", "Digits")[2].endswith("(1 seed)")
    monkeypatch.setattr(Classification, "batch", lambda *_: pytest.fail("it was trained before"))
    again, printed = do(tmp_path, [WINDOW])
    assert again == found[:1] and f"{ALL[1]} was finished before" in printed


def test_tasks_without_data_are_named_and_the_others_go_on(finished, tmp_path, begun):
    """And what the folder of all data does not have."""
    _, found, _ = finished
    console, empty = Console(file=io.StringIO(), width=200), tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(TrainingError, match=r"see above: reviews \(FOLDER/imdb with --data FOLDER\)$"):
        report(Wish(LINES, LINES, tmp_path, cpu=True, data=empty), console=console)
    facts, printed = json.loads((tmp_path / "lra.json").read_text())["lines"], console.file.getvalue()
    assert begun == ALL[:2] and [fact["accuracy"] for fact in facts[:2]] == [each.accuracy for each in found[:2]]
    said = facts[2]["missing"]
    assert said.startswith("IMDb is not in ") and "ai.stanford.edu" in said
    assert f"reviews: {said}" in printed and said in (tmp_path / "lra.md").read_text()
    assert f"reviews: {empty / 'imdb'} is not there; its data is what it is without --data\n" in printed
    assert cells(tmp_path, "4,2", "Reviews")[2] == NOT_RUN
    assert cells(tmp_path, "reviews", "Test-time")[3] == NOT_RUN
    assert [fact["missing"] for fact in facts] == ["", "", said]


def test_a_folder_of_data_that_is_not_there_is_refused(tmp_path, begun):
    """It would be taken for one in which nothing is."""
    with pytest.raises(FileNotFoundError, match="nowhere is none"):
        do(tmp_path / "out", data=tmp_path / "nowhere")
    assert begun == [] and not (tmp_path / "out").exists()


def test_without_training_what_there_is_is_shown(finished, tmp_path, begun, monkeypatch):
    """And nothing is read, nor generated, for it."""
    out, found, _ = finished
    for source in (ListOps, Imdb):
        monkeypatch.setattr(source, "splits", lambda self: pytest.fail("data is read"))
    nothing, _ = do(tmp_path / "new", train=False)
    assert [each.accuracy for each in nothing] == [{}, {}, {}]
    assert (tmp_path / "new" / "lra.md").read_text().count(f"| {NOT_RUN} |") == 4
    shutil.copytree(out, tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / ALL[1])
    shown, _ = do(tmp_path / "out", train=False)
    assert shown[0].accuracy == {"test": found[0].accuracy["test"][:1]} and shown[1:] == found[1:]
    assert begun == []


def test_a_try_with_fewer_steps_leaves_the_table_alone(finished, data, tmp_path, begun):
    """It is a run of its own: a schedule that ended early cannot go on."""
    out, *_ = finished
    shutil.copytree(out, tmp_path / "out")
    tried, printed = do(tmp_path / "out", [WINDOW], data=data, seeds=1, steps=2)
    name = f"{ALL[0]}.2steps"
    assert begun == [name] and json.loads((tmp_path / "out" / name / "result.json").read_text())["step"] == 2
    assert tried[0].accuracy == {"test": [100 * evaluated(tmp_path / "out", name)["test"]]}
    assert "lra.2steps.md" in printed and (tmp_path / "out" / "lra.2steps.json").exists()
    assert (tmp_path / "out" / "lra.md").read_text() == (out / "lra.md").read_text()


def test_what_the_tables_lack_shows_before_the_work(tmp_path, begun, monkeypatch):
    def lacks(line):
        raise ModuleNotFoundError("fvcore is not installed")

    monkeypatch.setattr(module, "macs_of", lacks)
    with pytest.raises(ModuleNotFoundError, match="fvcore"):
        do(tmp_path, [WINDOW, Line(DIGITS, "full", macs=1.21)])
    assert begun == []


def test_macs_are_counted_once_and_only_where_the_paper_has_them(tmp_path, monkeypatch):
    counted = []
    monkeypatch.setattr(module, "macs_of", lambda line: counted.append(line.name) or 0.1993)
    lines = [Line(DIGITS, "full", macs=0.2), Line(DIGITS, "0,2")]
    for _ in range(2):
        do(tmp_path, lines, train=False)
    assert counted == ["digits/full"]
    assert cells(tmp_path, "full", "Digits")[3:5] == ["0.20", "0.20"] and cells(tmp_path, "0,2", "Digits")[3:5] == [
        "",
        "",
    ]


def test_steps_are_timed_once_on_a_gpu(finished, data, tmp_path, monkeypatch):
    out, *_ = finished
    shutil.copytree(out, tmp_path / "out")
    timed = []
    monkeypatch.setattr(runs, "measured_step", lambda run: timed.append(run.name) or Step(7.0 + len(timed), 100.0))
    monkeypatch.setattr(runs, "machine_line", lambda device: "a machine")
    do(tmp_path / "out", data=data)
    assert timed == []  # there is none here
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    do(tmp_path / "out", data=data)
    do(tmp_path / "out", data=data, train=False)
    assert timed == []  # nor wanted

    def on_gpu(lines):
        report(Wish(LINES, lines, tmp_path / "out", data), console=Console(quiet=True))

    on_gpu([WINDOW])
    on_gpu(LINES)  # without those of which nothing is trained
    assert timed == [ALL[0], ALL[2]]
    times = (("digits/4,2", 8.0), ("reviews/4,2", 9.0))
    known = {name: {"ms": ms, "mib": 100.0, "machine": "a machine"} for name, ms in times}
    assert json.loads((tmp_path / "out" / "steps.json").read_text()) == known
    assert cells(tmp_path / "out", "4,2", "Digits")[5] == "8.00" and cells(tmp_path / "out", "full", "Digits")[5] == ""
    assert (tmp_path / "out" / "lra.md").read_text().endswith("Steps were timed on a machine.\n")


def test_the_data_of_a_run_goes_when_it_is_done(tmp_path):
    """All runs of the tables would not fit into memory with theirs."""
    first = replace(WINDOW.run(0), steps=1)
    runs = [first, replace(first, name="second", starts_from=replace(first, task=replace(first.task)))]
    for run, _ in trained(runs, tmp_path, jobs=1, cpu=True, console=Console(quiet=True)):
        assert all("splits" not in vars(phase.task) for phase in run.chain)


class Pool:
    """Does at once, and here, what others would do in a while; the runs in `fail` stop."""

    def __init__(self, monkeypatch, fail=()):
        self.given, self.open, self.most, self.ended = [], 0, 0, False
        monkeypatch.setattr(jobs, "ProcessPoolExecutor", lambda jobs, mp_context: self)
        monkeypatch.setattr(jobs, "wait", self.wait)
        self.fail = fail

    def submit(self, function, run, out, cpu):
        assert function is jobs.train_and_evaluate
        self.given.append(run.name)
        self.open += 1
        self.most = max(self.most, self.open)
        future = Future()
        if run.name in self.fail:
            future.set_exception(StoppedError("stopped"))
        else:
            future.set_result({"run": run.name})
        return future

    def wait(self, futures, timeout, return_when):
        self.open -= 1
        return type("Finished", (), {"done": {list(futures)[-1]}})

    def shutdown(self, cancel_futures):
        self.ended = True


def test_as_many_runs_are_under_way_as_there_are_jobs(tmp_path, monkeypatch):
    runs, pool = [WINDOW.run(seed) for seed in range(5)], Pool(monkeypatch)
    found = list(trained(runs, tmp_path, jobs=2, cpu=True, console=Console(quiet=True)))
    assert pool.most == 2 and pool.given == [run.name for run in runs] and pool.ended
    assert sorted(run.name for run, _ in found) == pool.given
    assert all(facts == {"run": run.name} for run, facts in found)


def test_no_run_is_begun_after_one_was_stopped(tmp_path, monkeypatch):
    """What a pool was given it does, whatever its process was told in the run before."""
    runs = [WINDOW.run(seed) for seed in range(5)]
    pool = Pool(monkeypatch, fail=[runs[1].name])
    with pytest.raises(StoppedError):
        list(trained(runs, tmp_path, jobs=2, cpu=True, console=Console(quiet=True)))
    assert len(pool.given) == 2 and pool.ended


def noted(out, name, step):
    (out / name).mkdir()
    (out / name / "log.jsonl").write_text("".join(f'{{"step": {n}, "loss": 1.0}}\n' for n in range(2, step + 1, 2)))


def test_runs_under_way_are_told_now_and_then(tmp_path, monkeypatch):
    first, second = (WINDOW.run(seed) for seed in range(2))
    noted(tmp_path, second.name, 4)
    console = Console(file=io.StringIO(), width=200)
    watch = jobs.Watch(tmp_path, console)
    watch.look([first, second])
    assert console.file.getvalue() == ""  # it began just now
    monkeypatch.setattr(jobs, "TELL_EVERY", 0)
    watch.look([first, second])
    watch.close()
    assert console.file.getvalue() == f"under way: {first.name} starting; {second.name} step 4 of {STEPS}\n"


def test_on_a_terminal_runs_under_way_have_a_bar_each(tmp_path):
    first, second = (WINDOW.run(seed) for seed in range(2))
    noted(tmp_path, first.name, 2)
    terminal = Console(file=io.StringIO(), force_terminal=True, width=150)
    watch = jobs.Watch(tmp_path, terminal)
    watch.look([first])
    watch.look([second])
    assert list(watch.bars) == [second.name]
    watch.close()
    printed = terminal.file.getvalue()
    assert f"{second.name} " in printed and "starting" in printed and "\x1b[?25h" in printed


def test_how_far_a_run_is_counts_those_it_starts_from(tmp_path):
    run = WINDOW.run(0)
    after = replace(run, name="after", starts_from=run)
    assert jobs.how_far(after, tmp_path) == ("starting", 0.0)
    noted(tmp_path, run.name, 6)
    assert jobs.how_far(after, tmp_path) == ("step 6 of 6", 0.5)
    noted(tmp_path, "after", 2)
    assert jobs.how_far(after, tmp_path) == ("step 2 of 6", pytest.approx(8 / 12))


@pytest.mark.slow
def test_several_at_a_time_find_what_one_after_the_other_finds(finished, data, tmp_path, monkeypatch):
    whole, found, _ = finished
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    together, printed = do(tmp_path, data=data, jobs=2)
    assert "3 to train, 2 at a time" in printed and together == found
    for name in ALL:
        assert f"{name}: " in (tmp_path / name / "output.txt").read_text()
        assert (tmp_path / name / EVALUATED).read_bytes() == (whole / name / EVALUATED).read_bytes()


def test_one_that_fails_leaves_the_others_be(data, tmp_path, monkeypatch):
    """And goes on when the report is asked for again."""
    train = jobs.train

    def fails(run, *given, **more):
        if run.name == ALL[0]:
            raise DivergedError("the loss is nan")
        return train(run, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "train", fails)
        with pytest.raises(TrainingError, match=rf"1 of 3 runs failed; {ALL[0]}: the loss is nan"):
            do(tmp_path, data=data)
    assert [name for name in ALL if (tmp_path / name / EVALUATED).exists()] == ALL[1:]
    assert "(1 seed)" in cells(tmp_path, "4,2", "Digits of lists")[2]
    do(tmp_path, data=data)
    assert "(2 seeds)" in cells(tmp_path, "4,2", "Digits of lists")[2]


def test_a_killed_worker_is_told_in_one_line(tmp_path, monkeypatch):
    class Pool:
        def __init__(self, *given, **more): ...

        def submit(self, *given):
            future = Future()
            future.set_exception(BrokenProcessPool("killed"))
            return future

        def shutdown(self, **more): ...

    monkeypatch.setattr(jobs, "ProcessPoolExecutor", Pool)
    with pytest.raises(TrainingError, match=r"killed from outside, .* fewer --jobs need less"):
        list(trained([WINDOW.run(0)], tmp_path, jobs=2, cpu=True, console=Console(quiet=True)))


def test_retrieval_stands_beside_the_words_in_common(tmp_path):
    """By the name of its data, measured once."""
    (tmp_path / "data" / "aan").mkdir(parents=True)
    for split in ("train", "eval", "test"):
        lines = [
            f"{i % 2}\ta{i}\tb{i}\tred green blue\t{'red green one' if i % 2 else 'other words'}" for i in range(8)
        ]
        (tmp_path / "data" / "aan" / f"new_aan_pairs.{split}.tsv").write_text("\n".join(lines) + "\n")
    lines = [Line(RETRIEVAL, "8,32", seeds=0)]
    wish = Wish(lines, lines, tmp_path / "out", tmp_path / "data", cpu=True)
    printed = Console(file=io.StringIO(), width=300)
    report(wish, console=printed)
    told = "Ours are of the AAN, on whose test pairs the words in common alone reach 100.0 %"
    assert told in printed.file.getvalue() and told in (tmp_path / "out" / "lra.md").read_text()
    path = tmp_path / "out" / "overlap.json"
    facts = json.loads(path.read_text())
    assert facts["name"] == "AAN" and facts["data"] == lines[0].run(0, tmp_path / "data").task.fingerprint()
    path.write_text(json.dumps({**facts, "accuracy": {"words": 0.5, "rare words": 0.25}}))
    report(wish, console=printed)  # not measured again
    assert "reach 50.0 %, and with rare words counting for more 25.0 %" in (tmp_path / "out" / "lra.md").read_text()
    path.write_text(json.dumps({**facts, "data": "another", "accuracy": {"words": 0.5, "rare words": 0.25}}))
    report(wish, console=printed)
    assert json.loads(path.read_text()) == facts


def test_a_run_of_other_data_is_not_taken_for_one_of_this(finished, data, tmp_path, begun):
    out, *_ = finished
    shutil.copytree(out, tmp_path / "out")
    shutil.copytree(data, tmp_path / "data")
    with (tmp_path / "data" / "imdb" / "test.jsonl").open("a") as file:
        file.write('\n{"text": "new", "label": 1}')
    with pytest.raises(
        TrainingError, match=rf"{ALL[2]} was trained on other data than there is now: give another --out"
    ):
        do(tmp_path / "out", data=tmp_path / "data")
    assert begun == []


def test_a_run_of_other_settings_is_not_taken_for_this(finished, data, tmp_path):
    out, *_ = finished
    shutil.copytree(out, tmp_path / "out")

    def faster(attention, data, seed):
        return replace(digits(attention, data, seed), optimizer=AdamW(lr=0.3))

    line = replace(WINDOW, task=replace(DIGITS, recipe=faster))
    with pytest.raises(TrainingError, match=r"2 of 2 runs failed; .* optimizer.lr was 0.03, now 0.3"):
        do(tmp_path / "out", [line], data=data)


def test_a_part_of_the_table_is_trained_and_all_of_it_written(finished, data, tmp_path, begun):
    out, *_ = finished
    shutil.copytree(out, tmp_path / "out")
    printed = Console(file=io.StringIO(), width=200)
    wish = Wish(LINES, LINES[1:2], tmp_path / "out", data, seeds=1, cpu=True)
    (only,) = report(wish, console=printed)
    assert begun == ["digits.full.seed0"] and only.line == LINES[1] and "Reviews" not in printed.file.getvalue()
    assert cells(tmp_path / "out", "full", "Digits")[2].endswith("(1 seed)")
    assert cells(tmp_path / "out", "4,2", "Reviews") == cells(out, "4,2", "Reviews")
    assert cells(tmp_path / "out", "4,2", "Digits") == cells(out, "4,2", "Digits")


def test_lines_for_comparison_say_how_they_are_trained(data, tmp_path):
    _, printed = do(tmp_path, LINES[1:2], data=data)
    assert "--seeds N" in printed
