"""ListOps: nested lists of digits, and the one digit they come to. Generated, or read from the official files.

"[MAX 2 9 [MIN 4 7 ] 0 ]" comes to 9. The pipeline of the paper lost the closing brackets: `brackets=False` is the task
of its table, `brackets=True` the well-posed one that newer papers report. Numbers of the two do not compare.
K nodes of one depth, of all trees of a chunk together; O operators among them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from longshort.lab.data.generated import Counts, Draws, cached, check, collect
from longshort.lab.data.labelled import Labelled, LabelledSplits, Numbers, Sequences, Tokens
from longshort.lab.data.progress import progress_bar
from longshort.serial import registered

DIGITS = tuple("0123456789")
OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
VOCABULARY = ("", *DIGITS, *OPERATORS, "]")  # a token is the index of its text; 0 pads
DIGIT, OPERATOR, CLOSE = 1, 11, 15  # the first token of each kind
IDS = {text: token for token, text in enumerate(VOCABULARY) if text}

DEPTH, ARGUMENTS = 10, 10  # at most; the root has depth 1
SHORTEST, LONGEST = 501, 1999  # tokens of a tree that is kept, closing brackets among them
ROOTS = 2048  # in a chunk; a third of them grow into trees that are kept

# One number says all about a node. A quarter of them are operators, `number // 90` says which of the four, and
# `2 + number % 9` how many arguments it has; the others are the digit `number % 10`.
NUMBERS, OPERATOR_NUMBERS = 1440, 360

OFFICIAL = {"train": "train", "dev": "val", "test": "test"}
RELEASE = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
CHECKSUMS = {  # of the default set, by `brackets`
    False: "bc2f7ae242332df9c13007064d3f37f949f7eb63ccc187c0848ae8c31d35715d",
    True: "4cfcea7ce71cd298d15f62bcf956e6dba71b96447403817ad50e88f78e5130ef",
}


@registered("ListOps")
@dataclass(frozen=True)
class ListOps:
    """Sequences of operators and digits, in ten classes.

    brackets: whether closing brackets are tokens; the trees are the same.
    path: the folder with the official basic_train.tsv, basic_val.tsv and basic_test.tsv, which are taken whole.
    Without one, as many trees as said are generated from the seed: no tree twice, and none in two splits.
    """

    brackets: bool = False
    path: Path | None = None
    train: int = 96_000
    dev: int = 2_000
    test: int = 2_000
    seed: int = 0

    @property
    def name(self) -> str:
        kind = "ListOps with closing brackets" if self.brackets else "ListOps without closing brackets"
        return kind if self.path is None else f"{kind}, official"

    @property
    def classes(self) -> int:
        return 10

    def splits(self) -> LabelledSplits[Labelled]:
        if self.path is not None:
            return read_official(Path(self.path), self.brackets)
        counts = Counts(self.train, self.dev, self.test)
        default = self == ListOps(self.brackets)
        trees = cached(
            f"listops-{counts.all}-{self.seed}-{CHECKSUMS[True][:8]}",
            partial(generate, counts.all, self.seed),
            CHECKSUMS[True] if default else None,
        )
        if not self.brackets:
            trees = without_brackets(trees)
            check("listops without brackets", trees, CHECKSUMS[False] if default else None)
        return counts.split(trees)


def text_of(tokens: Iterable[int]) -> str:
    """What the tokens say; padding says nothing."""
    return " ".join(VOCABULARY[token] for token in tokens if token)


def value(expression: str | Iterable[int]) -> int:
    """What a text, or tokens, with closing brackets comes to."""
    words = (expression if isinstance(expression, str) else text_of(expression)).split()
    open_lists: list[tuple[str, list[int]]] = [("", [])]
    for word in words:
        if word in OPERATORS:
            open_lists.append((word, []))
        elif word == "]" and open_lists[-1][1] and len(open_lists) > 1:
            operator, arguments = open_lists.pop()
            open_lists[-1][1].append(_apply(operator, arguments))
        elif word in DIGITS:
            open_lists[-1][1].append(int(word))
        else:
            raise ValueError(f"{word!r} has no place in {' '.join(words)!r}")
    if len(open_lists) != 1 or len(open_lists[0][1]) != 1:
        raise ValueError(f"{' '.join(words)!r} is not one expression: {len(open_lists) - 1} lists are open at its end")
    return open_lists[0][1][0]


def _apply(operator: str, arguments: list[int]) -> int:
    match operator:
        case "[MIN":
            return min(arguments)
        case "[MAX":
            return max(arguments)
        case "[MED":
            return int(np.median(arguments))
        case _:
            return sum(arguments) % 10


def without_brackets(trees: Labelled) -> Labelled:
    tokens, starts = trees.sequences.tokens, trees.sequences.starts
    closing = tokens == CLOSE  # [T]
    before = np.searchsorted(np.flatnonzero(closing), starts)  # [S + 1]: closing brackets before each start
    return Labelled(Sequences(tokens[~closing], starts - before), trees.labels)


def generate(trees: int, seed: int) -> Labelled:
    """With closing brackets."""
    return collect(chunk, trees, seed, doing="generating ListOps", length=1035)


def chunk(draws: Draws) -> Labelled:
    """All trees of a chunk at once, one depth after the other: down from the roots they grow, up from the digits come
    their sizes and values, and down again goes the place of each node in the sequence."""
    levels = grow(draws)
    size = sizes(levels)[0]
    levels = pruned(levels, (size >= SHORTEST) & (size <= LONGEST))
    return Labelled(written(levels), values(levels))


@dataclass(frozen=True, eq=False)
class Level:
    """All nodes of one depth. The arguments of an operator stand together in the level below, in its order."""

    numbers: Numbers  # [K]

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def is_operator(self) -> NDArray[np.bool_]:
        return self.numbers < OPERATOR_NUMBERS

    @cached_property
    def arguments(self) -> Numbers:
        """[K]: how many; 0 of a digit."""
        return np.where(self.is_operator, 2 + self.numbers % 9, 0)

    @cached_property
    def operators(self) -> Numbers:
        """[O]: which of the four."""
        return self.numbers[self.is_operator] // (OPERATOR_NUMBERS // len(OPERATORS))

    def sum_of_arguments(self, below: NDArray[np.generic]) -> Numbers:
        """[K]"""
        before = np.concatenate([[0], np.cumsum(below, dtype=np.int64)])
        ends = np.cumsum(self.arguments)
        return before[ends] - before[ends - self.arguments]


def grow(draws: Draws) -> list[Level]:
    """Trees whose root is an operator: one whose root is a digit would be too short to be kept."""
    levels = [Level(draws.below(OPERATOR_NUMBERS, ROOTS))]
    for depth in range(2, DEPTH + 1):
        numbers = draws.below(NUMBERS, int(levels[-1].arguments.sum()))
        levels.append(Level(numbers if depth < DEPTH else OPERATOR_NUMBERS + numbers % 10))
    return levels


def sizes(levels: list[Level]) -> list[Numbers]:
    """[K] of each level: tokens of a node and all below, an operator having one more for its bracket."""
    found = [np.ones(len(levels[-1]), np.int64)]
    for level in levels[-2::-1]:
        found.append(1 + level.is_operator + level.sum_of_arguments(found[-1]))
    return found[::-1]


def pruned(levels: list[Level], keep: NDArray[np.bool_]) -> list[Level]:
    """Only the trees to keep."""
    kept = []
    for level in levels:
        kept.append(Level(level.numbers[keep]))
        keep = np.repeat(keep, level.arguments)
    return kept


def values(levels: list[Level]) -> Numbers:
    """What each root comes to."""
    found = levels[-1].numbers % 10
    for level in levels[-2::-1]:
        most = level.arguments[level.is_operator]  # [O]
        table = np.full((len(most), ARGUMENTS), 10, np.int8)  # [O, ARGUMENTS], those that are not there being 10
        table[np.arange(ARGUMENTS) < most[:, None]] = found
        total = level.sum_of_arguments(found)[level.is_operator]
        table.sort(axis=1)
        row = np.arange(len(most))
        largest = table[row, most - 1]
        median = (table[row, (most - 1) // 2] + table[row, most // 2]) // 2
        found = level.numbers % 10
        found[level.is_operator] = np.choose(level.operators, (table[:, 0], largest, median, total % 10))
    return found


def written(levels: list[Level]) -> Sequences:
    """Each tree as its operators, digits and brackets, from left to right."""
    size = sizes(levels)
    starts = np.concatenate([[0], np.cumsum(size[0])])
    tokens = np.empty(starts[-1], np.int16)
    place = starts[:-1]
    for depth, level in enumerate(levels):
        opens, arguments = place[level.is_operator], level.arguments[level.is_operator]  # [O]
        tokens[place] = DIGIT + level.numbers % 10
        tokens[opens] = OPERATOR + level.operators
        tokens[opens + size[depth][level.is_operator] - 1] = CLOSE
        if depth + 1 < len(levels):
            before = np.cumsum(size[depth + 1]) - size[depth + 1]  # tokens of nodes to the left, of the level below
            first = before[np.cumsum(arguments) - arguments]  # [O]
            place = before + np.repeat(opens + 1 - first, arguments)
    return Sequences(tokens, starts)


def read_official(folder: Path, brackets: bool) -> LabelledSplits[Labelled]:
    """The three files of the Long Range Arena."""
    files = {split: folder / f"basic_{name}.tsv" for split, name in OFFICIAL.items()}
    missing = [path.name for path in files.values() if not path.is_file()]
    if missing:
        raise FileNotFoundError(
            f"{folder} has no {', '.join(missing)}: download {RELEASE}, unpack it, and pass the folder "
            "lra_release/listops-1000 of it; without a path, trees of the same kind are generated"
        )
    trees = (_read_tsv(files[split]) for split in ("train", "dev", "test"))
    train, dev, test = (each if brackets else without_brackets(each) for each in trees)
    return LabelledSplits(train, dev, test)


def _read_tsv(path: Path) -> Labelled:
    trees, labels = [], []
    with progress_bar(f"reading {path.name}", path.stat().st_size) as tell, path.open("rb") as file:
        columns = _columns(path, file.readline())
        for number, line in enumerate(file, 2):
            if line.strip():
                tree, label = _read_line(f"{path}, line {number}", line, columns)
                trees.append(tree)
                labels.append(label)
                tell(file.tell())
    if not trees:
        raise ValueError(f"{path} has no expressions")
    return Labelled(Sequences.of(trees), np.array(labels, np.int64))


def _columns(path: Path, header: bytes) -> tuple[int, int]:
    names = header.decode(errors="replace").rstrip("\r\n").split("\t")
    if not {"Source", "Target"} <= set(names):
        raise ValueError(f"{path}, line 1: the columns are {', '.join(names)}; Source and Target are needed")
    return names.index("Source"), names.index("Target")


def _read_line(where: str, line: bytes, columns: tuple[int, int]) -> tuple[Tokens, int]:
    fields = line.decode(errors="replace").rstrip("\r\n").split("\t")
    if len(fields) <= max(columns):
        raise ValueError(f"{where}: {len(fields)} columns, {max(columns) + 1} are needed")
    source, target = (fields[column] for column in columns)
    words = source.replace("(", " ").replace(")", " ").split()  # parentheses say nothing that brackets do not
    try:
        tree = np.array([IDS[word] for word in words], np.int16)
    except KeyError as error:
        raise ValueError(f"{where}: {error.args[0]!r} is no token of ListOps: {' '.join(IDS)}") from None
    if not len(tree) or target not in DIGITS:
        raise ValueError(f"{where}: {len(tree)} tokens with target {target!r}; a target is one digit")
    return tree, int(target)
