"""Texts as the tokenizer of a pretrained encoder reads them: reviews with labels, or a long text in pieces.

A tokenizer is named as on the Hugging Face hub, or by its folder. What it makes of a text is kept in the cache. Token 0
pads here as everywhere in this room, so that every token is its number in the tokenizer + 1.

S sequences, T tokens of all together, P pieces.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from longshort.lab.data.files import cache_folder, has_size
from longshort.lab.data.labelled import Labelled, LabelledSource, LabelledSplits, Numbers, Sequences, longest_tenth
from longshort.lab.data.progress import Tell, progress_bar
from longshort.lab.data.source import CorpusSource, Source
from longshort.lab.data.splits import Text
from longshort.lab.runs.files import whole_file
from longshort.lab.runs.lock import folder_lock
from longshort.serial import registered

AT_ONCE = 256  # texts that a tokenizer is given; it has threads of its own
CHUNK = 1 << 13  # bytes of a long text that are one text to it; longer ones take it more time and memory
BORDERS = (re.compile(rb"(?<=\S)\n(?=\S)"), re.compile(rb"(?<=\S)(?= \S)"))  # where no token goes on: lines, words


@dataclass(frozen=True)
class Special:
    """Numbers of the tokenizer's own, not + 1: tokens around a text, in place of one, and all that are no text.

    vocabulary: how many tokens there are.
    """

    opening: int
    closing: int
    padding: int
    mask: int
    every: tuple[int, ...]
    vocabulary: int


class TokenisedSource(LabelledSource[Labelled], Protocol):
    """Sequences that a tokenizer made; each begins with its opening token and ends with its closing one."""

    @property
    def special(self) -> Special: ...


class Tokenizer:
    """A tokenizer of transformers. What looks like one of its special tokens in a text is text."""

    def __init__(self, name: str | Path) -> None:
        from longshort.hf import hf, loading, quiet

        if (isinstance(name, Path) or Path(name).is_absolute()) and not Path(name).is_dir():
            raise FileNotFoundError(f"{name} is not there: give the folder of a tokenizer, or its name on the hub")
        with quiet(), loading(name):
            self.made: Any = hf.AutoTokenizer.from_pretrained(name)
        self.content: str = self.made.backend_tokenizer.to_str()
        (empty,) = self([""])
        padding, mask = self.made.pad_token_id, self.made.mask_token_id
        if len(empty) != 2 or padding is None or mask is None:
            raise ValueError(
                f"the tokenizer {name} puts {len(empty)} tokens around a text, pads with {padding} and masks with "
                f"{mask}: an encoder's has two, and both of the others"
            )
        opening, closing = empty
        every = tuple(sorted(self.made.all_special_ids))
        self.special = Special(opening, closing, padding, mask, every, len(self.made))

    def __call__(self, texts: list[str], *, framed: bool = True) -> list[list[int]]:
        """Numbers of each text, uncut; framed: with the opening and the closing token."""
        asked = dict(return_attention_mask=False, return_token_type_ids=False, split_special_tokens=True)
        numbers: list[list[int]] = self.made(texts, add_special_tokens=framed, verbose=False, **asked)["input_ids"]
        return numbers


class Tokenising:
    """What sources have in common that name a tokenizer, which is loaded when it is needed."""

    tokenizer: str | Path

    @cached_property
    def reader(self) -> Tokenizer:
        return Tokenizer(self.tokenizer)

    @property
    def special(self) -> Special:
        return self.reader.special


@registered("Tokenised")
@dataclass(frozen=True)
class Tokenised(Tokenising):
    """Texts that `source` reads as bytes, as a tokenizer reads them: whole, and with nothing replaced (IMDb's <br />
    stays)."""

    source: LabelledSource[Labelled]
    tokenizer: str | Path

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def classes(self) -> int:
        return self.source.classes

    def splits(self) -> LabelledSplits[Labelled]:
        whole = self.source.splits()
        train, dev, test = (self.read(part) for part in (whole.train, whole.dev, whole.test))
        return LabelledSplits(train, dev, test, {"longest tenth": longest_tenth})

    def read(self, part: Labelled) -> Labelled:
        folder = cache_folder() / "tokens"
        path = folder / f"{type(self.source).__name__.lower()}-{_key(part.fingerprint(), self.reader.content)}.npz"
        with folder_lock(folder):
            if not has_size(path, None):
                made = Sequences.of(_numbers(part.sequences, self.reader), np.int32)
                with whole_file(path) as file:
                    np.savez(file, tokens=made.tokens, starts=made.starts)
        with np.load(path) as kept:
            return Labelled(Sequences(kept["tokens"], kept["starts"]), part.labels)


@registered("Documents")
@dataclass(frozen=True)
class Documents(Tokenising):
    """A long text in pieces of `length` tokens, the opening and the closing one included. It runs on from piece to
    piece; what is left at the end is left out. Labels are all 0."""

    source: Source
    tokenizer: str | Path
    length: int

    def __post_init__(self) -> None:
        if self.length < 3:
            raise ValueError(f"length {self.length} leaves no room for text: two tokens of a piece are around it")

    @property
    def name(self) -> str:
        return f"{_name(self.source)}, {self.length:,} tokens a piece"

    @property
    def classes(self) -> int:
        return 0

    def splits(self) -> LabelledSplits[Labelled]:
        whole = self.source.splits()
        key = _key(whole.fingerprint(), self.reader.content, str(self.length))
        parts = {name: self.read(name, getattr(whole, name), key) for name in ("train", "dev", "test")}
        for name in ("train", "dev"):
            if not len(parts[name]):
                size = len(getattr(whole, name))
                raise ValueError(
                    f"{self.name}: the {size:,} bytes of {name} are not one piece; give more text or a shorter length"
                )
        return LabelledSplits(parts["train"], parts["dev"], parts["test"])

    def read(self, name: str, text: Text, key: str) -> Labelled:
        folder = cache_folder() / "tokens"
        path = folder / f"{_name(self.source)[:64]}-{name}-{key}.int32"
        with folder_lock(folder):
            if not has_size(path, None):
                with whole_file(path) as file, progress_bar(f"tokenising {name}", len(text)) as tell:
                    for piece in _pieces(text, self.reader, self.length, tell):
                        file.write(piece.astype("<i4").tobytes())
        # mapped where it lies, for it may be larger than memory; what is empty cannot be
        tokens = np.memmap(path, "<i4", "r") if path.stat().st_size else np.empty(0, np.int32)
        count = len(tokens) // self.length
        return Labelled(Sequences(tokens, np.arange(count + 1) * self.length), np.zeros(count, np.int64))


def _numbers(sequences: Sequences, tokenizer: Tokenizer) -> Iterator[Numbers]:
    """Bytes + 1 of each text to its tokens + 1."""
    with progress_bar("tokenising", len(sequences.tokens)) as tell:
        for at in range(0, len(sequences), AT_ONCE):
            some = range(at, min(at + AT_ONCE, len(sequences)))
            texts = [(sequences[i] - 1).astype(np.uint8).tobytes().decode(errors="replace") for i in some]
            yield from (np.array(each, np.int64) + 1 for each in tokenizer(texts))
            tell(int(sequences.starts[some.stop]))


def _pieces(text: Text, tokenizer: Tokenizer, length: int, tell: Tell) -> Iterator[Numbers]:
    """Tokens + 1, [P, length], some pieces at a time."""
    borders, room, special = _borders(text), length - 2, tokenizer.special
    rest: Numbers = np.empty(0, np.int64)
    for at in range(0, len(borders) - 1, AT_ONCE):
        some = borders[at : at + AT_ONCE + 1]
        chunks = [text[start:end].tobytes().decode(errors="replace") for start, end in pairwise(some)]
        rest = np.concatenate([rest, *(np.array(each, np.int64) for each in tokenizer(chunks, framed=False))])
        full = len(rest) // room * room
        within, rest = rest[:full].reshape(-1, room), rest[full:]
        ends = ((0, 0), (special.opening, special.closing))
        yield np.pad(within, ((0, 0), (1, 1)), constant_values=ends) + 1
        tell(some[-1])


def _borders(text: Text) -> list[int]:
    """Of the chunks that a text is read in, its two ends among them."""
    borders = [0]
    while borders[-1] < len(text):
        ahead = text[borders[-1] : borders[-1] + CHUNK + 1].tobytes()
        borders.append(borders[-1] + _chunk(ahead))
    return borders


def _chunk(ahead: bytes) -> int:
    """How much to read of what comes: up to its last line end, or else its last space, or else its last character."""
    if len(ahead) <= CHUNK:
        return len(ahead)
    for border in BORDERS:
        if found := [match.end() for match in border.finditer(ahead)]:
            return found[-1]
    return next((at for at in range(CHUNK, CHUNK - 4, -1) if ahead[at] & 0xC0 != 0x80), CHUNK)


def _key(*facts: str) -> str:
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _name(source: Source) -> str:
    return source.name if isinstance(source, CorpusSource) else source.path.resolve().name
