"""Tokenizers and pretrained encoders as Hugging Face keeps them, small and made here, and something to read."""

import json
import re
import string
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SENTENCES = (
    "The film was good, and so was the music.",
    "A bad film: the story is thin, the end is worse.",
    "What a long, long evening! I liked it, though my friends did not.",
    "Nobody in the cinema knew who the murderer was; the butler, of course.",
)
SPECIAL = {  # padding has the number it has in the published ones: 0 in BERT's, 1 in RoBERTa's
    "bert": dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]"),
    "roberta": dict(
        cls_token="<s>",
        pad_token="<pad>",
        sep_token="</s>",
        unk_token="<unk>",
        mask_token="<mask>",
        bos_token="<s>",
        eos_token="</s>",
    ),
}
POSITIONS = 64


def tiny_tokenizer(folder, kind="bert"):
    """Word pieces in lower case ("bert") or bytes in pairs ("roberta"), the same ones always; saved to the folder, and
    returned."""
    special = SPECIAL[kind]
    listed = list(dict.fromkeys(special.values()))
    if kind == "bert":  # listed rather than trained, whose order is left to chance
        signs = string.ascii_lowercase + string.digits + string.punctuation
        words = sorted(set(re.findall(r"[a-z]{2,}", " ".join(SENTENCES).lower())))
        pieces = [*listed, *signs, *("##" + sign for sign in signs), *words]
        made = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
        made.normalizer = normalizers.BertNormalizer()
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        made.decoder = decoders.WordPiece()
    else:
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(
            vocab_size=300, special_tokens=listed, initial_alphabet=alphabet, show_progress=False
        )
        made.train_from_iterator(SENTENCES, trainer)
    ends = [(special[name], made.token_to_id(special[name])) for name in ("sep_token", "cls_token")]
    around = processors.BertProcessing if kind == "bert" else processors.RobertaProcessing
    made.post_processor = around(*ends)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=POSITIONS, **special)
    tokenizer.save_pretrained(folder)
    return tokenizer


def tiny_checkpoint(folder, kind="bert", head="ForMaskedLM", *, seed=0, **changes):
    """A model of random weights (2 layers, width 32, 2 heads, 64 tokens), such as BertForMaskedLM; saved with its
    tokenizer to the folder, and returned."""
    tokenizer = tiny_tokenizer(folder, kind)
    family = {"bert": "Bert", "roberta": "Roberta"}[kind]
    sizes = dict(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=POSITIONS + (2 if kind == "roberta" else 0),  # RoBERTa's begin behind the padding
        type_vocab_size=1 if kind == "roberta" else 2,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
    )
    config = getattr(transformers, f"{family}Config")(**{**sizes, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = getattr(transformers, f"{family}{head}")(config).eval()
    model.save_pretrained(folder)
    return model


@dataclass(frozen=True)
class Pretrained:
    """A model of a run, from the folder of one that was saved with its tokenizer; head: such as ForMaskedLM."""

    folder: Path
    head: str = "ForMaskedLM"

    def build(self):
        return self.read(self.folder)

    def read(self, folder):
        return getattr(transformers, f"AutoModel{self.head}").from_pretrained(folder)

    def files(self, model):
        model.config.architectures = [type(model).__name__]  # it may have been another one's
        with tempfile.TemporaryDirectory() as made:
            model.config.save_pretrained(made)
            transformers.AutoTokenizer.from_pretrained(self.folder).save_pretrained(made)
            return {path.name: path.read_bytes() for path in sorted(Path(made).iterdir())}


def reviews(folder, count=40):
    """Of films, as IMDb's: the longer, the better."""
    folder.mkdir()
    for split in ("train", "test"):
        lines = []
        for i in range(count):
            words = " ".join(SENTENCES[(i + j) % 4] for j in range(1 + i % 4))
            lines.append(json.dumps({"text": f"{words} {i} {split}", "label": int(i % 4 > 1)}))
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    return folder
