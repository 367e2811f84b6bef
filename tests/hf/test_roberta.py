"""Long-short encoders do what users of transformers expect of a model."""

import warnings

import accelerate
import pytest
import torch
import transformers as hf
from tiny_encoders import tiny_tokenizer
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from longshort.hf import roberta

KINDS = {"roberta": roberta.LongShortRobertaConfig, "bert": roberta.LongShortBertConfig}
AUTO = [
    hf.AutoModel,
    hf.AutoModelForMaskedLM,
    hf.AutoModelForSequenceClassification,
    hf.AutoModelForTokenClassification,
    hf.AutoModelForQuestionAnswering,
]
SEPARATOR = 2


def config_of(kind, **changes):
    sizes = dict(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=82 if kind == "roberta" else 80,
        pad_token_id=1 if kind == "roberta" else 0,
        window=8,
        rank=4,
        separator=SEPARATOR,
    )
    return KINDS[kind](**{**sizes, **changes})


def made(kind, auto=hf.AutoModel, **changes):
    torch.manual_seed(0)
    return auto.from_config(config_of(kind, **changes)).eval()


def tokens_of(length, batch=1, seed=0):
    """None of them pads, or is the separator."""
    return torch.randint(5, 60, (batch, length), generator=torch.Generator().manual_seed(seed))


both = pytest.mark.parametrize("kind", KINDS)


@both
@pytest.mark.parametrize("auto", AUTO, ids=lambda auto: auto.__name__)
def test_a_saved_model_is_the_same_one(kind, auto, tmp_path):
    model = made(kind, auto)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    again = auto.from_pretrained(tmp_path).eval()
    assert type(again) is type(model) and again.config.rank == 4
    tokens = tokens_of(40, batch=2)
    mask = (torch.arange(40) < torch.tensor([[40], [23]])).long()
    for before, after in zip(model(tokens, mask)[:2], again(tokens, mask)[:2], strict=True):
        torch.testing.assert_close(after, before)


@both
def test_padding_changes_no_real_token(kind):
    model = made(kind)
    tokens = tokens_of(23)
    expected = model(tokens).last_hidden_state
    padding = torch.full((1, 9), model.config.pad_token_id)
    for wide, at in (
        (torch.cat([tokens, padding], 1), slice(0, 23)),
        (torch.cat([padding, tokens], 1), slice(9, 32)),
        (torch.cat([padding[:, :4], tokens, padding[:, 4:]], 1), slice(4, 27)),
    ):
        mask = torch.zeros(wide.shape)
        mask[:, at] = 1
        torch.testing.assert_close(model(wide, mask).last_hidden_state[:, at], expected)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.float32])
def test_masks_of_zeros_and_ones_are_read_alike(dtype):
    model, tokens = made("bert"), tokens_of(20, batch=2)
    mask = torch.arange(20) < torch.tensor([[20], [13]])
    for name in ("attention_mask", "global_attention_mask"):
        expected = model(tokens, **{name: mask}).last_hidden_state
        torch.testing.assert_close(model(tokens, **{name: mask.to(dtype)}).last_hidden_state, expected)


@pytest.mark.parametrize("low", [torch.finfo(torch.float32).min, -torch.inf, -10_000.0, torch.nan])
def test_masks_that_are_added_to_scores_are_refused(low):
    """They have 0 where a real token is."""
    model, tokens = made("bert"), tokens_of(20, batch=2)
    mask = torch.where(torch.arange(20) < torch.tensor([[20], [13]]), 0.0, low)
    for name in ("attention_mask", "global_attention_mask"):
        with pytest.raises(ValueError, match=rf"^{name} must be 0 or 1 everywhere, .*, got (-|nan)"):
            model(tokens, **{name: mask})


def test_no_number_of_an_ordinary_mask_is_waited_for():
    """Of a tensor without content nothing could be asked."""
    tokens = torch.zeros(2, 5, dtype=torch.long, device="meta")
    for dtype in (torch.bool, torch.int64):
        assert roberta.as_mask("attention_mask", tokens.to(dtype), tokens).dtype is torch.bool


def test_compiled_masks_of_floats_make_one_graph():
    compiled = torch.compile(roberta.as_mask, backend="eager", fullgraph=True)
    mask = torch.tensor([[0.0, 1.0, 1.0]])
    assert compiled("attention_mask", mask, mask).tolist() == [[False, True, True]]


@both
def test_a_window_over_all_without_rows_is_the_original(kind):
    """With the weights of transformers' own model, which differs in nothing else."""
    model = made(kind, window=64, rank=0, dual_norm=False)
    family = {"roberta": hf.RobertaModel, "bert": hf.BertModel}[kind]
    original = family(model.config).eval()
    back = {"attention.self.out.": "attention.output.dense.", "attention.norm.": "attention.output.LayerNorm."}
    weights = {}
    for name, tensor in model.state_dict().items():
        for ours, theirs in back.items():
            name = name.replace(ours, theirs)
        weights[name] = tensor
    assert original.load_state_dict(weights, strict=False).missing_keys == []
    tokens = tokens_of(40, batch=2)
    mask = (torch.arange(40) < torch.tensor([[40], [23]])).long()
    for name in ("last_hidden_state", "pooler_output"):
        ours, theirs = model(tokens, mask)[name], original(tokens, mask)[name]
        if name == "last_hidden_state":
            ours, theirs = ours[mask.bool()], theirs[mask.bool()]
        torch.testing.assert_close(ours, theirs)


@both
def test_global_tokens(kind):
    model = made(kind)
    tokens = tokens_of(40)
    marked = torch.zeros_like(tokens)
    marked[:, 0] = 1
    usual = model(tokens).last_hidden_state
    torch.testing.assert_close(model(tokens, global_attention_mask=marked).last_hidden_state, usual)
    marked[:, 20] = 1
    other = model(tokens, global_attention_mask=marked).last_hidden_state
    assert (other - usual).abs().max() > 1e-3


@both
def test_a_token_far_away_is_reached_by_global_tokens_and_rows_alone(kind):
    """Of the window alone, nothing comes through in one layer; a global token, or a row, carries it."""
    tokens = tokens_of(70)
    changed = tokens.clone()
    changed[:, 60] = 5 + (tokens[:, 60] - 4) % 55

    def reaches(**settings):
        model = made(kind, num_hidden_layers=1, **settings)
        moved = (model(tokens).last_hidden_state - model(changed).last_hidden_state).abs().amax(2)[0]
        return moved[0] > 1e-5, moved[10] > 1e-5

    assert reaches(rank=0, global_tokens=0) == (False, False)
    assert reaches(rank=0, global_tokens=1) == (True, False)
    assert reaches(rank=4, global_tokens=0) == (True, True)


@both
def test_the_question_is_global_in_question_answering(kind):
    model = made(kind, hf.AutoModelForQuestionAnswering)
    tokens = tokens_of(60, batch=2)
    tokens[0, 6] = tokens[0, 59] = tokens[1, 11] = tokens[1, 59] = SEPARATOR
    expected = (torch.arange(60) <= torch.tensor([[6], [11]])).long()
    torch.testing.assert_close(model(tokens).start_logits, model(tokens, global_attention_mask=expected).start_logits)
    assert (
        model(tokens).start_logits - model(tokens, global_attention_mask=expected * 0).start_logits
    ).abs().max() > 1e-4
    alone = model(tokens[:1]).start_logits  # another number of global tokens beside it
    torch.testing.assert_close(model(tokens).start_logits[:1], alone)


def test_where_a_question_ends():
    tokens = torch.tensor([[7, 8, 9, 6], [7, SEPARATOR, 9, 6], [0, 7, SEPARATOR, 9], [7, 8, 6, SEPARATOR]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1]]).bool()
    expected = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 0]]
    assert roberta.question(tokens, mask, SEPARATOR).int().tolist() == expected
    padding_is_a_separator = torch.tensor([[SEPARATOR, 7, SEPARATOR, 9]])
    marked = roberta.question(padding_is_a_separator, mask[2:3], SEPARATOR)
    assert marked.int().tolist() == [[0, 1, 1, 0]]


@both
def test_gradient_checkpointing_gives_the_same_gradients(kind):
    model = made(kind, hf.AutoModelForSequenceClassification, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    tokens, mask = tokens_of(40, batch=2), (torch.arange(40) < torch.tensor([[40], [23]])).long()

    def gradients():
        model.train().zero_grad()
        model(tokens, mask, labels=torch.tensor([0, 1])).loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    plain = gradients()
    model.gradient_checkpointing_enable()
    calls = []
    layer = model.base_model.encoder.layer[0].attention
    layer.register_forward_hook(lambda *_: calls.append(1))
    saved = gradients()
    assert len(calls) == 2  # once more in the backward pass
    for name, gradient in plain.items():
        torch.testing.assert_close(saved[name], gradient, msg=name)
    assert any("attention.self.rows" in name for name in plain)


@both
def test_attention_drops_weights_in_training_alone(kind):
    """Nothing else is dropped here. The first token is global, which looks by a way of its own."""
    tokens = tokens_of(40)

    def states(model):
        with torch.no_grad():
            return model(tokens).last_hidden_state[0]  # [N, C]

    dropping, keeping = (
        made(kind, num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=p) for p in (0.5, 0.0)
    )
    expected = states(keeping)
    assert torch.equal(states(dropping), expected) and torch.equal(states(keeping.train()), expected)
    once, again = (states(dropping.train()) for _ in range(2))
    for drawn in (expected, again):
        assert ((once - drawn).abs().amax(1) > 1e-4).all()
    assert torch.equal(states(dropping.eval()), expected)


class Sizes(TorchDispatchMode):
    """Of all tensors that are made, the largest number of elements."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **kwargs or {})
        tensors = [leaf for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        self.largest = max([self.largest, *(tensor.numel() for tensor in tensors)])
        return made


@both
@pytest.mark.parametrize("where", ["no padding", "right", "left", "marked"])
def test_no_tensor_is_quadratic_in_the_length(kind, where):
    """Neither a mask nor scores, forward or backward, and wherever padding and global tokens stand."""
    length = 3_001
    model = made(kind, hf.AutoModelForTokenClassification, max_position_embeddings=length + 10, num_hidden_layers=1)
    tokens = tokens_of(length)
    mask = (torch.arange(length) < length - 100).long()[None]
    given = {
        "no padding": {},
        "right": dict(attention_mask=mask),
        "left": dict(attention_mask=mask.flip(1)),
        "marked": dict(attention_mask=mask, global_attention_mask=(torch.arange(length) % 1_000 == 7).long()[None]),
    }[where]
    with Sizes() as sizes:
        model.train()(tokens, **given, labels=tokens % 2).loss.backward()
    assert model.config.hidden_size * length <= sizes.largest < length**2 / 20


@both
def test_embeddings_can_be_resized(kind):
    model = made(kind, hf.AutoModelForMaskedLM)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.resize_token_embeddings(70, mean_resizing=False)
    assert model(torch.full((1, 12), 69)).logits.shape == (1, 12, 70)


@both
@pytest.mark.slow
@torch._dynamo.config.patch(specialize_float=True)  # else it first takes an eps for a symbol, and then starts over
def test_compiled_it_gives_the_same(kind):
    """As one graph, and as one for all lengths; with its gradients, and without a mask."""
    model = made(kind, num_hidden_layers=1)
    graphs = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=graphs, fullgraph=True, dynamic=True)
    for length in (40, 41, 33, 72):
        tokens, mask = tokens_of(length, batch=2), (torch.arange(length) < torch.tensor([[length], [23]])).long()
        for given in (mask, mask.flip(1)):
            expected = model(tokens, given).last_hidden_state[given.bool()]
            torch.testing.assert_close(compiled(tokens, given).last_hidden_state[given.bool()], expected)
    assert graphs.frame_count == 1
    gradients = []
    for each in (model, compiled):
        model.zero_grad()
        each(tokens, mask).last_hidden_state[mask.bool()].pow(3).sum().backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    for name, expected in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(tokens).last_hidden_state, model(tokens).last_hidden_state)
    torch._dynamo.reset()


@both
def test_weights_can_stay_away_until_they_are_used(kind):
    model, tokens = made(kind), tokens_of(40, batch=2)
    expected = model(tokens).last_hidden_state
    accelerate.cpu_offload(model, execution_device="cpu")
    assert all(p.is_meta for p in model.encoder.parameters())
    torch.testing.assert_close(model(tokens).last_hidden_state, expected)


@both
def test_half_precision_and_embeddings_as_input(kind):
    model = made(kind)
    tokens = tokens_of(30)
    embedded = model.get_input_embeddings()(tokens)
    torch.testing.assert_close(model(inputs_embeds=embedded)[0], model(tokens)[0])
    expected = model(tokens)[0]
    half = model.bfloat16()(tokens)[0]
    assert half.dtype is torch.bfloat16
    assert (half - expected).norm() < 0.02 * expected.norm()


@both
def test_all_padding_is_finite(kind):
    model = made(kind)
    tokens, mask = tokens_of(12, batch=2), torch.ones(2, 12, dtype=torch.long)
    mask[1] = 0
    states = model(tokens, mask).last_hidden_state
    torch.testing.assert_close(states[:1], model(tokens[:1]).last_hidden_state)
    assert states.isfinite().all()
    states.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.encoder.parameters())


def trainer_of(model, items, folder, steps, **more):
    settings = hf.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
    )
    return hf.Trainer(model, settings, train_dataset=items, **more)


@both
def test_trainer_and_pipeline(kind, tmp_path):
    tokenizer = tiny_tokenizer(tmp_path / "model", kind)
    config = config_of(kind, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id)
    torch.manual_seed(0)
    model = hf.AutoModelForSequenceClassification.from_config(config)
    texts = ["the film was good", "a bad film", "the music was good", "the story is thin"] * 2
    items = [dict(tokenizer(text), labels=i % 2) for i, text in enumerate(texts)]
    trainer = trainer_of(model, items, tmp_path / "out", steps=4, processing_class=tokenizer)
    before = trainer.evaluate(items)["eval_loss"]
    trainer.train()
    assert trainer.evaluate(items)["eval_loss"] < before
    trainer.save_model(str(tmp_path / "model"))
    classify = hf.pipeline("text-classification", model=str(tmp_path / "model"), device="cpu")
    found = classify(["the film was good", "a bad film, and the end is worse"], batch_size=2)
    assert [set(each) for each in found] == [{"label", "score"}] * 2


@both
def test_trainer_learns_to_answer_and_keeps_the_global_tokens_it_is_given(kind, tmp_path):
    tokenizer = tiny_tokenizer(tmp_path, kind)
    config = config_of(kind, vocab_size=len(tokenizer), separator=tokenizer.sep_token_id, type_vocab_size=2)
    torch.manual_seed(0)
    model = hf.AutoModelForQuestionAnswering.from_config(config)
    texts = ["the film was good", "the music was bad", "the story is thin", "the end is worse"]
    pairs = tokenizer(["what was good"] * 4, texts, padding="max_length", max_length=48, return_tensors="pt")
    marked = torch.zeros_like(pairs.input_ids)
    marked[:, 3] = 1
    names = [name for name in pairs if name in ("input_ids", "attention_mask", "token_type_ids")]
    items = [
        {name: pairs[name][i] for name in names}
        | dict(start_positions=8 + i, end_positions=9 + i, global_attention_mask=marked[i])
        for i in range(4)
    ]
    seen = []
    model.base_model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["global_attention_mask"]), with_kwargs=True
    )
    trainer = trainer_of(model, items, tmp_path / "out", steps=8)
    before = trainer.evaluate(items)["eval_loss"]
    trainer.train()
    assert trainer.evaluate(items)["eval_loss"] < before - 0.3
    assert len(seen) == 10 and all(torch.equal(each, marked) for each in seen)


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(window=0, rank=0), "both 0"),
        (dict(window=-1), "window must not be negative"),
        (dict(is_decoder=True), "this is an encoder"),
    ],
)
def test_bad_configs_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        config_of("roberta", **changes)


@both
def test_bad_input_is_refused(kind):
    model = made(kind)
    with pytest.raises(ValueError, match=r"texts of 81 tokens are longer than the model's 80"):
        model(tokens_of(81))
    assert model(tokens_of(80)).last_hidden_state.isfinite().all()
    with pytest.raises(ValueError, match="give input_ids or inputs_embeds"):
        model()
    with pytest.raises(ValueError, match="no weights of attention"):
        model(tokens_of(5), output_attentions=True)
    with pytest.raises(ValueError, match=r"attention_mask must be \[batch, tokens\]"):
        model(tokens_of(5), torch.ones(1, 1, 5, 5))
