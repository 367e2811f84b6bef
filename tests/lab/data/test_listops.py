"""ListOps: labels are what the lists come to, trees are as the paper's, and a set is the same every time."""

import logging
from itertools import chain

import numpy as np
import pytest

from longshort.lab.data import generated, listops
from longshort.lab.data.files import cache_folder
from longshort.lab.data.generated import Draws, cached, check, collect
from longshort.lab.data.labelled import Labelled, Sequences
from longshort.lab.data.listops import OPERATORS, VOCABULARY, ListOps, generate, text_of, value, without_brackets

SMALL = dict(train=50, dev=10, test=10)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def trees():
    """Two chunks."""
    return generate(1200, seed=3)


@pytest.fixture
def folder(trees, tmp_path):
    """Files as the official ones: binary parentheses, and columns in the order of the release."""
    for number, name in enumerate(("train", "val", "test")):
        lines = (official(trees, i) for i in range(3 * number, 3 * number + 3))
        (tmp_path / f"basic_{name}.tsv").write_text("Source\tTarget\n" + "".join(f"{line}\n" for line in lines))
    return tmp_path


def official(trees, i):
    words = text_of(trees.sequences[i]).split()
    return "( " * len(words) + " ".join(f"{word} )" for word in words) + f"\t{trees.labels[i]}"


def listed(items):
    return [items.sequences[i].tolist() for i in range(len(items))]


@pytest.mark.parametrize(
    "text, result",
    [
        ("7", 7),
        ("[MIN 4 2 7 ]", 2),
        ("[MAX 2 9 [MIN 4 7 ] 0 ]", 9),
        ("[SM 9 9 9 ]", 7),
        ("[MED 9 1 5 ]", 5),
        ("[MED 1 2 ]", 1),
        ("[MED 9 0 8 3 ]", 5),
        ("[SM [MAX 1 [MED 8 9 2 ] ] [MIN 6 [SM 5 7 ] ] ]", 0),
    ],
)
def test_a_list_comes_to_a_digit(text, result):
    assert value(text) == result
    assert value([VOCABULARY.index(word) for word in text.split()] + [0, 0]) == result


@pytest.mark.parametrize("text", ["", "1 2", "[MAX 1 2", "[MAX ]", "1 ]", "]", "[AVG 1 2 ]", "[MAX 12 3 ]", "²"])
def test_what_is_no_list_has_no_value(text):
    with pytest.raises(ValueError, match=r"has no place in|is not one expression"):
        value(text)


def test_labels_are_the_values_of_their_trees(trees):
    assert [value(trees.sequences[i]) for i in range(len(trees))] == trees.labels.tolist()
    assert np.bincount(trees.labels, minlength=10).min() > 0


def test_trees_have_the_shape_that_the_paper_says(trees):
    arguments, deepest = [], 0
    for tree in listed(trees):
        counts = [0]
        for word in text_of(tree).split():
            if word == "]":
                arguments.append(counts.pop())
                continue
            counts[-1] += 1
            deepest = max(deepest, len(counts))
            if word in OPERATORS:
                counts.append(0)
        assert counts == [1] and tree[0] >= VOCABULARY.index(OPERATORS[0]) and 500 < len(tree) < 2000
    assert (min(arguments), max(arguments), deepest) == (2, 10, 10)


def test_draws_are_as_likely_as_they_should_be():
    """Of whole chunks, before any tree is thrown away."""
    levels = [level for number in range(4) for level in listops.grow(Draws(1, number))[1:-1]]
    is_operator = np.concatenate([level.is_operator for level in levels])
    numbers = np.concatenate([level.numbers for level in levels])
    assert abs(is_operator.mean() - 0.25) < 4 * (0.25 * 0.75 / len(is_operator)) ** 0.5
    operators, digits = numbers[is_operator], numbers[~is_operator] % 10
    arguments = np.concatenate([level.arguments for level in levels])[is_operator] - 2
    for drawn, kinds in ((operators // 90, 4), (arguments, 9), (operators // 90 * 9 + arguments, 36), (digits, 10)):
        share = np.bincount(drawn, minlength=kinds) / len(drawn)
        assert len(share) == kinds and abs(share - 1 / kinds).max() < 4 * (1 / kinds / len(drawn)) ** 0.5


def test_lengths_are_those_of_the_paper(trees):
    """888 ± 339 without closing brackets; here 4 standard errors of 1200 trees."""
    lengths = without_brackets(trees).lengths
    assert abs(lengths.mean() - 888) < 40 and abs(lengths.std() - 339) < 25
    assert abs(trees.lengths.mean() - 1035) < 46


def test_both_variants_are_of_the_same_trees():
    with_them, without = (ListOps(brackets, **SMALL).splits() for brackets in (True, False))
    for name in ("train", "dev", "test"):
        full, cut = getattr(with_them, name), getattr(without, name)
        assert [[t for t in tree if VOCABULARY[t] != "]"] for tree in listed(full)] == listed(cut)
        assert full.labels.tolist() == cut.labels.tolist() and cut.lengths.min() > 0


def test_the_same_seed_gives_the_same_set_and_another_one_another():
    first = ListOps(**SMALL).splits()
    for path in (cache_folder() / "lra").iterdir():
        path.unlink()
    assert ListOps(**SMALL).splits().fingerprint() == first.fingerprint()
    assert ListOps(**SMALL, seed=1).splits().fingerprint() != first.fingerprint()
    assert (len(first.train), len(first.dev), len(first.test), ListOps().classes) == (50, 10, 10, 10)


def test_the_set_is_the_same_on_every_machine():
    assert generate(70, seed=0).fingerprint() == "618e83ecfb8c520e39c225cf1f5f62a040c441aac11321c3d7994917198ba69b"


def test_more_to_train_on_changes_neither_dev_nor_test():
    small, large = (ListOps(train=train, dev=10, test=20).splits() for train in (30, 900))
    assert small.dev.fingerprint() == large.dev.fingerprint()
    assert small.test.fingerprint() == large.test.fingerprint()
    assert listed(small.train) == listed(large.train)[:30]


def test_no_tree_is_in_two_splits():
    splits = ListOps(True, train=700, dev=100, test=100).splits()
    every = [tuple(tree) for tree in chain(*(listed(items) for items in (splits.train, splits.dev, splits.test)))]
    assert len(set(every)) == len(every) == 900


def test_what_is_drawn_twice_is_kept_once():
    def chunk(draws):
        numbers = draws.below(40, 8) + 1
        return Labelled(Sequences.of(numbers[:, None]), numbers)

    items = collect(chunk, 40, seed=0, doing="counting", length=1)
    assert sorted(items.labels.tolist()) == list(range(1, 41))
    assert items.sequences.tokens.tolist() == items.labels.tolist()


def test_a_set_is_generated_once(monkeypatch):
    made = ListOps(**SMALL).splits().fingerprint()
    monkeypatch.setattr(listops, "chunk", None)
    assert ListOps(**SMALL).splits().fingerprint() == made


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-100],
        lambda content: b"",
        lambda content: b"something else",
        lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
        lambda content: content[:-20] + bytes(20),
    ],
)
def test_a_damaged_file_is_told_and_made_anew(damage, caplog):
    made = ListOps(**SMALL).splits().fingerprint()
    (path,) = (cache_folder() / "lra").iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    with caplog.at_level(logging.WARNING):
        assert ListOps(**SMALL).splits().fingerprint() == made
    assert f"{path} is damaged" in caplog.text
    assert path.read_bytes() == whole


def test_interrupted_writing_leaves_nothing(monkeypatch):
    def interrupt(file, **arrays):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(generated.np, "savez", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ListOps(**SMALL).splits()
    assert list((cache_folder() / "lra").iterdir()) == []


def test_a_set_of_another_checksum_is_refused_and_not_kept(trees):
    with pytest.raises(ValueError, match=f"mine was generated with checksum {trees.fingerprint()}, expected 0000"):
        cached("mine", lambda: trees, "0000")
    assert list((cache_folder() / "lra").iterdir()) == []
    check("mine", trees, trees.fingerprint())


def test_a_cached_set_must_have_the_known_checksum(trees, caplog):
    cached("mine", lambda: without_brackets(trees))
    assert cached("mine", lambda: trees, trees.fingerprint()).fingerprint() == trees.fingerprint()
    assert "its checksum is another" in caplog.text


@pytest.mark.parametrize("counts", [dict(train=0), dict(dev=0), dict(test=-1)])
def test_an_empty_split_is_refused(counts):
    with pytest.raises(ValueError, match="train, dev and test must be at least 1, got"):
        ListOps(**SMALL | counts).splits()


@pytest.mark.parametrize("brackets", [True, False])
def test_official_files_are_read_without_their_parentheses(folder, trees, brackets):
    splits = ListOps(brackets, folder).splits()
    expected = trees if brackets else without_brackets(trees)
    for start, items in ((0, splits.train), (3, splits.dev), (6, splits.test)):
        assert listed(items) == listed(expected)[start : start + 3]
        assert items.labels.tolist() == expected.labels[start : start + 3].tolist()


def test_columns_are_found_by_name_and_ends_of_lines_do_not_matter(folder):
    (folder / "basic_val.tsv").write_bytes(b"Target\tMore\tSource\r\n9\t\t( [MAX 2 ) 9 ) ] )\r\n\r\n")
    dev = ListOps(True, folder).splits().dev
    assert text_of(dev.sequences[0]) == "[MAX 2 9 ]" and dev.labels.tolist() == [9]


@pytest.mark.parametrize(
    "content, message",
    [
        ("Source\tTarget\n[MAX 2 9 ]\t9\n[AVG 2 9 ]\t5\n", r"line 3: '\[AVG' is no token of ListOps: 0 1 .* \[SM \]"),
        ("Source\tTarget\n[MAX 12 9 ]\t9\n", "line 2: '12' is no token"),
        ("Source\tTarget\n[MAX 2 9 ]\t12\n", "line 2: 4 tokens with target '12'; a target is one digit"),
        ("Source\tTarget\n( )\t1\n", "line 2: 0 tokens"),
        ("Source\tTarget\n[MAX 2 9 ] 9\n", "line 2: 1 columns, 2 are needed"),
        ("Text\tLabel\n", "line 1: the columns are Text, Label; Source and Target are needed"),
        ("Source\tTarget\n", "basic_val.tsv has no expressions"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(folder, content, message):
    (folder / "basic_val.tsv").write_text(content)
    with pytest.raises(ValueError, match=rf"basic_val\.tsv.*{message}" if "line" in message else message):
        ListOps(path=folder).splits()


def test_what_is_missing_is_named_with_where_to_get_it(folder):
    (folder / "basic_val.tsv").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"has no basic_val.tsv: download https://.*lra_release\.gz.*listops-1000"
    ):
        ListOps(path=folder).splits()
    with pytest.raises(FileNotFoundError, match=r"basic_train.tsv, basic_val.tsv, basic_test.tsv: .* generated"):
        ListOps(path=folder / "nowhere").splits()
