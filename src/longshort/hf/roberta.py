"""RoBERTa and BERT with long-short attention, as models of transformers. Importing this file makes its Auto classes
know them:

import longshort.hf
model = AutoModelForSequenceClassification.from_pretrained("my-converted-roberta")

Everything but the attention is transformers' own. B batch, N tokens, C width.
"""
# no `from __future__ import annotations`: transformers reads the type of `config`

import inspect
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from longshort.hf.library import hf
from longshort.nn.attention import LongShortAttention
from longshort.nn.order import Order, first_tokens, marked_tokens


@dataclass(kw_only=True, repr=False)
class LongShortSettings:
    """What long-short attention adds to a config of transformers.

    window: tokens of a home segment; a token also sees half of that on either side. rank: rows distilled from the text.
    global_tokens: so many tokens at the start of a text, CLS by default, see all and are seen by all; a call's
    global_attention_mask names others. norm_eps: of DualLN; far above the variance of keys, it lets tokens that differ
    in size stay so, as in converted models. separator: the token that ends a question; in question answering all
    tokens up to it are global.
    """

    window: int = 128
    rank: int = 64
    global_tokens: int = 1
    dual_norm: bool = True
    norm_eps: float = 1e-5
    separator: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)  # type: ignore[misc]
        for name in ("window", "rank", "global_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.window == 0 and self.rank == 0:
            raise ValueError("window and rank are both 0: nothing to attend to")
        if self.is_decoder or self.add_cross_attention:  # type: ignore[attr-defined]
            raise ValueError("this is an encoder: is_decoder and add_cross_attention must be False")


class LongShortRobertaConfig(LongShortSettings, hf.RobertaConfig):
    model_type = "longshort-roberta"
    separator: int | None = 2

    @property
    def longest(self) -> int:
        """The most tokens of a text: positions are counted on from that of the padding."""
        return self.max_position_embeddings - (self.pad_token_id or 0) - 1


class LongShortBertConfig(LongShortSettings, hf.BertConfig):
    model_type = "longshort-bert"

    @property
    def longest(self) -> int:
        return self.max_position_embeddings


class EncoderAttention(nn.Module):
    """LayerNorm(x + attention(x)), in the place of transformers' own and called as that is."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.self = LongShortAttention(
            config.hidden_size,
            config.num_attention_heads,
            window=config.window,
            rank=config.rank,
            dropout=config.attention_probs_dropout_prob,
            global_tokens=config.global_tokens,
            globals_see="tokens",  # as they did before the model was converted
            dual_norm=config.dual_norm,
            eps=config.norm_eps,
        )
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, attention_mask: None = None, *, order: Order, **unused: Any) -> tuple[Tensor, None]:
        return self.norm(x + self.dropout(self.self(x, order=order))), None  # [B, N, C]


class Encoder:
    """RobertaModel or BertModel with the attention of every layer exchanged."""

    config: Any
    encoder: Any
    questions: bool = False  # whether texts are questions with what may answer them

    def __init__(self, config: Any, add_pooling_layer: bool = True) -> None:
        super().__init__(config, add_pooling_layer)  # type: ignore[call-arg]
        for layer in self.encoder.layer:
            layer.attention = EncoderAttention(config)
        self.post_init()  # type: ignore[attr-defined]

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        *,
        global_attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """global_attention_mask: [B, N], of the tokens that see all and are seen by all; the first ones by default."""
        tokens = inputs_embeds if input_ids is None else input_ids
        if tokens is None or (input_ids is not None and inputs_embeds is not None):
            raise ValueError("give input_ids or inputs_embeds, and not both")
        if kwargs.get("output_attentions", self.config.output_attentions):
            raise ValueError("output_attentions: long-short attention keeps no weights of attention")
        if tokens.shape[1] > self.config.longest:
            raise ValueError(
                f"texts of {tokens.shape[1]:,} tokens are longer than the model's {self.config.longest:,}: "
                "cut them (truncation=True)"
            )
        mask = as_mask("attention_mask", attention_mask, tokens)
        marked = as_mask("global_attention_mask", global_attention_mask, tokens)
        if marked is None and self.questions and input_ids is not None and self.config.separator is not None:
            marked = question(input_ids, mask, self.config.separator)
        if marked is None:
            order = first_tokens(tokens, mask, self.config.global_tokens)
        else:
            order = marked_tokens(tokens, mask, marked)
        if position_ids is None and mask is not None:  # so that the place of the padding does not matter
            position_ids = self.first_position + (mask.cumsum(1) - 1).clamp(min=0)
        return super().forward(  # type: ignore[misc]
            input_ids=input_ids,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            order=order,
            **kwargs,
        )

    @property
    def first_position(self) -> int:
        return int(self.config.max_position_embeddings - self.config.longest)

    def _create_attention_masks(self, **unused: Any) -> tuple[None, None]:
        return None, None  # transformers' are N × N, and the order has ours


def as_mask(name: str, given: Tensor | None, tokens: Tensor) -> Tensor | None:
    """Bool, [B, N], from the numbers that transformers has for it: 1 on real tokens.

    It reads whatever is not 0 so, and a mask that is to be added to scores, with 0 on real tokens, the wrong way round.
    """
    if given is None:
        return None
    if given.shape != tokens.shape[:2]:
        raise ValueError(f"{name} must be [batch, tokens], {tuple(tokens.shape[:2])}, got {tuple(given.shape)}")
    if given.is_floating_point() and not torch.compiler.is_compiling():  # which could not wait for the answer
        others = given[(given != 0) & (given != 1)]
        if len(others):
            raise ValueError(f"{name} must be 0 or 1 everywhere, not a mask to be added to scores, got {others[0]:g}")
    return given.bool()


class Head:
    """A model of transformers on top of the long-short encoder; global_attention_mask is an argument of its forward
    that Trainer knows of."""

    base_model_prefix: str
    encoder_class: ClassVar[Any]
    questions: ClassVar[bool] = False

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        pools = getattr(self, self.base_model_prefix).pooler is not None
        encoder = self.encoder_class(config, add_pooling_layer=pools)
        encoder.questions = self.questions
        setattr(self, self.base_model_prefix, encoder)
        self.post_init()  # type: ignore[attr-defined]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        theirs = inspect.signature(cls.forward)
        *known, rest = theirs.parameters.values()
        ours = inspect.Parameter(
            "global_attention_mask", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Tensor | None
        )

        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            return super(cls, self).forward(*args, **kwargs)  # type: ignore[misc]

        forward.__signature__ = theirs.replace(parameters=[*known, ours, rest])  # type: ignore[attr-defined]
        cls.forward = forward

    forward: Any


def question(tokens: Tensor, mask: Tensor | None, separator: int) -> Tensor:
    """Marks the tokens up to the first separator, [B, N]; where there is none, or nothing follows it, the first one."""
    real = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask
    ends = (tokens == separator) & real
    before = ends.cumsum(1) - ends.long() == 0
    first = real & (real.cumsum(1) == 1)
    return torch.where((real & ~before).any(1, keepdim=True), before & real, first)


class LongShortRobertaModel(Encoder, hf.RobertaModel):  # type: ignore[misc]
    config: LongShortRobertaConfig
    _can_record_outputs: Any = {"hidden_states": hf.models.roberta.modeling_roberta.RobertaLayer}  # noqa: RUF012


class LongShortRobertaForMaskedLM(Head, hf.RobertaForMaskedLM):
    config: LongShortRobertaConfig
    encoder_class = LongShortRobertaModel


class LongShortRobertaForSequenceClassification(Head, hf.RobertaForSequenceClassification):
    config: LongShortRobertaConfig
    encoder_class = LongShortRobertaModel


class LongShortRobertaForTokenClassification(Head, hf.RobertaForTokenClassification):
    config: LongShortRobertaConfig
    encoder_class = LongShortRobertaModel


class LongShortRobertaForQuestionAnswering(Head, hf.RobertaForQuestionAnswering):
    config: LongShortRobertaConfig
    encoder_class = LongShortRobertaModel
    questions = True


class LongShortBertModel(Encoder, hf.BertModel):  # type: ignore[misc]
    config: LongShortBertConfig
    _can_record_outputs: Any = {"hidden_states": hf.models.bert.modeling_bert.BertLayer}  # noqa: RUF012


class LongShortBertForMaskedLM(Head, hf.BertForMaskedLM):
    config: LongShortBertConfig
    encoder_class = LongShortBertModel


class LongShortBertForSequenceClassification(Head, hf.BertForSequenceClassification):
    config: LongShortBertConfig
    encoder_class = LongShortBertModel


class LongShortBertForTokenClassification(Head, hf.BertForTokenClassification):
    config: LongShortBertConfig
    encoder_class = LongShortBertModel


class LongShortBertForQuestionAnswering(Head, hf.BertForQuestionAnswering):
    config: LongShortBertConfig
    encoder_class = LongShortBertModel
    questions = True


FAMILIES: dict[type, tuple[Any, dict[Any, Any]]] = {
    LongShortRobertaConfig: (
        hf.RobertaTokenizer,
        {
            hf.AutoModel: LongShortRobertaModel,
            hf.AutoModelForMaskedLM: LongShortRobertaForMaskedLM,
            hf.AutoModelForSequenceClassification: LongShortRobertaForSequenceClassification,
            hf.AutoModelForTokenClassification: LongShortRobertaForTokenClassification,
            hf.AutoModelForQuestionAnswering: LongShortRobertaForQuestionAnswering,
        },
    ),
    LongShortBertConfig: (
        hf.BertTokenizer,
        {
            hf.AutoModel: LongShortBertModel,
            hf.AutoModelForMaskedLM: LongShortBertForMaskedLM,
            hf.AutoModelForSequenceClassification: LongShortBertForSequenceClassification,
            hf.AutoModelForTokenClassification: LongShortBertForTokenClassification,
            hf.AutoModelForQuestionAnswering: LongShortBertForQuestionAnswering,
        },
    ),
}

for config, (tokenizer, models) in FAMILIES.items():
    hf.AutoConfig.register(config.model_type, config, exist_ok=True)  # type: ignore[attr-defined]
    hf.AutoTokenizer.register(config, fast_tokenizer_class=tokenizer, exist_ok=True)
    for auto, model in models.items():
        auto.register(config, model, exist_ok=True)
