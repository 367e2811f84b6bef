"""A tokenizer's reading is that of transformers, kept once for all who ask, and its long texts lose nothing."""

import json
import os
import shutil
import sys
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from tiny_encoders import SENTENCES, tiny_tokenizer

from longshort.lab.data import tokenised
from longshort.lab.data.imdb import Imdb
from longshort.lab.data.labelled import Labelled, LabelledSplits, Sequences
from longshort.lab.data.source import FileSource
from longshort.lab.data.tokenised import Documents, Special, Tokenised, Tokenizer
from longshort.serial import as_json, from_json

TEXTS = [*SENTENCES, "Good.<br /><br />Très bon!", "", "a <s> b </s> [SEP] <mask> [MASK] <pad>", "long " * 50]
KINDS = ["bert", "roberta"]


@dataclass(frozen=True)
class Texts:
    """The first five to train on; dev is the test set."""

    texts: tuple[str, ...] = tuple(TEXTS)

    name = "texts"
    classes = 2

    def splits(self):
        train, test = (
            Labelled(Sequences.of_bytes(text.encode() for text in texts), np.arange(len(texts)) % 2)
            for texts in (self.texts[:5], self.texts[5:])
        )
        return LabelledSplits(train, test, test)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "longshort" / "tokens"


@pytest.fixture(params=KINDS)
def tokenizer(request, tmp_path):
    return tiny_tokenizer(tmp_path / "tokenizer", request.param)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "tokenizer"


def counted(monkeypatch):
    """How many texts tokenizers are given from now on."""
    given, read = [], Tokenizer.__call__

    def counts(self, texts, **keywords):
        given.extend(text for text in texts if text)
        return read(self, texts, **keywords)

    monkeypatch.setattr(Tokenizer, "__call__", counts)
    return given


def test_texts_are_whole_and_as_transformers_reads_them(tokenizer, folder, monkeypatch):
    monkeypatch.setattr(tokenised, "AT_ONCE", 2)
    splits = Tokenised(Texts(), folder).splits()
    found = [splits.train.sequences[i] - 1 for i in range(5)] + [splits.test.sequences[i] - 1 for i in range(3)]
    for text, tokens in zip(TEXTS, found, strict=True):
        assert tokens.tolist() == tokenizer(text, split_special_tokens=True, verbose=False)["input_ids"]
        assert tokens[0] == tokenizer.cls_token_id and tokens[-1] == tokenizer.sep_token_id
    assert splits.train.sequences.tokens.dtype == np.int32
    assert splits.train.labels.tolist() == [0, 1, 0, 1, 0] and splits.test.labels.tolist() == [0, 1, 0]
    assert splits.dev.fingerprint() == splits.test.fingerprint()


def test_what_looks_special_in_a_text_is_text(tokenizer, folder):
    source = Tokenised(Texts(), folder)
    within = (source.splits().test.sequences[1] - 1)[1:-1]
    known = set(source.special.every) - {tokenizer.unk_token_id}
    assert not known & set(within.tolist())


def test_special_tokens_have_the_numbers_of_the_tokenizer(tokenizer, folder):
    ids = tokenizer.convert_tokens_to_ids([getattr(tokenizer, f"{n}_token") for n in ("cls", "sep", "pad", "mask")])
    every = tuple(sorted(tokenizer.all_special_ids))
    assert Tokenised(Texts(), folder).special == Special(*ids, every, len(tokenizer))
    assert len(every) == 5


def test_a_second_start_reads_what_the_first_kept(tokenizer, folder, cache, monkeypatch):
    first = Tokenised(Texts(), folder).splits()
    assert len(list(cache.iterdir())) == 2  # dev is the test set
    given = counted(monkeypatch)
    second = Tokenised(Texts(), folder).splits()
    assert second.fingerprint() == first.fingerprint() and not given


@pytest.mark.parametrize("change", ["text", "tokenizer"])
def test_other_texts_and_other_tokenizers_are_read_anew(folder, change, tmp_path, monkeypatch):
    tiny_tokenizer(folder)
    before = Tokenised(Texts(), folder).splits()
    given = counted(monkeypatch)
    texts = [*TEXTS]
    if change == "text":
        texts[0] += " More."
    else:
        file = folder / "tokenizer.json"
        content = json.loads(file.read_text())
        words = content["model"]["vocab"]
        words["film"], words["music"] = words["music"], words["film"]
        file.write_text(json.dumps(content))
    after = Tokenised(Texts(tuple(texts)), folder).splits()
    assert after.train.fingerprint() != before.train.fingerprint()
    assert set(given) == (set(texts[:5]) if change == "text" else set(texts) - {""})


def test_a_tokenizer_that_moved_is_the_same(folder, tmp_path, monkeypatch):
    tiny_tokenizer(folder)
    before = Tokenised(Texts(), folder).splits()
    shutil.move(folder, tmp_path / "elsewhere")
    given = counted(monkeypatch)
    assert Tokenised(Texts(), tmp_path / "elsewhere").splits().fingerprint() == before.fingerprint() and not given


def test_reviews_are_read(folder, tmp_path):
    tokenizer = tiny_tokenizer(folder, "roberta")
    for split in ("train", "test"):
        lines = [json.dumps(dict(text=f"{text}\n\x85“", label=i % 2)) for i, text in enumerate(TEXTS)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    source = Tokenised(Imdb(tmp_path, held_out=0.3), str(folder))
    splits, words = source.splits(), source.source.splits()
    assert source.classes == 2 and source.name == "IMDb, chosen on held-out reviews"
    assert [len(part) for part in (splits.train, splits.dev, splits.test)] == [6, 2, 8]
    for i in range(6):
        text = (words.train.sequences[i] - 1).astype(np.uint8).tobytes().decode()
        decoded = tokenizer.decode(splits.train.sequences[i][1:-1] - 1, clean_up_tokenization_spaces=False)
        assert decoded == text


def some_text(lines=120):
    random = np.random.default_rng(0)
    words = " ".join(SENTENCES).split()
    return "".join(
        " ".join(random.choice(words, random.integers(1, 30))) + str(random.choice(["\n", "\n\n", ".\n \n", "é\n"]))
        for _ in range(lines)
    )


@pytest.mark.parametrize("length", [16, 64])
def test_a_long_text_is_cut_into_pieces_and_nothing_is_lost(tokenizer, folder, tmp_path, length, monkeypatch):
    """Wherever it is cut to be read."""
    text = some_text()
    (tmp_path / "text").write_text(text)
    source = FileSource(tmp_path / "text", dev_share=0.2, test_share=0.1)
    for chunk, at_once in ((1 << 13, 256), (100, 3), (999, 1)):
        monkeypatch.setattr(tokenised, "CHUNK", chunk)
        monkeypatch.setattr(tokenised, "AT_ONCE", at_once)
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        splits, texts = Documents(source, folder, length).splits(), source.splits()
        for name in ("train", "dev", "test"):
            part, whole = getattr(splits, name), getattr(texts, name).tobytes().decode(errors="replace")
            expected = tokenizer(whole, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
            assert set(part.lengths.tolist()) == {length} and len(part) == len(expected) // (length - 2)
            rows = part.sequences.tokens.reshape(-1, length) - 1
            assert set(rows[:, 0]) == {tokenizer.cls_token_id} and set(rows[:, -1]) == {tokenizer.sep_token_id}
            assert rows[:, 1:-1].ravel().tolist() == expected[: rows[:, 1:-1].size]
            assert part.labels.tolist() == [0] * len(part)


@pytest.mark.parametrize(
    "text",
    [
        b"one two three" * 40,
        b"x" * 500,
        b"x" + "é".encode() * 250,
        bytes(range(128, 192)) * 9,
        b"\n" * 500,
        b"a\n" * 300,
    ],
    ids=["words", "a word", "two bytes each", "no character", "line ends", "lines"],
)
def test_any_text_is_read_in_chunks(text, monkeypatch):
    monkeypatch.setattr(tokenised, "CHUNK", 64)
    borders = tokenised._borders(np.frombuffer(text, np.uint8))
    assert borders[0] == 0 and borders[-1] == len(text)
    assert all(0 < size <= 64 for size in np.diff(borders))
    parts = [text[a:b] for a, b in pairwise(borders)]
    if text[0] < 128:
        assert "".join(part.decode() for part in parts) == text.decode()
    if b" " in text:
        assert all(part.startswith(b" ") for part in parts[1:])


def test_pieces_are_kept_for_each_text_tokenizer_and_length(folder, tmp_path, cache, monkeypatch):
    tiny_tokenizer(folder)
    (tmp_path / "text").write_text(some_text())
    source = FileSource(tmp_path / "text", dev_share=0.2, test_share=0.1)
    first = Documents(source, folder, 16).splits()
    kept = {path.name for path in cache.iterdir()}
    assert len(kept) == 3 and all(name.startswith("text-") for name in kept)
    given = counted(monkeypatch)
    assert Documents(source, folder, 16).splits().fingerprint() == first.fingerprint() and not given
    assert isinstance(first.train.sequences.tokens, np.memmap)  # not in memory
    assert Documents(source, folder, 17).splits().fingerprint() != first.fingerprint() and given
    given.clear()
    os.truncate(tmp_path / "text", 5_000)
    assert Documents(source, folder, 16).splits().fingerprint() != first.fingerprint() and given
    assert Documents(source, folder, 1_024).name == "text, 1,024 tokens a piece"


def test_no_test_text_is_no_piece(folder, tmp_path):
    tiny_tokenizer(folder)
    (tmp_path / "text").write_text(some_text())
    splits = Documents(FileSource(tmp_path / "text", dev_share=0.2, test_share=0.0), folder, 16).splits()
    assert len(splits.test) == 0 and len(splits.dev) > 0


def test_a_text_shorter_than_a_piece_is_refused(folder, tmp_path):
    tiny_tokenizer(folder)
    (tmp_path / "text").write_text("a b c d e " * 20)
    with pytest.raises(ValueError, match="text, 64 tokens a piece: the 10 bytes of dev are not one piece; give more"):
        Documents(FileSource(tmp_path / "text"), folder, 64).splits()
    with pytest.raises(ValueError, match="length 2 leaves no room for text"):
        Documents(FileSource(tmp_path / "text"), folder, 2)


def test_a_source_is_written_down_and_read_back(folder, tmp_path):
    for source in (
        Tokenised(Imdb(tmp_path), folder),
        Tokenised(Imdb(), "FacebookAI/roberta-base"),
        Documents(FileSource(tmp_path), folder, 512),
    ):
        assert from_json(json.loads(json.dumps(as_json(source)))) == source


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere is not there: give the folder of a tokenizer"):
        Tokenised(Texts(), tmp_path / "nowhere").splits()


def test_a_tokenizer_without_a_mask_is_refused(folder):
    tokenizer = tiny_tokenizer(folder)
    tokenizer.mask_token = None
    tokenizer.save_pretrained(folder)
    with pytest.raises(ValueError, match="puts 2 tokens around a text, pads with 0 and masks with None"):
        Tokenizer(folder)


def test_a_folder_that_is_not_there_is_no_name_on_the_hub(folder):
    for name in (folder / "none", str(folder / "none")):
        with pytest.raises(FileNotFoundError, match="none is not there"):
            Tokenizer(name)


def test_the_extra_is_named_where_transformers_is_missing(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    for name in [name for name in sys.modules if name.startswith("longshort.hf")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"pip install 'longshort\[encoders\]'"):
        Tokenizer(folder)
