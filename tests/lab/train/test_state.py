"""Weights that layers share are kept once and shared again; and what a config says lies beside them, lies there."""

import json
from dataclasses import dataclass, replace

import pytest
import torch
from apart import apart, in_parts
from safetensors.torch import load_file, save_file
from tiny_encoders import Pretrained, tiny_checkpoint
from training import Counting, CountingConfig, Points, Tied, TiedConfig, checkpoints, do, outcome, points, weights
from transformers import AutoModelForMaskedLM, AutoTokenizer

from longshort.checksums import META, checksum, with_checksum
from longshort.lab.evaluate import Share
from longshort.lab.runs.checkpoints import check
from longshort.lab.train import CheckpointError
from longshort.lab.trained.weights import load_weights, shared_names
from longshort.serial import as_json


def test_a_shared_weight_has_one_name_in_a_file(tmp_path):
    run = points(model=TiedConfig())
    do(run, tmp_path)
    model = Tied(3)
    assert shared_names(model) == {"second.weight": "first.weight"}
    assert set(weights(run, tmp_path)) == set(model.state_dict()) - {"second.weight"}
    load_weights(checkpoints(run, tmp_path).last(), model)
    assert model.second.weight is model.first.weight
    assert torch.equal(model.second.weight, weights(run, tmp_path)["first.weight"])


@pytest.mark.parametrize("average", [None, 0.7])
def test_shared_weights_go_on_where_they_stopped(tmp_path, average):
    run = points(model=TiedConfig(), average=average)
    do(run, tmp_path / "whole")
    do(replace(run, steps=4), tmp_path / "parts")
    do(run, tmp_path / "parts", resume=True)
    assert outcome(run, tmp_path / "parts")["weights"] == outcome(run, tmp_path / "whole")["weights"]


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_two_processes_share_them_too(tmp_path, parallel):
    run = points(model=TiedConfig())
    assert apart(in_parts, run, tmp_path, parallel, count=2) == [0, 0]
    assert "second.weight" not in weights(run, tmp_path / "parts")
    assert outcome(run, tmp_path / "parts")["weights"] == outcome(run, tmp_path / "whole")["weights"]


def seal(checkpoint):
    """Note the checksums of what is there now."""
    facts = json.loads((checkpoint / META).read_text())
    facts["files"] = {name: checksum(checkpoint / name) for name in facts["files"]}
    (checkpoint / META).write_bytes(with_checksum(facts))


@pytest.mark.parametrize("name", ["random", "carries", "loss_sum", "loss_count"])
@pytest.mark.parametrize("value", [None, 5, "x", [], {}])
def test_the_state_of_a_process_that_is_of_another_form_is_refused(tmp_path, name, value):
    run = points()
    do(run, tmp_path)
    last = checkpoints(run, tmp_path).last()
    own = torch.load(last / "process_0.pt", weights_only=True)
    if isinstance(value, type(own[name])):
        del own[name]
    else:
        own[name] = value
    torch.save(own, last / "process_0.pt")
    seal(last)
    with pytest.raises(CheckpointError, match="does not fit this run"):
        do(replace(run, steps=8), tmp_path, resume=True)


@pytest.mark.parametrize("lost", ["first.weight", "second.bias"])
def test_a_lost_weight_is_missed_whether_shared_or_not(tmp_path, lost):
    run = points(model=TiedConfig())
    do(run, tmp_path)
    last = checkpoints(run, tmp_path).last()
    save_file({name: t for name, t in weights(run, tmp_path).items() if name != lost}, last / "model.safetensors")
    seal(last)
    for read in (lambda: load_weights(last, Tied(3)), lambda: do(replace(run, steps=8), tmp_path, resume=True)):
        with pytest.raises(CheckpointError, match=f"(?s)do(es)? not fit this .*{lost}"):
            read()


def test_a_run_with_other_layers_starts_from_shared_weights(tmp_path):
    before = points(model=TiedConfig())
    run = points(name="next", steps=1, optimizer=replace(before.optimizer, lr=0.0), starts_from=before)
    do(run, tmp_path)
    assert torch.equal(weights(run, tmp_path)["line.weight"], weights(before, tmp_path)["line.weight"])


@dataclass(frozen=True)
class Labelled(CountingConfig):
    def files(self, model):
        return {"config.json": b"{}", "about.txt": type(model).__name__.encode()}

    def read(self, folder):
        assert (folder / "about.txt").read_bytes() == b"Counting"
        return Counting(self.width)


def test_what_a_config_says_lies_beside_the_weights(tmp_path, monkeypatch):
    run = points(model=Labelled())
    do(run, tmp_path)
    last = checkpoints(run, tmp_path).last()
    assert (last / "config.json").read_bytes() == b"{}" and (last / "about.txt").read_bytes() == b"Counting"
    assert {"config.json", "about.txt"} <= set(check(last)["files"])
    with monkeypatch.context() as patch:
        patch.setattr(Labelled, "build", None)  # a run that goes on has all it needs in its folder
        do(replace(run, steps=8), tmp_path, resume=True)


def test_any_other_config_is_written_itself(tmp_path):
    run = points()
    do(run, tmp_path)
    assert json.loads((checkpoints(run, tmp_path).last() / "config.json").read_text()) == as_json(CountingConfig())


@dataclass(frozen=True)
class Copying(Points):
    """The next token of a line is the one before it."""

    def batch(self, step, part, parts):
        return torch.randint(5, 40, (4, 1), generator=torch.Generator().manual_seed(step)).expand(4, 9)

    def size(self, batch):
        return batch.numel()

    def loss(self, model, batch, carry):
        scores = model(batch, torch.ones_like(batch)).logits
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), batch.flatten()), None

    def evaluators(self, split):
        return [Nothing()]


@dataclass(frozen=True)
class Nothing:
    """An evaluation of anything."""

    name: str = "dev"
    size: int = 0

    def run(self, model, processes, advance):
        return {"score": Share(0.0, 1.0)}


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_checkpoint_is_a_model_that_transformers_reads(tmp_path, kind):
    tiny_checkpoint(tmp_path / "published", kind)
    model = Pretrained(tmp_path / "published")
    run = replace(points(), model=model, task=Copying(), name="masked")
    do(run, tmp_path)
    do(replace(run, steps=4), tmp_path / "parts")
    do(run, tmp_path / "parts", resume=True)
    assert outcome(run, tmp_path / "parts")["weights"] == outcome(run, tmp_path)["weights"]

    folder = checkpoints(run, tmp_path).last()
    read, info = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    trained, before = model.build(), model.build()
    load_weights(folder, trained)
    assert trained.get_output_embeddings().weight is trained.get_input_embeddings().weight
    for name, t in read.state_dict().items():
        assert torch.equal(t, trained.state_dict()[name]), name
    assert not torch.equal(read.get_input_embeddings().weight, before.get_input_embeddings().weight)
    assert set(load_file(folder / "model.safetensors")) == set(load_file(tmp_path / "published" / "model.safetensors"))
    for name in ("The film", "a long, long evening"):
        found, known = (AutoTokenizer.from_pretrained(at)(name)["input_ids"] for at in (folder, model.folder))
        assert found == known
