"""The command line: what it says, and how it ends."""

import io
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch
from evaluations import shares
from training import before_call

from longshort.checksums import META
from longshort.lab.bench import attention, gpu, lengths
from longshort.lab.bench.lengths import Timed
from longshort.lab.cli import analyse, evaluate, generate, main
from longshort.lab.recipes.lra_table import LINES
from longshort.lab.report import Wish, lra
from longshort.lab.runs.folder import read_run
from longshort.lab.tasks import LanguageModelling
from longshort.lab.train import StoppedError
from longshort.lab.trained import Trained
from longshort.models import CharLM
from longshort.version import VERSION

BENCH = ["bench", "attention", "--device", "cpu"]


@pytest.fixture
def instant(monkeypatch):
    """Times without the timing."""
    monkeypatch.setattr(lengths, "time_over_lengths", lambda lengths: iter([Timed(n, 1.0, 1.0 * n) for n in lengths]))
    monkeypatch.setattr(attention, "measure", lambda case, repeats: attention.Measured(case.name, 1.0, repeats, 1.0))


@pytest.fixture
def below_a_file(tmp_path):
    """A path that nobody can write, root included."""
    (tmp_path / "file").write_text("in the way")
    return tmp_path / "file" / "below" / "out"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], ["demo", "recipes", "train", "evaluate", "generate", "bench", "report", "analyse", "--version"]),
        (["demo", "--help"], ["--out", "out/demo", "folder", "two minutes"]),
        (
            ["bench", "--help"],
            [
                "attention",
                "charlm",
                "lengths",
                "macs lra",
                "--device",
                "--out",
                "--repeats",
                "--only",
                "--flex",
                "median",
            ],
        ),
        (
            ["report", "--help"],
            ["lra", "--out", "out/lra", "--data", "--only", "--seeds", "--steps", "--jobs", "--no-train", "--cpu"],
        ),
        (["train", "--help"], ["charlm.enwik8_small", "charlm.text", "charlm.enwik8_quick", "replay", "44M"]),
        (["train", "--help"], ["lra.listops", "lra.text", "lra.retrieval", "lra.image", "lra.pathfinder"]),
        (["train", "lra.listops", "--help"], ["--attention", "--brackets", "--data", "--out", "--resume", "--compile"]),
        (
            ["train", "lra.text", "--help"],
            ["--attention", "--protocol", "honest", "--data", "--steps", "20,000", "lists them"],
        ),
        (["train", "charlm.enwik8_small", "--help"], ["has 430,000 + 50,000 + 50,000"]),
        (["train", "charlm.text", "--help"], ["--path", "--preset", "--out", "--resume", "--steps", "--parallel"]),
        (["evaluate", "--help"], ["--protocol", "--split", "--context", "32768", "--corpus", "hub", "accuracy"]),
        (["generate", "--help"], ["--prompt", "standard input", "--temperature", "--top-k", "--top-p", "--seed"]),
        (["analyse", "--help"], ["visibility", "curves", "attention", "--against"]),
    ],
)
def test_help(arguments, words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    printed = capsys.readouterr().out
    assert ended.value.code == 0
    assert [word for word in words if word not in printed] == []


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{VERSION}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["bench"],
        ["bench", "nothing"],
        [*BENCH, "--repeats", "0"],
        [*BENCH, "--only", "nobody"],
        ["train"],
        ["train", "nothing"],
        ["train", "charlm.text"],  # whose path?
        ["train", "charlm.demo", "--parallel", "magic"],
        ["train", "lra.text", "--protocol", "magic"],
        ["bench", "macs", "nothing"],
        ["bench", "macs", "lra", "--only", "nobody"],
        ["report"],
        ["report", "nothing"],
        ["report", "lra", "--jobs", "0"],
        ["report", "lra", "--seeds", "0"],
        ["report", "lra", "--steps", "-1"],
        ["report", "lra", "--only", "nobody"],
    ],
)
def test_wrong_use_ends_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err


def test_bench_lengths_writes_its_figure_and_says_where(instant, tmp_path, capsys):
    path = tmp_path / "a" / "b.png"
    assert main(["bench", "lengths", "--out", str(path)]) == 0
    printed = capsys.readouterr().out
    assert path.read_bytes().startswith(b"\x89PNG") and str(path) in printed
    assert "8,192" in printed and "8192.0×" in printed


def test_bench_takes_its_options(instant, tmp_path, capsys):
    assert main([*BENCH, "--out", str(tmp_path / "b.json"), "--repeats", "7"]) == 0
    assert "7.00×" in capsys.readouterr().out and (tmp_path / "b.json").exists()


def test_bench_measures_the_cases_asked_for(instant, tmp_path, capsys):
    assert main([*BENCH, "--out", str(tmp_path / "b.json"), "--only", "grid"]) == 0
    printed = capsys.readouterr().out
    assert "grid" in printed and "causal" not in printed


@pytest.mark.parametrize(("device", "gpu_here"), [("auto", True), ("cuda", True), ("auto", False), ("cuda", False)])
def test_bench_takes_the_gpu_that_is_there(device, gpu_here, instant, tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu_here)
    monkeypatch.setattr(gpu, "bench_gpu", lambda cases, out, **options: asked.append((len(cases), options["repeats"])))
    arguments = ["bench", "attention", "--device", device, "--out", str(tmp_path / "b.json")]
    if device == "cuda" and not gpu_here:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 1 and asked == []
        assert capsys.readouterr().err.startswith("longshort: no CUDA device here; ")
    else:
        assert main(arguments) == 0
        assert asked == ([(14, gpu.REPEATS)] if gpu_here else [])
        assert (tmp_path / "b.json").exists() is not gpu_here


@pytest.mark.parametrize("command", [BENCH, ["bench", "lengths"], ["analyse", "visibility"]])
def test_unwritable_folder(command, instant, below_a_file, capsys):
    assert main([*command, "--out", str(below_a_file)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("longshort: cannot use") and str(below_a_file.parent) in error
    assert len(error.splitlines()) == 1


def test_interrupted_bench_prints_what_it_measured(tmp_path, monkeypatch, capsys):
    def measure(case, repeats):
        if "8192" in case.name:
            raise KeyboardInterrupt
        return attention.Measured(case.name, 2.0, 7.0, case.target)

    monkeypatch.setattr(attention, "measure", measure)
    assert main([*BENCH, "--out", str(tmp_path / "b.json")]) == 130
    printed = capsys.readouterr()
    assert "n = 4096" in printed.out and "3.50×" in printed.out and "8192" not in printed.out
    assert printed.err == "longshort: interrupted\n"


@pytest.mark.parametrize(
    ("package", "extra"), [("tyro", "train"), ("rich", "train"), ("accelerate", "train"), ("matplotlib", "bench")]
)
def test_missing_package_names_the_extra(package, extra, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["bench", "attention"]) == 1
    error = capsys.readouterr().err
    assert error == f"longshort: {package} is not installed; pip install 'longshort[{extra}]'\n"


def test_what_draws_nothing_needs_no_matplotlib(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["recipes"]) == 0


def test_recipes_are_listed_with_what_comes_out(capsys):
    assert main(["recipes"]) == 0
    printed = capsys.readouterr().out
    assert "charlm.enwik8_small" in printed and "0.99 on test" in printed


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model of a text, trained for a few steps from the command line."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "text.txt").write_bytes(b"the cat sat on the mat, and the rat ran. " * 400)
    arguments = ["--path", str(folder / "text.txt"), "--preset", "tiny", "--length", "64", "--sequences", "4"]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert main(["train", "charlm.text", *arguments, "--steps", "3", "--out", str(folder), "--cpu"]) == 0
    yield folder / "charlm.text"
    torch.set_num_threads(threads)


def test_a_training_leaves_a_run(trained, capsys):
    assert {p.name for p in trained.iterdir()} == {"checkpoints", "log.jsonl", "result.json", "run.json", "tensorboard"}
    again = ["train", "charlm.text", "--path", str(trained.parent / "text.txt"), "--out", str(trained.parent)]
    assert main([*again, "--steps", "3", "--cpu"]) == 1
    assert "holds a run already: go on with --resume" in capsys.readouterr().err


def test_ctrl_c_says_how_to_go_on(trained, tmp_path, monkeypatch, capsys):
    run = read_run(trained / "run.json")
    monkeypatch.setattr("longshort.lab.demo.recipe", lambda: run)
    commands = {
        "--resume": ["train", "replay", "--record", str(trained / "run.json"), "--out", str(tmp_path / "a"), "--cpu"],
        "the same command": ["demo", "--out", str(tmp_path / "b")],
    }
    for how, command in commands.items():
        with monkeypatch.context() as patch:
            before_call(patch.setattr, LanguageModelling, "batch", 2, lambda: os.kill(os.getpid(), signal.SIGINT))
            assert main(command) == 130
        last = capsys.readouterr().err.splitlines()[-1]
        assert last == f"longshort: stopped at step 2, which is saved; {how} goes on from there"
        assert main([*command, how] if how == "--resume" else command) == 0


def test_a_run_can_be_replayed_from_its_record(trained, tmp_path):
    assert main(["train", "replay", "--record", str(trained / "run.json"), "--out", str(tmp_path), "--cpu"]) == 0
    results = [
        json.loads((folder / "charlm.text" / "result.json").read_text()) for folder in (trained.parent, tmp_path)
    ]
    assert results[0]["metrics"] == results[1]["metrics"] and results[0]["loss"] == results[1]["loss"]


def test_evaluate_says_by_which_protocol(trained, tmp_path, capsys):
    short = ["--cpu", "--context", "128", "--step", "64"]
    assert main(["evaluate", str(trained), *short, "--out", str(tmp_path / "a.json")]) == 0
    printed = capsys.readouterr()
    assert "the paper's protocol" in printed.err and "128 characters" in printed.err
    assert [line.split(":")[0] for line in printed.out.splitlines()] == ["dev", "test"]
    found = json.loads((tmp_path / "a.json").read_text())
    assert 0 < found["bits_per_character"]["test"] < 9 and "paper's" in found["protocol"]
    assert main(["evaluate", str(trained), *short, "--protocol", "fast", "--split", "test"]) == 0
    printed = capsys.readouterr()
    assert "not the paper's" in printed.err and printed.out.startswith("test: ")
    assert main(["evaluate", str(trained / "checkpoints" / "step_00000003"), *short, "--split", "dev"]) == 0
    assert capsys.readouterr().out.startswith("dev: ")


def test_evaluate_compiles_when_asked(trained, monkeypatch, capsys):
    compiled = []
    monkeypatch.setattr(CharLM, "compile", lambda model, **keywords: compiled.append(keywords))
    short = ["--cpu", "--context", "128", "--step", "64", "--split", "dev"]
    assert main(["evaluate", str(trained), *short]) == 0 and not compiled
    assert main(["evaluate", str(trained), *short, "--compile"]) == 0 and compiled == [{"dynamic": False}]


def test_evaluate_warns_of_a_text_that_changed(trained, tmp_path, caplog, capsys):
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "text.txt").write_bytes((trained.parent / "text.txt").read_bytes() + b"a line more")
    given = ["evaluate", str(tmp_path / "run"), "--cpu", "--protocol", "fast", "--context", "64", "--split", "dev"]
    assert main(given) == 0 and not caplog.messages
    assert main([*given, "--data", str(tmp_path / "text.txt")]) == 0
    assert "has changed since its training" in caplog.text


def test_the_model_evaluated_is_the_one_named(trained, tmp_path, monkeypatch, capsys):
    """Also when a better one comes while it is evaluated."""
    run = tmp_path / "run"
    shutil.copytree(trained, run)

    def better_meanwhile(*given, **keywords):
        shutil.copytree(
            run / "checkpoints" / "step_00000003", run / "checkpoints" / "step_00000009", dirs_exist_ok=True
        )
        return does(*given, **keywords)

    does = evaluate.evaluate
    monkeypatch.setattr(evaluate, "evaluate", better_meanwhile)
    given = [
        "evaluate",
        str(run),
        "--cpu",
        "--protocol",
        "fast",
        "--context",
        "64",
        "--split",
        "dev",
        "--which",
        "last",
    ]
    assert main([*given, "--out", str(tmp_path / "a.json")]) == 0
    assert json.loads((tmp_path / "a.json").read_text())["model"].endswith("step_00000003")


def test_evaluate_takes_another_text(trained, tmp_path, capsys):
    (tmp_path / "other.txt").write_text("something else entirely " * 10)
    assert main(["evaluate", str(trained), "--cpu", "--text", str(tmp_path / "other.txt")]) == 0
    assert "(239 characters" in capsys.readouterr().out


def test_generate_streams_and_tells_its_speed(trained, capsys, monkeypatch):
    arguments = ["generate", str(trained), "--count", "20", "--seed", "1", "--cpu"]
    assert main([*arguments, "--prompt", "the cat"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("the cat") and "20 characters, " in printed.err and "a second" in printed.err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the cat")))
    assert main(arguments) == 0
    assert capsys.readouterr().out == printed.out  # the same prompt from standard input, the same seed


def test_weights_that_cannot_be_read_are_named(trained, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(trained / "checkpoints" / "step_00000003", copy)
    (copy / "model.safetensors").write_bytes(b"short")
    for what in (f"{copy} is corrupt: model.safetensors", f"the weights in {copy} cannot be read"):
        assert main(["generate", str(copy), "--prompt", "a", "--cpu"]) == 1
        error = capsys.readouterr().err
        assert what in error and len(error.splitlines()) == 1
        (copy / META).unlink(missing_ok=True)  # a folder without checksums is read as it is


@pytest.mark.parametrize("command", [["evaluate", "--split", "dev"], ["generate", "--prompt", "a"]])
@pytest.mark.parametrize("name", ["run.json", META, "model.safetensors", "config.json"])
def test_a_damaged_file_of_a_run_is_named_in_a_line(name, command, trained, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (path,) = run.rglob(name)
    path.write_bytes(path.read_bytes()[:40])
    assert main([command[0], str(run), *command[1:], "--cpu"]) == 1
    error = capsys.readouterr().err
    assert name in error and str(path.parent) in error and len(error.splitlines()) == 1


def test_generate_ends_politely(trained, capsys, monkeypatch):
    def interrupted(*_, **__):
        yield ord("x")
        raise KeyboardInterrupt

    monkeypatch.setattr(generate, "generate", interrupted)
    assert main(["generate", str(trained), "--prompt", "a", "--cpu"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "ax\n" and printed.err.startswith("1 characters")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["generate", "nowhere", "--prompt", "a"], "nowhere is not there"),
        (["generate", "TRAINED", "--prompt", "a", "--temperature", "-1"], "temperature must be a number of at least 0"),
        (["generate", "TRAINED", "--prompt", "a", "--top-p", "2"], "top_p must be"),
        (["evaluate", "nowhere"], "nowhere is not there"),
        (["evaluate", "TRAINED", "--step", "0"], "step must lie between"),
        (["evaluate", "TRAINED", "--batch", "0"], "batch be at least 1"),
        (["evaluate", "TRAINED", "--out", "."], "out must be a file"),
        (["evaluate", "TRAINED", "--text", "TEXT", "--corpus", "text8"], "give no corpus or data with it"),
        (["evaluate", "ABOVE"], "below it there are"),
        (["evaluate", "TRAINED", "--text", "nowhere"], "nowhere is not there"),
        (["train", "charlm.text", "--path", "nowhere"], "nowhere is not there"),
        (["train", "charlm.text", "--path", "TEXT", "--steps", "0"], "steps must be at least 1"),
        (["train", "charlm.text", "--path", "TEXT", "--length", "100000"], "too short"),
        (["train", "replay", "--record", "nowhere.json"], "nowhere.json"),
        (["train", "replay", "--record", "TEXT"], "text.txt is no record of a run"),
        (["train", "replay", "--record", "RESULT"], "result.json is no record of a run"),
        (["analyse", "curves"], "give folders of runs"),
        (["analyse", "curves", "nowhere"], "no log of a run in nowhere"),
        (["analyse", "attention"], "give one model"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(arguments, said, trained, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"TRAINED": trained, "TEXT": trained.parent / "text.txt", "ABOVE": trained.parent}
    names["RESULT"] = trained / "result.json"
    cpu = [] if arguments[0] == "analyse" else ["--cpu"]
    assert main([str(names.get(a, a)) for a in arguments] + cpu) == 1
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error


def test_a_text_that_is_gone_is_named_with_the_option(trained, tmp_path, capsys):
    shutil.copytree(trained, tmp_path / "run")
    record = tmp_path / "run" / "run.json"
    record.write_text(record.read_text().replace("text.txt", "gone.txt"))
    assert main(["evaluate", str(tmp_path / "run"), "--cpu"]) == 1
    error = capsys.readouterr().err
    assert "gone.txt is not there" in error and "if it moved, evaluate with --data" in error


def test_a_resumed_run_has_the_steps_it_began_with(trained, tmp_path, capsys):
    shutil.copytree(trained, tmp_path / "charlm.text")
    same = ["--preset", "tiny", "--length", "64", "--sequences", "4", "--out", str(tmp_path), "--cpu", "--resume"]
    again = ["train", "charlm.text", "--path", str(trained.parent / "text.txt"), *same]
    assert main(again) == 0 and "was finished before" in capsys.readouterr().err
    assert main([*again, "--steps", "4", "--save-every", "1"]) == 0
    error = capsys.readouterr().err
    assert "3 steps before, 4 now" in error and "charlm.text: 4 steps in" in error and "bpc" in error.splitlines()[-1]


def test_analyse_draws(trained, tmp_path, capsys):
    for what, models in {"visibility": [], "curves": [str(trained)], "attention": [str(trained)]}.items():
        path = tmp_path / f"{what}.png"
        assert main(["analyse", what, *models, "--out", str(path)]) == 0
        assert path.read_bytes().startswith(b"\x89PNG") and str(path) in capsys.readouterr().out


FIGURES = ("visibility", "curves", "attention", "look", "similarity", "norms")


@pytest.mark.parametrize("what", FIGURES)
def test_a_figure_is_no_other_file(what, tmp_path, capsys):
    """Numbers beside them in .json would otherwise be written over."""
    for name in ("norms.json", "norms.jpg", "v1.2"):
        assert main(["analyse", what, "--out", str(tmp_path / "new" / name)]) == 1
        told = f"longshort: out must end in .png, .pdf, .svg, got {tmp_path / 'new' / name}\n"
        assert capsys.readouterr().err == told
    assert not (tmp_path / "new").exists()


def test_a_figure_without_an_ending_gets_its_own(tmp_path, capsys):
    assert main(["analyse", "visibility", "--out", str(tmp_path / "seen")]) == 0
    assert capsys.readouterr().out == f"visibility: {tmp_path / 'seen.png'}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["seen.png"]
    assert main(["analyse", "visibility", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"longshort: out must be a file, and {tmp_path} is a folder\n"
    assert analyse.as_figure(tmp_path / "x.PNG") == tmp_path / "x.PNG"
    assert main(["analyse", "visibility", "--out", str(tmp_path / "seen.pdf")]) == 0
    assert (tmp_path / "seen.pdf").read_bytes().startswith(b"%PDF")


def test_runs_of_one_name_are_all_drawn(trained, tmp_path, monkeypatch):
    other = tmp_path / trained.name
    shutil.copytree(trained, other)
    drawn = []
    monkeypatch.setattr(analyse, "draw_curves", lambda logs, *_, **__: drawn.extend(logs))
    assert main(["analyse", "curves", str(trained), str(other), "--out", str(tmp_path / "a.png")]) == 0
    assert drawn == [str(trained), str(other)]
    assert main(["analyse", "curves", str(trained), "--out", str(tmp_path / "a.png")]) == 0
    assert drawn[2:] == [trained.name]


@pytest.mark.parametrize(("recipe", "said"), [("lra.listops", "order of examples"), ("charlm.demo", "and dropout")])
def test_there_is_one_seed(recipe, said, capsys):
    with pytest.raises(SystemExit):
        main(["train", recipe, "--help"])
    told = capsys.readouterr().out.split("--seed ")
    assert len(told) == 2 and said in " ".join(told[1].split("--")[0].split())


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A model of small lists, trained for two steps from the command line."""
    folder = tmp_path_factory.mktemp("classifier")
    (folder / "lists").mkdir()
    for name, count in dict(train=40, val=30, test=50).items():
        trees = [f"[MAX {i % 10} {i // 10} ]\t{max(i % 10, i // 10)}\n" for i in range(count)]
        (folder / "lists" / f"basic_{name}.tsv").write_text("Source\tTarget\n" + "".join(trees))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    given = ["--data", str(folder / "lists"), "--seed", "3", "--steps", "2", "--evaluate-every", "1"]
    assert main(["train", "lra.listops", *given, "--out", str(folder), "--cpu"]) == 0
    yield folder / "lra.listops.w8r32.seed3"
    torch.set_num_threads(threads)


def test_a_recipe_with_a_seed_of_its_own_takes_it(classifier):
    run = read_run(classifier / "run.json")
    assert (run.name, run.seed, run.task.order, run.steps) == (classifier.name, 3, 3, 2)


def test_evaluate_says_how_many_labels_a_classifier_finds(classifier, tmp_path, capsys):
    opened = Trained.open(str(classifier))
    task, model = opened.run.task, opened.model()
    right = {split: int(shares(task, model, split=split)["accuracy"].total) for split in ("dev", "test")}
    capsys.readouterr()
    said = {"dev": f"dev: {100 * right['dev'] / 30:.2f} % ({right['dev']} of 30)"}
    said["test"] = f"test: {100 * right['test'] / 50:.2f} % ({right['test']} of 50)"
    out = tmp_path / "a" / "b.json"
    assert main(["evaluate", str(classifier), "--cpu", "--out", str(out)]) == 0
    assert capsys.readouterr().out.splitlines() == [said["dev"], said["test"]]
    found = json.loads(out.read_text())
    assert found["accuracy"] == {"dev": right["dev"] / 30, "test": right["test"] / 50}
    assert found["model"] == str(opened.path) and found["precision"] == "fp32"
    assert main(["evaluate", str(classifier / "checkpoints" / "step_00000002"), "--cpu", "--split", "test"]) == 0
    assert main(["evaluate", str(classifier), "--cpu", "--split", "test", "--which", "last", "--out", str(out)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second and first.startswith("test: ")
    assert json.loads(out.read_text())["model"].endswith("step_00000002")


def test_examples_that_moved_are_named_with_the_option(classifier, tmp_path, capsys, caplog):
    shutil.copytree(classifier, tmp_path / "run")
    shutil.copytree(classifier.parent / "lists", tmp_path / "lists")
    for path in (tmp_path / "lists").iterdir():
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:8]))
    record = tmp_path / "run" / "run.json"
    record.write_text(record.read_text().replace(str(classifier.parent / "lists"), "gone"))
    given = ["evaluate", str(tmp_path / "run"), "--cpu", "--split", "dev"]
    assert main(given) == 1
    said = capsys.readouterr().err
    assert "gone has no basic_train.tsv" in said and "if it moved, evaluate with --data" in said
    assert main([*given, "--data", str(tmp_path / "lists")]) == 0
    assert capsys.readouterr().out.endswith(" of 7)\n")
    assert "has changed since its training" in caplog.text


def test_a_file_that_cannot_be_written_is_refused_before_the_work(classifier, below_a_file, monkeypatch, capsys):
    monkeypatch.setattr(Trained, "model", lambda *_: pytest.fail("it was evaluated"))
    given = ["evaluate", str(classifier), "--cpu", "--out"]
    assert main([*given, str(below_a_file)]) == 1 and main([*given, str(classifier)]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("longshort: cannot use") and "out must be a file" in second


def test_a_record_that_only_its_owner_can_read_leaves_the_model_what_it_is(trained, classifier, tmp_path, capsys):
    shutil.copytree(trained, tmp_path / "run")
    record = tmp_path / "run" / "run.json"
    record.write_text(record.read_text().replace('"LanguageModelling"', '"my.own.tasks:Task"'))
    (tmp_path / "other.txt").write_text("something else entirely " * 10)
    assert main(["evaluate", str(tmp_path / "run"), "--cpu", "--text", str(tmp_path / "other.txt")]) == 0
    assert "bits per character" in capsys.readouterr().out
    opened = [Trained.open(str(folder)) for folder in (trained, classifier, tmp_path / "run")]
    assert [each.kind for each in opened] == ["language", "sequences", "language"]
    assert [each.run is None for each in opened] == [False, False, True]


def test_a_form_of_the_data_that_needs_a_package_says_which(tmp_path, monkeypatch, capsys):
    (tmp_path / "train-0.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert main(["train", "lra.text", "--data", str(tmp_path), "--out", str(tmp_path), "--cpu"]) == 1
    error = capsys.readouterr().err
    assert error == "longshort: this form of the data needs pyarrow: pip install 'longshort[data]'\n"


def test_bench_macs_has_the_papers_number_beside_ours(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "macs", "lra", "--only", "listops/8,32"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "8,32" in line)
    assert [word for word in line.split() if word.startswith("0.")] == ["0.20", "0.199"]
    (fact,) = json.loads((tmp_path / "out" / "bench_macs.json").read_text())["lines"]
    assert fact["line"] == "listops/8,32" and fact["counted"] == pytest.approx(0.199, abs=5e-4)


@pytest.mark.parametrize("command", [["report", "lra"], ["bench", "macs", "lra"]])
def test_lines_that_are_not_there_are_refused_with_those_that_are(command, capsys):
    with pytest.raises(SystemExit):
        main([*command, "--only", "nonsense"])
    error = capsys.readouterr().err
    assert "no case has 'nonsense' in its name" in error and "listops/8,32" in error and "retrieval/full" in error
    assert ("image/8,32" in error) is (command[0] == "report")  # for which the paper has no count


def test_report_takes_its_options(tmp_path, monkeypatch):
    wishes = []
    monkeypatch.setattr(lra, "report", lambda wish, console: wishes.append(wish))
    assert main(["report", "lra"]) == 0
    given = ["--only", "text/", "--seeds", "2", "--steps", "9", "--jobs", "3", "--no-train", "--cpu"]
    assert main(["report", "lra", *given, "--out", "a", "--data", "b"]) == 0
    assert wishes[0] == Wish(LINES, list(LINES), Path("out/lra"))
    lines = [line for line in LINES if "text/" in line.name]
    assert wishes[1] == Wish(LINES, lines, Path("a"), Path("b"), seeds=2, steps=9, jobs=3, train=False, cpu=True)


def test_report_shows_what_there_is(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(lra, "macs_of", lambda line: line.macs)
    out = tmp_path / "lra"
    assert main(["report", "lra", "--no-train", "--only", "brackets/", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("not yet run") == 4 and "well-posed" in printed and str(out) in printed
    written = (out / "lra.md").read_text()
    assert written.count("### ") > 8 and "well-posed" in written and (out / "lra.json").exists()
    assert main(["report", "lra", "--no-train", "--data", str(tmp_path / "nowhere")]) == 1
    assert "nowhere is none" in capsys.readouterr().err


def test_a_stopped_report_says_how_to_go_on(monkeypatch, capsys):
    def stopped(wish, console):
        raise StoppedError("stopped at step 2, which is saved")

    monkeypatch.setattr(lra, "report", stopped)
    assert main(["report", "lra"]) == 130
    error = capsys.readouterr().err
    assert error == "longshort: stopped at step 2, which is saved; the same command goes on from there\n"


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory. Tried"), RuntimeError("x: can't allocate memory: you tried")]
)
def test_too_little_memory_is_told_in_one_line(error, monkeypatch, capsys):
    def lacks(run, out, **how):
        raise error

    monkeypatch.setattr("longshort.lab.train.train", lacks)
    assert main(["train", "lra.listops", "--cpu"]) == 1
    assert capsys.readouterr().err == f"longshort: out of memory ({error}); --accumulate divides each batch\n"


def test_other_errors_are_not_taken_for_too_little_memory(monkeypatch):
    def fails(run, out, **how):
        raise RuntimeError("a defect")

    monkeypatch.setattr("longshort.lab.train.train", fails)
    with pytest.raises(RuntimeError, match="a defect"):
        main(["train", "lra.listops", "--cpu"])


def test_a_classifier_is_not_asked_to_write(classifier, capsys):
    assert main(["generate", str(classifier), "--cpu", "--prompt", "x"]) == 1
    error = capsys.readouterr().err
    assert str(classifier) in error and "classifier" in error and "language model" in error
