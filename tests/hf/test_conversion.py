"""A converted encoder is near to what it was, and is a model of transformers."""

import json

import pytest
import torch
import transformers as hf
from tiny_encoders import POSITIONS, SENTENCES, tiny_checkpoint

from longshort.hf import conversion as convert_module
from longshort.hf.conversion import centres, convert, lengthened, load, manual
from longshort.lab.cli import main
from longshort.lab.trained.encoder import EncoderConfig, MaskedEncoderConfig, TextClassifierConfig
from longshort.lab.trained.weights import Described
from longshort.nn.spec import Full, LongShort

both = pytest.mark.parametrize("kind", ["bert", "roberta"])
SMALL = dict(window=16, rank=4, max_length=150)
TEXT = " ".join(SENTENCES * 20)


@pytest.fixture(autouse=True)
def quiet():
    hf.utils.logging.disable_progress_bar()


@both
@pytest.mark.parametrize(
    "head", ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]
)
def test_without_rows_and_norms_short_texts_are_read_as_before(kind, head, tmp_path):
    original = tiny_checkpoint(tmp_path, kind, head)
    found = convert(tmp_path, max_length=150, window=64, rank=0, dual_norm=False, text=TEXT)
    assert type(found.model).__name__.endswith(head)
    assert found.model.config.separator == found.tokenizer.sep_token_id
    tokens = torch.randint(5, 60, (2, POSITIONS))
    for ours, theirs in zip(found.model(tokens)[:2], original(tokens)[:2], strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert all(moved.cosine > 0.99999 and max(moved.layers) < 1e-4 for moved in found.moved)


@both
def test_positions_are_repeated(kind, tmp_path):
    original = tiny_checkpoint(tmp_path, kind)
    first = 2 if kind == "roberta" else 0
    before = original.base_model.embeddings.position_embeddings.weight
    found = convert(tmp_path, text=TEXT, **SMALL)
    for model in (found.model, lengthened(original, 150)):
        after = model.base_model.embeddings.position_embeddings.weight
        assert len(after) == 150 + first
        torch.testing.assert_close(after[: POSITIONS + first], before)
        torch.testing.assert_close(after[POSITIONS + first : 2 * POSITIONS + first], before[first:])
        torch.testing.assert_close(after[2 * POSITIONS + first :], before[first : 150 - 2 * POSITIONS + first])
    tokens = torch.randint(5, 60, (1, 150))
    assert found.model(tokens).logits.isfinite().all()
    torch.testing.assert_close(
        lengthened(original, 150)(tokens[:, :POSITIONS]).logits, original(tokens[:, :POSITIONS]).logits
    )


@both
def test_dual_norm_begins_as_a_scaling(kind, tmp_path):
    """Even where tokens differ in the size of their keys and values, which a LayerNorm does away with."""
    original = tiny_checkpoint(tmp_path, kind, "Model")
    torch.manual_seed(0)
    with torch.no_grad():
        for layer in original.encoder.layer:
            for projection in (layer.attention.self.key, layer.attention.self.value):
                across = torch.randn(32, 1)
                projection.weight.copy_((across - across.mean()) @ torch.randn(1, 32))
                projection.bias.fill_(0.3)  # a mean that LN_L takes away
            layer.attention.output.dense.weight.mul_(10)
    original.save_pretrained(tmp_path)
    tokens = torch.randint(5, 60, (2, POSITIONS))
    expected = original(tokens).last_hidden_state

    def off(eps):
        found = convert(tmp_path, window=64, rank=0, max_length=150, eps=eps, text=TEXT)
        assert found.model.encoder.layer[0].attention.self.norm.local.eps == eps
        return ((found.model(tokens).last_hidden_state - expected).norm() / expected.norm()).item()

    assert off(1e4) < 0.05 * off(1e-5)
    assert off(1e4) < off(10.0) < off(1e-5)


def test_rows_begin_as_what_typical_queries_read(tmp_path):
    """With as many rows as there are queries, a row's values are what full attention gives a query."""
    original = tiny_checkpoint(tmp_path, "bert", "Model")
    with torch.no_grad():
        for projection in (
            original.encoder.layer[0].attention.self.query,
            original.encoder.layer[0].attention.self.key,
        ):
            projection.weight.mul_(20)
    original.save_pretrained(tmp_path)
    found = convert(tmp_path, max_length=64, window=8, rank=600, dual_norm=False, global_tokens=0, text=TEXT)
    attention = found.model.encoder.layer[0].attention.self
    from longshort.hf.conversion import pieces_of
    from longshort.ops import dynamic_projection

    x = original.embeddings(pieces_of(TEXT, found.tokenizer, POSITIONS)[:1])  # [1, 64, 32], of the text to begin with
    q, k, v = (attention.split(getattr(attention, name)(x)) for name in ("query", "key", "value"))
    _, rows = dynamic_projection(attention.rows(x), k, v)  # [1, H, 600, D]
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    nearest = torch.cdist(expected, rows).amin(3)  # of every query to the row that fits best
    apart = torch.cdist(expected, v.mean(2, keepdim=True))
    assert nearest.mean() < 0.05 * apart.mean()


def test_what_is_begun_with_and_what_is_compared_are_different_text(tmp_path, monkeypatch):
    """Both from all over it."""
    tiny_checkpoint(tmp_path, "bert")
    digits = torch.randint(10, (1_000,), generator=torch.Generator().manual_seed(0)).tolist()
    begun, compared = [], []
    for name, seen in (("start", begun), ("how_far", compared)):
        does = getattr(convert_module, name)
        monkeypatch.setattr(convert_module, name, lambda *a, seen=seen, does=does: seen.append(a[2]) or does(*a))
    found = convert(tmp_path, text=" ".join(map(str, digits)), **SMALL)
    first = found.tokenizer.convert_tokens_to_ids("0")

    def places(pieces):
        """In the text, of each piece without the tokens around it; ten digits stand nowhere twice."""
        inside = [[token - first for token in piece if token >= first] for piece in pieces.tolist()]
        starts = {tuple(digits[i : i + 10]): i for i in range(len(digits))}
        return [set(range(i := starts[tuple(piece[:10])], i + len(piece))) for piece in inside]

    assert [pieces.shape for pieces in (*begun, *compared)] == [(8, 64), (8, 17), (8, 64)]
    ours, short, theirs = (places(pieces) for pieces in (*begun, *compared))
    assert set.union(*ours).isdisjoint(set.union(*short, *theirs))
    for half in (ours, theirs):
        assert min(map(min, half)) < 100 and max(map(max, half)) > 900


@both
def test_the_decoder_of_masked_tokens_is_the_embedding_of_words(kind, tmp_path):
    tiny_checkpoint(tmp_path / "before", kind)
    found = convert(tmp_path / "before", text=TEXT, **SMALL)
    found.save(tmp_path / "after")
    config = MaskedEncoderConfig(str(tmp_path / "after"), length=150, attention=LongShort(window=16, rank=4))
    for model in (found.model, hf.AutoModelForMaskedLM.from_pretrained(tmp_path / "after"), config.build()):
        words, decoder = model.get_input_embeddings(), model.get_output_embeddings()
        assert decoder.weight is words.weight
        before = words.weight.detach().clone()
        model.train()(torch.tensor([[5, 6, 7]]), labels=torch.tensor([[8, 9, 10]])).loss.backward()
        torch.optim.SGD(model.parameters(), lr=1.0).step()
        moved = (words.weight - before).abs().amax(1) > 0
        assert moved.all()  # those of words that were not read, through the decoder
        model.save_pretrained(tmp_path / "trained")
        again = hf.AutoModelForMaskedLM.from_pretrained(tmp_path / "trained")
        assert again.get_output_embeddings().weight is again.get_input_embeddings().weight
        assert torch.equal(again.get_output_embeddings().weight, words.weight)


@both
def test_a_decoder_of_its_own_stays_so(kind, tmp_path):
    original = tiny_checkpoint(tmp_path / "before", kind, tie_word_embeddings=False)
    found = convert(tmp_path / "before", text=TEXT, **SMALL)
    found.save(tmp_path / "after")
    for model in (found.model, hf.AutoModelForMaskedLM.from_pretrained(tmp_path / "after")):
        decoder = model.get_output_embeddings().weight
        assert torch.equal(decoder, original.get_output_embeddings().weight)
        assert not torch.equal(decoder, model.get_input_embeddings().weight)


def test_the_same_seed_converts_alike(tmp_path):
    tiny_checkpoint(tmp_path, "bert")
    once, again, other = (convert(tmp_path, text=TEXT, seed=seed, **SMALL).model.state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(once[name], again[name]) for name in once)
    rows = "bert.encoder.layer.0.attention.self.rows.weight"
    assert not torch.equal(once[rows], other[rows])


def test_centres():
    true = torch.eye(3) * 5
    points = torch.cat([torch.randn(50, 3) * 0.01 + centre for centre in true])
    found = centres(points, 30, torch.Generator().manual_seed(0))
    assert torch.cdist(found, true).amin(1).max() < 0.1
    assert centres(points[:50], 1, torch.Generator()).sub(points[:50].mean(0)).abs().max() < 1e-5
    assert centres(points, 0, torch.Generator()).shape == (0, 3)
    assert centres(points[:2], 5, torch.Generator()).shape == (5, 3)


def test_the_guess_of_the_next_sentence_is_dropped(tmp_path):
    tiny_checkpoint(tmp_path, "bert", "ForPreTraining")
    assert type(convert(tmp_path, text=TEXT, **SMALL).model).__name__ == "LongShortBertForMaskedLM"


@pytest.mark.parametrize(
    "head, changes, message",
    [
        ("ForMultipleChoice", {}, "holds a BertForMultipleChoice; of this kind, BertModel, BertForMaskedLM"),
        ("LMHeadModel", dict(is_decoder=True), "is_decoder"),
    ],
)
def test_models_that_cannot_be_converted_are_named(head, changes, message, tmp_path):
    tiny_checkpoint(tmp_path, "bert", head, **changes)
    with pytest.raises(ValueError, match=message):
        convert(tmp_path, text=TEXT)


def test_other_kinds_are_refused_by_name(tmp_path):
    hf.DistilBertConfig().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="of kind distilbert; those of kind roberta and bert"):
        convert(tmp_path)


def test_bad_settings_are_refused(tmp_path):
    tiny_checkpoint(tmp_path, "bert")
    for changes, message in {
        (("max_length", 2),): "max_length must be at least 3, of which two tokens are around a text, got 2",
        (("eps", 0.0),): "eps must be above 0",
        (("window", 0), ("rank", 0)): "both 0",
        (("text", "Too short."),): "at least 124 are needed",
        (("head", "ForPoetry"),): "head must be one of Model, .*, got 'ForPoetry'",
    }.items():
        with pytest.raises(ValueError, match=message):
            convert(tmp_path, **{**SMALL, "text": TEXT, **dict(changes)})
    with pytest.raises(FileNotFoundError, match="is not there"):
        convert(tmp_path / "nowhere")


def test_the_manual_is_there():
    assert len(manual()) > 200_000


@both
def test_the_command(kind, tmp_path, capsys):
    tiny_checkpoint(tmp_path / "before", kind)
    (tmp_path / "text.txt").write_text(TEXT)
    wish = ["convert", str(tmp_path / "before"), "--out", str(tmp_path / "after"), "--max-length", "150"]
    wish += ["--window", "16", "--rank", "4", "--text", str(tmp_path / "text.txt")]
    assert main(wish) == 0
    assert "reads 150 tokens" in capsys.readouterr().out.replace("\n", "")
    model = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "after", num_labels=3)
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "after")
    assert tokenizer.model_max_length == 150
    given = tokenizer([TEXT, SENTENCES[0]], truncation=True, padding=True, return_tensors="pt")
    assert given["input_ids"].shape == (2, 150)
    assert model(**given).logits.shape == (2, 3)
    moved = json.loads((tmp_path / "after" / "moved.json").read_text())
    assert [each["tokens"] for each in moved] == [17, 64]
    assert main(wish) == 1
    assert "is there already" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "after"), "--out", str(tmp_path / "again")]) == 1
    assert f"of kind longshort-{kind}" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "none"), "--out", str(tmp_path / "again")]) == 1
    assert "is not there" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


class TestEncoderConfig:
    @both
    @pytest.mark.parametrize("attention", [LongShort(window=16, rank=4), Full()], ids=["long-short", "full"])
    def test_it_builds_the_same_model_every_time_and_says_how_to_read_it(self, kind, attention, tmp_path):
        tiny_checkpoint(tmp_path / "before", kind)
        config = TextClassifierConfig(str(tmp_path / "before"), length=150, attention=attention, classes=3)
        assert isinstance(config, Described)
        model, again = config.build().eval(), config.build().eval()
        tokens = torch.randint(5, 60, (1, 140))
        torch.testing.assert_close(again(tokens).logits, model(tokens).logits)
        assert model(tokens).logits.shape == (1, 3)
        folder = tmp_path / "after"
        folder.mkdir()
        for name, content in config.files(model).items():
            (folder / name).write_bytes(content)
        model.save_pretrained(tmp_path / "weights")
        (tmp_path / "weights" / "model.safetensors").rename(folder / "model.safetensors")
        read = hf.AutoModelForSequenceClassification.from_pretrained(folder).eval()
        torch.testing.assert_close(read(tokens).logits, model(tokens).logits)
        assert hf.AutoTokenizer.from_pretrained(folder).model_max_length == 150

    def test_a_converted_model_is_taken_as_it_is(self, tmp_path):
        tiny_checkpoint(tmp_path / "before", "bert")
        found = convert(tmp_path / "before", text=TEXT, **SMALL)
        found.save(tmp_path / "after")
        config = MaskedEncoderConfig(str(tmp_path / "after"), length=150, attention=LongShort(window=16, rank=4))
        tokens = torch.randint(5, 60, (1, 140))
        torch.testing.assert_close(config.build().eval()(tokens).logits, found.model(tokens).logits)
        with pytest.raises(
            ValueError, match=r"was converted with window 16 and rank 4 \(--attention 16,4\), and LongShort"
        ):
            MaskedEncoderConfig(str(tmp_path / "after"), length=150, attention=LongShort(window=8, rank=4)).build()
        with pytest.raises(ValueError, match=r"reads 150 tokens \(--length 150\), and 200 are asked for"):
            MaskedEncoderConfig(str(tmp_path / "after"), length=200, attention=LongShort(window=16, rank=4)).build()

    def test_bad_settings_are_refused(self):
        with pytest.raises(ValueError, match="length must be at least 1"):
            EncoderConfig("x", length=0)
        with pytest.raises(ValueError, match="rotary must be False"):
            EncoderConfig("x", attention=Full(rotary=True))
        with pytest.raises(ValueError, match="classes must be at least 1"):
            TextClassifierConfig("x", classes=0)


def test_a_head_of_another_kind_is_new(tmp_path):
    tiny_checkpoint(tmp_path, "roberta", "ForMaskedLM")
    model, _ = load(tmp_path, "ForSequenceClassification", 5)
    assert model.classifier.out_proj.out_features == 5
