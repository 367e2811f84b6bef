"""A RoBERTa or BERT that reads its 512 tokens with full attention becomes a long-short one that reads thousands.

Weights are copied, and learned positions repeated as Longformer does. What long-short attention adds begins so that
the model is near to what it was:

- DualLN. Pretrained models keep the values of some tokens small, such as the separator's, where a head has nothing to
  say; a LayerNorm lifts them, and the model falls apart. So each layer's keys and values are brought to a variance of
  1, what that takes goes into queries and output, and DualLN begins with an epsilon far above 1: nearly a scaling.
- Rows. A row weighs tokens by the score that a typical query gives them: the centres of the queries of a little text,
  by head. So a row begins as what such queries read in the whole text.

T tokens, C width, H heads, D head width, R rank.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longshort.hf import roberta
from longshort.hf.library import hf, loading
from longshort.models.hub import check_there

FAMILIES = {
    "roberta": (roberta.LongShortRobertaConfig, "Roberta"),
    "bert": (roberta.LongShortBertConfig, "Bert"),
}
HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
DROPPED = {"ForPreTraining": "ForMaskedLM"}  # BERT's guess of the next sentence has no use
RENAMED = {"attention.output.dense.": "attention.self.out.", "attention.output.LayerNorm.": "attention.norm."}
OF_THE_KIND = ("model_type", "architectures", "transformers_version", "auto_map", "_name_or_path")  # not copied
PIECES = 8  # of text to start from, and as many to see how far the model moved
EPS = 10.0  # of DualLN, beside a variance of 1


@dataclass(frozen=True)
class Moved:
    """How far hidden states are from the original's on text that was not used to begin with.

    tokens: of each piece. layers: the norm of the difference by that of the original, after each layer. cosine: after
    the last one, the mean over tokens; cls: of the first token.
    """

    tokens: int
    layers: tuple[float, ...]
    cosine: float
    cls: float


@dataclass(frozen=True)
class Converted:
    """moved: on pieces that fit the window, and on pieces as long as the original reads."""

    model: Any
    tokenizer: Any
    moved: tuple[Moved, ...]

    def save(self, folder: Path) -> None:
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def convert(
    checkpoint: str | Path,
    *,
    max_length: int = 4096,
    window: int = 128,
    rank: int = 64,
    global_tokens: int = 1,
    dual_norm: bool = True,
    eps: float = EPS,
    text: str | None = None,
    head: str | None = None,
    classes: int | None = None,
    seed: int = 0,
) -> Converted:
    """checkpoint: a folder, or a name on the Hugging Face hub. text: to begin with; Python's own manual unless given.

    head: one of HEADS, a new one if the checkpoint has another; its own unless given. classes: of a new head. seed: of
    what is new.
    """
    if max_length < 3:
        raise ValueError(f"max_length must be at least 3, of which two tokens are around a text, got {max_length}")
    if eps <= 0:
        raise ValueError(f"eps must be above 0, got {eps}")
    torch.manual_seed(seed)
    original, tokenizer = load(checkpoint, head, classes)
    model = with_weights_of(
        original,
        max_length,
        separator=tokenizer.sep_token_id,
        window=window,
        rank=rank,
        global_tokens=global_tokens,
        dual_norm=dual_norm,
        norm_eps=eps,
    )
    longest = original.config.max_position_embeddings - first_position(original.config)
    pieces = pieces_of(manual() if text is None else text, tokenizer, min(longest, max_length))
    begin, unseen = pieces.chunk(2)
    start(model.base_model, original.base_model, begin, seed)
    fitting = unseen[:, : window + global_tokens]
    parts = [fitting, unseen] if window and fitting.shape[1] < unseen.shape[1] else [unseen]
    moved = tuple(how_far(model.base_model, original.base_model, part) for part in parts)
    tokenizer.model_max_length = max_length
    return Converted(model, tokenizer, moved)


def load(checkpoint: str | Path, head: str | None = None, classes: int | None = None) -> tuple[Any, Any]:
    """The original, with the head it was saved with unless another is named, and its tokenizer."""
    if head is not None and head not in HEADS:
        raise ValueError(f"head must be one of {', '.join(HEADS)}, got {head!r}")
    check_there(checkpoint)
    with loading(checkpoint):
        config = hf.AutoConfig.from_pretrained(checkpoint)
    family = check_kind(checkpoint, config)
    named = f"{family}{head}" if head else (config.architectures or [f"{family}Model"])[0]
    if named.removeprefix(family) not in (*HEADS, *DROPPED):
        known = ", ".join(family + each for each in (*HEADS, *DROPPED))
        raise ValueError(f"{checkpoint} holds a {named}; of this kind, {known} can be converted")
    labels = {} if classes is None else dict(num_labels=classes)
    with loading(checkpoint):
        model = getattr(hf, named).from_pretrained(checkpoint, dtype=torch.float32, **labels).eval()
        tokenizer = hf.AutoTokenizer.from_pretrained(checkpoint)
    if len(tokenizer) < config.vocab_size // 2:  # transformers makes an empty one where there is none
        raise ValueError(
            f"{checkpoint} has no tokenizer of its own: {len(tokenizer):,} tokens for a vocabulary of "
            f"{config.vocab_size:,}"
        )
    return model, tokenizer


def check_kind(checkpoint: str | Path, config: Any) -> str:
    """What transformers' classes of the kind begin with."""
    if config.model_type not in FAMILIES:
        kinds = " and ".join(FAMILIES)
        raise ValueError(f"{checkpoint} is a model of kind {config.model_type}; those of kind {kinds} can be converted")
    if config.is_decoder:
        raise ValueError(f"{checkpoint} reads from left to right (is_decoder), and an encoder is needed")
    positions = config.to_dict().get("position_embedding_type", "absolute")
    if positions != "absolute":
        raise ValueError(f"{checkpoint} has positions of kind {positions}, and learned ones are needed")
    return FAMILIES[config.model_type][1]


def first_position(config: Any) -> int:
    """RoBERTa's positions are counted on from that of the padding."""
    return config.pad_token_id + 1 if config.model_type == "roberta" else 0


def with_weights_of(original: Any, max_length: int, *, separator: int | None, **settings: Any) -> Any:
    """The long-short model of the same kind, with all weights that both have; the others as they come."""
    config_class, family = FAMILIES[original.config.model_type]
    copied = {name: value for name, value in original.config.to_dict().items() if name not in OF_THE_KIND}
    copied |= dict(settings, separator=separator, max_position_embeddings=max_length + first_position(original.config))
    head = type(original).__name__.removeprefix(family)
    model = getattr(roberta, f"LongShort{family}{DROPPED.get(head, head)}")(config_class(**copied)).eval()
    take(model, original, RENAMED, strict=False)
    return model


def lengthened(original: Any, max_length: int) -> Any:
    """The same with full attention as before, for longer texts."""
    config = copy.deepcopy(original.config)
    config.max_position_embeddings = max_length + first_position(config)
    model = type(original)(config).eval()
    take(model, original, {}, strict=True)
    return model


def take(model: Any, original: Any, renamed: dict[str, str], *, strict: bool) -> None:
    first = first_position(original.config)
    count = model.config.max_position_embeddings - first
    weights = {}
    for name, tensor in original.state_dict().items():
        for before, after in renamed.items():
            name = name.replace(before, after)
        if name.endswith("embeddings.position_embeddings.weight"):
            tensor = longer(tensor, count, first)
        weights[name] = tensor
    missing = model.load_state_dict(weights, strict=strict).missing_keys
    assert all(".attention.self.rows." in name or ".attention.self.norm." in name for name in missing), missing


def longer(positions: Tensor, length: int, first: int) -> Tensor:
    """The vectors of positions over and over, until there are so many; those before the first, as they are."""
    learned = positions[first:]
    repeated = learned.repeat(-(-length // len(learned)), 1)[:length]
    return torch.cat([positions[:first], repeated])


def manual() -> str:
    """Text that is there wherever Python is: what `help()` says of the language."""
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    return "\n".join(topics[name] for name in sorted(topics))


def pieces_of(text: str, tokenizer: Any, length: int) -> Tensor:
    """Up to 2 · PIECES from all over the text (or its beginning, if it is very long), [P, length], each between the
    tokens that begin and end a text."""
    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    size = length - 2
    tokens = tokenizer(text[: 400 * size * PIECES], add_special_tokens=False, verbose=False)["input_ids"]
    count = min(len(tokens) // size, 2 * PIECES)
    if count < 2:
        raise ValueError(f"the text has {len(tokens):,} tokens, and at least {2 * size:,} are needed to begin with")
    starts = [i * (len(tokens) // count) for i in range(count)]
    pieces = [[first, *tokens[at : at + size], last] for at in starts]
    order = [*range(0, count, 2), *range(1, count, 2)]  # both halves are from all over it
    return torch.tensor([pieces[i] for i in order])


@torch.no_grad()
def start(model: Any, original: Any, tokens: Tensor, seed: int) -> None:
    """Set what long-short attention adds in every layer."""
    random = torch.Generator().manual_seed(seed)
    for seen, layer in zip(projected(original, tokens), model.encoder.layer, strict=True):
        attention = layer.attention.self
        start_rows(attention, seen["query"].cpu(), random)
        if model.config.dual_norm:
            start_norms(attention, seen["key"], seen["value"])


def projected(original: Any, tokens: Tensor) -> list[dict[str, Tensor]]:
    """Queries, keys and values of every layer, [T, C]."""
    found: list[dict[str, Tensor]] = [{} for _ in original.encoder.layer]
    handles = []
    for layer, seen in zip(original.encoder.layer, found, strict=True):
        for name in ("query", "key", "value"):
            handles.append(getattr(layer.attention.self, name).register_forward_hook(partial(note, seen, name)))
    try:
        original(tokens)
    finally:
        for handle in handles:
            handle.remove()
    return found


def note(seen: dict[str, Tensor], name: str, module: nn.Module, given: Any, out: Tensor) -> None:
    seen[name] = out.flatten(0, 1)


def start_rows(attention: Any, queries: Tensor, random: torch.Generator) -> None:
    """Logits of a row are the scores of a typical query, before any scaling of keys."""
    heads, rank = attention.heads, attention.rank
    keys = attention.key.weight.unflatten(0, (heads, -1))  # [H, D, C]
    for head, (query, key) in enumerate(zip(queries.unflatten(1, (heads, -1)).unbind(1), keys, strict=True)):
        weight = centres(query, rank, random).to(key) @ key * key.shape[0] ** -0.5  # [R, C]
        attention.rows.weight[head * rank : (head + 1) * rank] = weight
    attention.rows.bias.zero_()


def centres(points: Tensor, count: int, random: torch.Generator, rounds: int = 10) -> Tensor:
    """k-means: [T, D] → [count, D]."""
    if count == 0:
        return points[:0]
    found = points[torch.randperm(len(points), generator=random).repeat(-(-count // len(points)))[:count]]
    for _ in range(rounds):
        members = nn.functional.one_hot(torch.cdist(points, found).argmin(1), count).to(points)  # [T, count]
        sizes = members.sum(0)[:, None]
        found = torch.where(sizes > 0, members.T @ points / sizes.clamp(min=1), found)
    return found


def start_norms(attention: Any, k: Tensor, v: Tensor) -> None:
    """Keys and values get a mean variance of 1 over the width, and DualLN divides by nearly the same for all tokens."""
    key_scale, value_scale = (t.var(1, correction=0).mean().sqrt().clamp(min=1e-6) for t in (k, v))
    for module, factor in {
        attention.key: 1 / key_scale,
        attention.query: key_scale,
        attention.value: 1 / value_scale,
    }.items():
        module.weight.mul_(factor)
        module.bias.mul_(factor)
    attention.out.bias.add_(attention.out.weight.sum(1) * v.mean())  # the mean that LN_L takes away
    attention.out.weight.mul_(value_scale)
    for norm in (attention.norm.local, attention.norm.global_):
        norm.weight.fill_((1 + norm.eps) ** 0.5)


@torch.no_grad()
def how_far(model: Any, original: Any, tokens: Tensor) -> Moved:
    """Piece by piece, so that it needs little memory."""
    off: Any = 0.0
    size: Any = 0.0
    cosines = []
    for piece in tokens.split(1):
        after, before = (m(piece, output_hidden_states=True).hidden_states for m in (model, original))
        off = off + torch.stack([(a - b).square().sum() for a, b in zip(after[1:], before[1:], strict=True)])
        size = size + torch.stack([b.square().sum() for b in before[1:]])
        cosines.append(torch.cosine_similarity(after[-1], before[-1], dim=2))
    alike = torch.cat(cosines)
    layers = (off / size).sqrt().tolist()
    return Moved(tokens.shape[1], tuple(layers), alike.mean().item(), alike[:, 0].mean().item())
