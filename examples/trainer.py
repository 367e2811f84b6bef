"""Convert a RoBERTa or BERT to long-short attention and train it with transformers' Trainer, from end to end.

    python examples/trainer.py roberta-base --data reviews.jsonl --out out/reviews --length 4096
    python examples/trainer.py roberta-base --data books.jsonl --out out/books --masked

--data has a line {"text": ..., "label": 0 or 1} for each text; without --data, a few made-up sentences are learned, to
try it out. --masked goes on with pretraining (hidden tokens are restored, and labels are not needed), which is what a
converted model gains most from; a classifier is then trained from that folder instead of roberta-base. The
same trainings over this library's own loop are `longshort train roberta.base` and `roberta.imdb`.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers as hf

from longshort.hf import convert

TRIED_OUT = [
    {"text": text, "label": label}
    for text, label in (("What a good film this was.", 1), ("A bad, bad film.", 0), ("Good!", 1), ("So bad.", 0))
] * 8


def read(path: Path | None) -> Iterator[dict[str, str | int]]:
    if path is None:
        yield from TRIED_OUT
        return
    with path.open() as lines:
        yield from (json.loads(line) for line in lines)


def converted(checkpoint: str, folder: Path, length: int, window: int, rank: int) -> str:
    """The folder of the long-short model, which is made once; a checkpoint that is one already, as it is."""
    if hf.AutoConfig.from_pretrained(checkpoint).model_type.startswith("longshort-"):
        return checkpoint
    if not folder.exists():
        convert(checkpoint, max_length=length, window=window, rank=rank).save(folder)
    return str(folder)


def main(
    checkpoint: str,
    data: Path | None,
    out: Path,
    masked: bool,
    length: int,
    window: int,
    rank: int,
    epochs: float,
    batch: int,
    rate: float,
) -> hf.Trainer:
    folder = out / f"converted.{Path(checkpoint).name}.n{length}w{window}r{rank}"
    start = converted(checkpoint, folder, length, window, rank)
    tokenizer = hf.AutoTokenizer.from_pretrained(start)
    auto = hf.AutoModelForMaskedLM if masked else hf.AutoModelForSequenceClassification
    model = auto.from_pretrained(start)

    items = []
    for item in read(data):
        tokens = tokenizer(item["text"], truncation=True, max_length=length)
        items.append(dict(tokens) if masked else dict(tokens, labels=item["label"]))
    random.Random(0).shuffle(items)  # data often comes in the order of its labels
    held_out = max(len(items) // 10, 1)
    collator = (
        hf.DataCollatorForLanguageModeling(tokenizer) if masked else hf.DataCollatorWithPadding(tokenizer)
    )  # both pad to the longest text of a batch

    settings = hf.TrainingArguments(
        output_dir=str(out / "trainer"),
        num_train_epochs=epochs,
        per_device_train_batch_size=batch,
        learning_rate=rate,
        warmup_steps=0.06,  # of all steps
        weight_decay=0.01,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        report_to=[],
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    trainer = hf.Trainer(
        model,
        settings,
        train_dataset=items[held_out:],
        eval_dataset=items[:held_out],
        data_collator=collator,
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model(str(out / "model"))  # AutoModel...from_pretrained and pipeline(...) read it
    return trainer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="folder, or name on the Hugging Face hub")
    parser.add_argument("--data", type=Path, help="file of lines of JSON")
    parser.add_argument("--out", type=Path, default=Path("out/trainer"))
    parser.add_argument("--masked", action="store_true", help="restore hidden tokens instead of finding labels")
    parser.add_argument("--length", type=int, default=4096, help="the most tokens of a text")
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rate", type=float, default=3e-5)
    main(**vars(parser.parse_args()))
