"""Label the tokens of a document of 4,096 tokens: mark every mention of the person whom its first line names.

A tiny BERT with long-short attention learns it in half a minute on a processor. Which person is meant stands at the
very start, far outside of any window: the two global tokens, CLS and the name, carry it to every token.

    python examples/long_document_labels.py
"""

from __future__ import annotations

import argparse
import random
import time

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import AutoModelForTokenClassification, PreTrainedTokenizerFast

from longshort.hf.roberta import LongShortBertConfig

NAMES = ("Ada", "Blaise", "Charles", "Dorothy", "Emmy", "Florence", "Grace", "Hedy")
OTHERS = tuple(
    f"{first}{last}" for first in "bdfgklmnprst" for last in ("a", "e", "i", "o", "u", "an", "en", "on", "un")
)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
OUTSIDE, MEANT = 0, 1
IGNORED = -100  # by the loss


def tokenizer_of_words() -> PreTrainedTokenizerFast:
    words = {word: i for i, word in enumerate((*SPECIAL, *NAMES, *OTHERS))}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.BertProcessing(("[SEP]", words["[SEP]"]), ("[CLS]", words["[CLS]"]))
    names = dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


def document(tokens: int, chance: random.Random) -> tuple[str, str]:
    """Who is meant, and a text in which every seventh word or so is a name."""
    text = [chance.choice(NAMES if chance.random() < 0.15 else OTHERS) for _ in range(tokens - 4)]
    return chance.choice(NAMES), " ".join(text)


def batch(
    tokenizer: PreTrainedTokenizerFast, count: int, tokens: int, chance: random.Random
) -> tuple[dict[str, Tensor], Tensor]:
    """[CLS] name [SEP] text [SEP], and the label of every token of the text."""
    documents = [document(tokens, chance) for _ in range(count)]
    given = tokenizer([who for who, _ in documents], [text for _, text in documents], return_tensors="pt")
    ids = given["input_ids"]
    labels = torch.where(ids == ids[:, 1:2], MEANT, OUTSIDE)
    labels[:, :3] = IGNORED
    return dict(given), labels


def main(steps: int, tokens: int) -> float:
    """Train on documents of 256 tokens, then read one of `tokens`; the share of its tokens that are labelled right."""
    torch.manual_seed(0)
    chance = random.Random(0)
    tokenizer = tokenizer_of_words()
    config = LongShortBertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=tokens,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.1,
        window=32,
        rank=16,
        global_tokens=2,  # [CLS] and the name
        num_labels=2,
        id2label={OUTSIDE: "other", MEANT: "meant"},
    )
    model = AutoModelForTokenClassification.from_config(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.05, total_iters=20)
    began = time.monotonic()
    for step in range(1, steps + 1):
        given, labels = batch(tokenizer, 12, 256, chance)
        loss = model(**given, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}, {time.monotonic() - began:.0f} s")

    given, labels = batch(tokenizer, 1, tokens, chance)
    with torch.no_grad():
        found = model.eval()(**given).logits.argmax(2)
    counted = labels != IGNORED
    right = (found == labels)[counted].float().mean().item()
    meant, marked = (labels == MEANT)[counted].sum().item(), (found == MEANT)[counted].sum().item()
    both = ((found == MEANT) & (labels == MEANT)).sum().item()
    name = tokenizer.decode(given["input_ids"][0, 1])
    print(f"a document of {given['input_ids'].shape[1]:,} tokens about {name}: {meant} mentions")
    print(f"marked: {marked}, of which right: {both}; of all tokens labelled right: {100 * right:.2f} %")
    return right


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=140, help="of training")
    parser.add_argument("--tokens", type=int, default=4096, help="of the document that is read after it")
    main(**vars(parser.parse_args()))
