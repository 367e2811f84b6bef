"""A classifier is evaluated by its best checkpoint, on examples it has not seen, and its folder remembers it."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_encoders import tiny_checkpoint
from training import checkpoints, do, language
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from longshort.lab.cli.evaluate import Options, evaluate_model
from longshort.lab.data.aan import Aan
from longshort.lab.data.imdb import Imdb
from longshort.lab.data.listops import ListOps
from longshort.lab.data.perturb import delete_punctuation, insert_punctuation
from longshort.lab.data.tokenised import Tokenised
from longshort.lab.evaluate import Share
from longshort.lab.evaluate.labels import Accuracy
from longshort.lab.report.jobs import evaluate_run
from longshort.lab.runs.folder import RunFolder, read_run
from longshort.lab.tasks import Classification, MaskedModelling, PairClassification, TextClassification
from longshort.lab.train import AdamW, Run
from longshort.lab.trained import Trained
from longshort.lab.trained.encoder import TextClassifierConfig
from longshort.models.sequence import MaskedConfig, PairClassifier, PairConfig, SequenceClassifier, SequenceConfig
from longshort.nn.spec import Full, LongShort

SIZES = dict(length=64, layers=1, width=16, heads=2, feedforward=16, head=8, vocabulary=300, dropout=0.1)
MODEL = SequenceConfig(LongShort(4, 2), classes=2, **SIZES)
STEPS = 12
pytestmark = pytest.mark.usefixtures("one_thread", "own_cache")


def run_of(name, model, task, **changes):
    run = Run(name, model, task, STEPS, optimizer=AdamW(lr=0.02), log_every=4, evaluate_every=1, save_every=100)
    return replace(run, **changes)


def write_reviews(folder):
    """What is liked can be learned in a few steps."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    words = (["bad;", "awful", "(film)", "..."], ["good!", "great", "“film”", ","])
    for split, count in (("train", 80), ("test", 50)):
        texts = [(i % 2, " ".join(random.choice(words[i % 2], random.integers(1, 15)))) for i in range(count)]
        lines = [json.dumps(dict(text=text, label=label)) for label, text in texts]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    return folder


def reviews(folder):
    task = Classification(Imdb(folder, held_out=0.2), length=60, sequences=16, evaluation_batch=7)
    return run_of("reviews", MODEL, task)


def write_pairs(folder):
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for split in ("train", "eval", "test"):
        lines = []
        for i in range(20):
            a, b = random.integers(0, 9, 2)
            lines.append(f"{i % 2}.0\t{a}\t{b}\tpaper {a} {'x' * a}\tpaper {b} {'y' * b}\n")
        (folder / f"new_aan_pairs.{split}.tsv").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that was best, as it seemed, before it had learned anything."""
    out = tmp_path_factory.mktemp("trained")
    scores = iter([0.7, *[0.6] * (STEPS - 1)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Accuracy, "run", lambda *_: {"accuracy": Share(next(scores), 1.0)})
        do(reviews(write_reviews(out / "imdb")), out)
    return out / "reviews"


def evaluated(folder):
    """By its best checkpoint, as reports do it."""
    return evaluate_run(read_run(folder / "run.json"), folder.parent, cpu=True)


def of_last(folder):
    """Shares of labels that the last checkpoint finds, by test set."""
    return evaluate_model(str(folder), Options(split="test", which="last", cpu=True))["accuracy"]


def sets_of(task):
    """The test set, and all that it is turned into."""
    test = task.splits.test
    return {"test": test, **{name: change(test) for name, change in task.splits.variants.items()}}


def counted(model, task, items):
    """One by one, without padding and without a batch."""
    right = 0
    with torch.no_grad():
        for i in range(len(items)):
            tokens = torch.from_numpy(items.sequences[i][: task.length].astype(np.int64))[None]
            right += int(model(tokens).argmax()) == items.labels[i]
    return right / len(items)


def test_the_accuracy_is_that_of_the_best_checkpoint(trained):
    run = read_run(trained / "run.json")
    kept = checkpoints(run, trained.parent)
    by_hand = {
        which: counted(SequenceClassifier.from_pretrained(path).eval(), run.task, run.task.splits.test)
        for which, path in (("best", kept.best()), ("last", kept.last()))
    }
    assert by_hand["best"] < by_hand["last"]  # or this test would say nothing
    for which, accuracy in by_hand.items():
        options = Options(split="test", which=which, cpu=True)
        assert evaluate_model(str(trained), options)["accuracy"]["test"] == accuracy
    assert evaluated(trained)["accuracy"]["test"] == by_hand["best"]


def test_the_folder_keeps_what_was_found(trained):
    facts = evaluated(trained)
    assert RunFolder(trained).evaluated == json.loads((trained / "evaluated.json").read_text()) == facts
    assert {name: facts[name] for name in facts if name != "accuracy"} == {
        "run": "reviews",
        "checkpoint": 1,
        "dev": 0.7,
        "source": "IMDb, chosen on held-out reviews",
        "data": read_run(trained / "run.json").task.fingerprint(),
        "precision": "fp32",
        "device": "cpu",
    }


def test_texts_are_evaluated_with_marks_put_in_and_taken_out(trained):
    task = read_run(trained / "run.json").task
    found = of_last(trained)
    model = SequenceClassifier.from_pretrained(Trained.open(str(trained), "last").path).eval()
    test, sets = task.splits.test, sets_of(task)
    assert list(sets) == list(found) == list(evaluated(trained)["accuracy"]) == ["test", "insertion", "deletion"]
    changed = {"insertion": insert_punctuation(test.sequences), "deletion": delete_punctuation(test.sequences)}
    for name, sequences in changed.items():
        assert sets[name].sequences.fingerprint() == sequences.fingerprint() != test.sequences.fingerprint()
        assert sets[name].labels.tolist() == test.labels.tolist()
    assert found == {name: counted(model, task, items) for name, items in sets.items()}
    assert len(set(found.values())) > 1


def test_other_sequences_are_evaluated_as_they_are():
    task = Classification(ListOps(train=4, dev=4, test=4), length=60)
    assert [evaluator.name for evaluator in task.evaluators("test")] == list(sets_of(task)) == ["test"]


def test_pairs_are_evaluated_with_marks_put_in_and_taken_out_too(tmp_path):
    task = PairClassification(Aan(write_pairs(tmp_path / "aan")), length=60, sequences=8)
    run = run_of("pairs", PairConfig(LongShort(4, 2), classes=2, **SIZES), task, steps=3)
    do(run, tmp_path)
    model = PairClassifier.from_pretrained(checkpoints(run, tmp_path).best()).eval()
    test = task.splits.test
    with torch.no_grad():
        sides = [[torch.from_numpy(test.documents[d].astype(np.int64))[None] for d in pair] for pair in test.pairs]
        right = sum(int(model(a, b).argmax()) == label for (a, b), label in zip(sides, test.labels, strict=True))
    found = evaluated(tmp_path / "pairs")["accuracy"]
    assert list(found) == ["test", "insertion", "deletion"] and found["test"] == right / 20
    sets = sets_of(task)
    for name, change in (("insertion", insert_punctuation), ("deletion", delete_punctuation)):
        assert sets[name].documents.fingerprint() == change(test.documents).fingerprint()
        assert sets[name].pairs.tolist() == test.pairs.tolist() and sets[name].labels.tolist() == test.labels.tolist()


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A run of a pretrained encoder on the same reviews, which it cuts to 20 tokens."""
    out = tmp_path_factory.mktemp("encoder")
    tiny_checkpoint(out / "published", "roberta", "Model")
    source = Tokenised(Imdb(write_reviews(out / "imdb"), held_out=0.2), out / "published")
    model = TextClassifierConfig(str(out / "published"), length=20, attention=Full())
    run = run_of("encoder", model, TextClassification(source, length=20, sequences=16, evaluation_batch=7))
    do(replace(run, optimizer=AdamW(lr=3e-3), steps=8), out)
    return out / "encoder"


def counted_by_transformers(folder, numbers):
    """Labels found of test reviews, in the order of aclImdb, by what lies in a checkpoint alone."""
    model, tokenizer = (auto.from_pretrained(folder) for auto in (AutoModelForSequenceClassification, AutoTokenizer))
    lines = (folder.parents[2] / "imdb" / "test.jsonl").read_text().splitlines()
    reviews = sorted((line["label"], line["text"]) for line in map(json.loads, lines))
    right = 0
    with torch.no_grad():
        for label, text in (reviews[i] for i in numbers):
            given = tokenizer(text, truncation=True, max_length=20, return_tensors="pt")
            right += int(model.eval()(given["input_ids"], given["attention_mask"]).logits.argmax() == label)
    return right


def test_encoders_are_evaluated_on_the_longest_texts_too(encoder):
    task = read_run(encoder / "run.json").task
    lengths = task.splits.test.lengths
    longest = sorted(sorted(range(50), key=lambda i: (lengths[i], i))[-5:])
    sets = sets_of(task)
    assert list(sets) == list(evaluated(encoder)["accuracy"]) == ["test", "longest tenth"]
    assert sets["longest tenth"].labels.tolist() == task.splits.test.labels[longest].tolist()
    assert sorted(sets["longest tenth"].lengths) == sorted(lengths)[-5:] and min(sorted(lengths)[-5:]) > 20
    found = of_last(encoder)
    checkpoint = checkpoints(read_run(encoder / "run.json"), encoder.parent).last()
    right = {"test": range(50), "longest tenth": longest}
    counts = {name: counted_by_transformers(checkpoint, numbers) / len(numbers) for name, numbers in right.items()}
    assert found == counts and found["test"] != found["longest tenth"]


def test_the_command_evaluates_encoders(encoder, tmp_path, capsys):
    def found_by(**options):
        return evaluate_model(str(encoder), Options(cpu=True, **options))["accuracy"]

    found = found_by(out=tmp_path / "found.json")
    said = capsys.readouterr().out.splitlines()
    assert list(found) == [line.split(":")[0] for line in said] == ["dev", "test", "longest tenth"]
    assert said[2].endswith(" of 5)")
    assert json.loads((tmp_path / "found.json").read_text())["accuracy"] == found
    (encoder.parent / "imdb").rename(tmp_path / "moved")
    try:
        with pytest.raises(FileNotFoundError, match=f"{encoder}.*--data"):
            found_by()
        assert found_by(data=tmp_path / "moved") == found
    finally:
        (tmp_path / "moved").rename(encoder.parent / "imdb")
    assert list(found_by(split="dev")) == ["dev"]


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """A run that restores hidden tokens of lists."""
    out = tmp_path_factory.mktemp("masked")
    task = MaskedModelling(ListOps(train=20, dev=4, test=4), length=60, sequences=8, mask=20)
    run = run_of("masked", MaskedConfig(**vars(MODEL)), task, steps=2)
    do(run, out)
    return out / "masked"


def test_what_is_no_classification_is_not_in_a_table(masked, tmp_path):
    text = language(tmp_path, steps=1)
    do(text, tmp_path)
    for folder, metric in ((masked, "loss"), (tmp_path / text.name, "bpc")):
        with pytest.raises(ValueError, match=f"{folder.name}.*{metric}"):
            evaluated(folder)
        assert not (folder / "evaluated.json").exists()


def test_hidden_tokens_are_restored_as_often_as_while_training(masked, capsys):
    """Of the development set alone."""
    found = evaluate_model(str(masked), Options(which="last", cpu=True))
    assert found["restored"] == {"dev": RunFolder(masked).result["metrics"]["restored"]}
    (line,) = capsys.readouterr().out.splitlines()
    right, count = line.rpartition("(")[2].rstrip(")").split(" of ")
    assert line.startswith("dev: ") and int(right) / int(count) == found["restored"]["dev"]
    with pytest.raises(ValueError, match=f"{masked}.*test"):
        evaluate_model(str(masked), Options(split="test", cpu=True))


def test_a_trained_model_comes_with_its_run(trained):
    best, last = (Trained.open(str(trained), which) for which in ("best", "last"))
    assert best.run == reviews(trained.parent / "imdb") and best.path != last.path
    for name, which, expected in ((trained, "best", best), (trained, "last", last), (last.path, "best", last)):
        opened = Trained.open(str(name), which)
        model, weights = opened.model(), SequenceClassifier.from_pretrained(expected.path).state_dict()
        assert isinstance(model, SequenceClassifier) and not model.training
        assert opened == expected and opened.run == best.run
        assert all(torch.equal(t, weights[key]) for key, t in model.state_dict().items())


def test_a_folder_without_a_run_or_without_weights_is_named(trained, tmp_path):
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "nowhere")):
        Trained.open(str(tmp_path / "nowhere"))
    (tmp_path / "run.json").write_bytes((trained / "run.json").read_bytes())
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        Trained.open(str(tmp_path))
