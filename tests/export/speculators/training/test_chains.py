"""Chains of a network's own states, and the loop that trains on them."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, Qwen3Config

from reader_edge_export.speculators.block_networks import BlockConfig, BlockModule
from reader_edge_export.speculators.networks import Eagle3Config, Eagle3Module
from reader_edge_export.speculators.text_attention import DenseAttention, DenseBlockAttention
from reader_edge_export.speculators.training import batches as batches_module
from reader_edge_export.speculators.training import mtp_training
from reader_edge_export.speculators.training import training_loop as training
from reader_edge_export.speculators.training.batches import DEPTH, ROW, ROWS, Batches
from reader_edge_export.speculators.training.chains import ChainLoss, chain_reads
from reader_edge_export.speculators.training.dflash_training import DflashTraining
from reader_edge_export.speculators.training.mtp_training import SampledHead
from reader_edge_export.speculators.training.state_recorder import RecordedAnswer
from reader_edge_runtime.errors import ExportError

_SIZE, _NUM_STATES, _VOCAB = 16, 3, 50


def module() -> Eagle3Module:
    torch.manual_seed(0)
    layer = LlamaConfig(
        vocab_size=_VOCAB,
        hidden_size=_SIZE,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
    )
    return Eagle3Module(Eagle3Config(layer, _VOCAB, _NUM_STATES, _SIZE))


def test_a_step_at_a_place_sees_the_true_places_up_to_it_and_its_own_chain() -> None:
    network, count = module(), 7
    states, ids = torch.randn(1, count, _NUM_STATES * _SIZE), torch.randint(0, _VOCAB, (1, count + DEPTH))
    places = torch.tensor([2, 5])
    with torch.no_grad():
        found = [network.lm_head(read) for _, read in chain_reads(network, states, ids, places)]
        for number, place in enumerate(places.tolist()):
            # One text: the true places, then the chain that goes on from this one, a node a pass.
            attention = DenseAttention()
            attention.seen = torch.ones(place + 1, place + 1).tril().bool()
            own = network.joined(states[:, : place + 1])
            moved = network.step(ids[:, : place + 1], torch.arange(place + 1)[None], own, attention)
            assert torch.allclose(network.lm_head(moved.read)[0, -1], found[0][0, place], atol=1e-5)
            for step in range(1, DEPTH):
                attention.seen = torch.ones(1, place + 1 + step).bool()
                at = place + step
                moved = network.step(ids[:, at : at + 1], torch.tensor([[at]]), moved.next_states[:, -1:], attention)
                assert torch.allclose(network.lm_head(moved.read)[0, 0], found[step][0, number], atol=1e-5)


def test_a_block_behind_a_place_sees_the_states_up_to_it_and_itself() -> None:
    layer = Qwen3Config(
        vocab_size=_VOCAB,
        hidden_size=_SIZE,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
    )
    torch.manual_seed(0)
    size = 1 + DEPTH
    network = BlockModule(BlockConfig(layer, _VOCAB, _NUM_STATES, _SIZE, size, 7, (False,) * 2, (0,) * 2))
    count, places = 9, torch.tensor([2, 5])
    states, ids = torch.randn(1, count, _NUM_STATES * _SIZE), torch.randint(0, _VOCAB, (1, count + DEPTH))
    with torch.no_grad():
        found = list(DflashTraining().reads(network, states, ids, places))
        for number, place in enumerate(places.tolist()):
            rows = torch.tensor([[int(ids[0, place]), *[network.block.mask_token_id] * DEPTH]])
            positions = torch.arange(place + 1 + size)[None]
            context = network.joined(states[:, : place + 1])
            read = network.step(rows, positions, context, DenseBlockAttention(place + 1)).read
            for step, (at, each) in enumerate(found):
                assert at[number] == place + step
                assert torch.allclose(each[0, number], read[0, 1 + step], atol=1e-5)


def answer(num_context: int, num_answered: int, first: int) -> RecordedAnswer:
    """Token i of the text is first + i, and the target says of each that the next one follows."""
    text = first + np.arange(num_context + num_answered + 1, dtype=np.int32)
    token_ids = text[num_context:]
    top_ids = np.stack([token_ids[1:], np.zeros(num_answered, np.int32)], 1)
    top_logits = np.tile(np.array([2.0, 0.0], np.float32), (num_answered, 1))
    states = np.repeat(text[:-1, None], 4, 1).astype(np.float16)
    return RecordedAnswer(text[:num_context], token_ids, states, top_ids, top_logits)


def test_a_place_has_the_state_of_its_token_the_next_one_and_what_the_target_says_of_that() -> None:
    batches = Batches([answer(3, 1000, 1), answer(0, 300, 2000)], np.arange(0, 4000, dtype=np.int32), 4000)
    assert batches.num_places == 1303
    rows = batches.at(0)
    assert rows.states.shape == (ROWS, ROW, 4)
    assert rows.ids.shape == (ROWS, ROW + DEPTH)
    tokens = rows.states[..., 0].long()
    assert (rows.ids[:, :ROW] == tokens + 1).all()
    has_scores = rows.has_scores[:, :ROW]
    assert (rows.top[:, :ROW, 0][has_scores] == tokens[has_scores] + 2).all()
    assert torch.allclose(rows.share.sum(-1)[rows.has_scores], torch.ones(1))
    assert (rows.share.sum(-1)[~rows.has_scores] == 0).all()


def test_what_the_network_cannot_name_has_no_share_and_chains_never_cross_into_the_next_text() -> None:
    batches = Batches([answer(0, 600, 0), answer(0, 600, 1000)], np.arange(0, 1600, 2, dtype=np.int32), 4000)
    rows = batches.at(0)
    named = rows.share[..., 0] > 0
    assert (rows.top[..., 0][named] * 2 == rows.ids[named] + 1).all()
    assert 0 < named.sum() < rows.has_scores.sum()
    starts = (rows.ids == 1) | (rows.ids == 1001)  # the token behind a text's first place
    for row, place in starts.nonzero().tolist():
        assert not rows.has_scores[row, place : place + DEPTH - 1].any()
        assert place == 0 or not rows.has_scores[row, place - 1]


def test_the_loss_falls_as_a_network_learns_and_is_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches_module, "ROW", 64)
    network = module()
    random = np.random.default_rng(0)
    text = np.resize(np.arange(_VOCAB, dtype=np.int32), 1200)
    top_ids = np.stack([text[1:], random.integers(0, _VOCAB, 1199).astype(np.int32)], 1)
    top_logits = np.tile(np.array([4.0, 0.0], np.float32), (1199, 1))
    states = random.standard_normal((1199, _NUM_STATES * _SIZE)).astype(np.float16)
    answer = RecordedAnswer(text[:0], text, states, top_ids, top_logits)
    batches = Batches([answer], np.arange(_VOCAB, dtype=np.int32), _VOCAB)
    loss_at = ChainLoss(network, batches, torch.ones(_NUM_STATES * _SIZE), False, chain_reads)
    first = loss_at(0)
    assert float(first.detach()) == float(loss_at(0).detach())
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    for step in range(30):
        optimizer.zero_grad()
        loss_at(step).backward()
        optimizer.step()
    assert float(loss_at(0).detach()) < 0.8 * float(first.detach())


@pytest.mark.parametrize("num_ids", [_VOCAB, 10])
def test_a_sampled_head_stands_for_the_whole(num_ids: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mtp_training, "_MOST_OTHERS", 20)
    random = np.random.default_rng(0)
    rows = 0.1 * random.standard_normal((_VOCAB, _SIZE)).astype(np.float32)
    ids = np.sort(random.permutation(_VOCAB)[:num_ids]).astype(np.int32)
    head, states = SampledHead(rows, ids), torch.randn(5, _SIZE)
    whole = states @ torch.from_numpy(rows).T
    learned = head(states)
    assert learned.shape == (5, num_ids + min(20, _VOCAB - num_ids))
    assert torch.allclose(learned[:, :num_ids], whole[:, torch.from_numpy(ids).long()], atol=1e-6)
    assert torch.allclose(learned.logsumexp(-1), whole.logsumexp(-1), atol=0.1)
    assert torch.allclose(head.eval()(states), whole, atol=1e-6)
    assert not any(parameter.requires_grad for parameter in head.parameters())


MOMENTS = "", "/exp_avg", "/exp_avg_sq"


class Copier(torch.nn.Linear):
    """A small network, and the loss of a step: it learns to copy its input."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(8, 8)

    def loss_at(self, step: int) -> torch.Tensor:
        rows = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        return torch.nn.functional.mse_loss(self(rows), rows)


def test_training_that_broke_off_ends_with_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_EVERY_S", 0.0)
    lines: list[str] = []

    def trained(path: Path, breaks_at: int | None, owner: bytes = bytes(32)) -> dict[str, torch.Tensor]:
        module = Copier()
        plan = training.TrainingPlan(6, float("inf"), owner, path, lines.append)
        count = itertools.count(1)

        def on_loss(step: int, total: int, loss: float) -> None:
            if next(count) == breaks_at:
                raise KeyboardInterrupt

        training.train(module, module.loss_at, plan, on_loss)
        return module.state_dict()

    whole = trained(tmp_path / "whole", None)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "broken", 4)
    kept = training._CHECKPOINT.read(tmp_path / "broken", bytes(32))
    resumed = trained(tmp_path / "broken", None)
    assert all(torch.allclose(whole[name], resumed[name], atol=1e-6) for name in whole)
    assert lines == []
    last = max(kept)  # all before it are sound
    for spoilt in (
        {"progress": np.full(3, np.nan)},
        {"progress": np.array([0.5, 0.0, 0.0])},
        {"progress": np.array([1e9, 0.0, 0.0])},
        {"progress": np.zeros((3, 1))},
        {last: kept[last] * np.nan},
        {last: kept[last][..., :1]},
        {last: kept[last] - 1},
    ):
        training._CHECKPOINT.write(tmp_path / "broken", bytes(32), kept | spoilt)
        again = trained(tmp_path / "broken", None)  # from the beginning
        assert all(torch.equal(whole[name], again[name]) for name in whole)
        assert lines.pop() == f"'{tmp_path / 'broken'}' holds no sound state of this network: training starts over."
    trained(tmp_path / "broken", None, b"another plan".ljust(32))
    assert lines == [f"'{tmp_path / 'broken'}' belongs to another plan of training: training starts over."]


def test_a_checkpoint_is_as_large_as_its_network_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_MAX_OTHER_BYTES", 2000)
    lines: list[str] = []
    plan = training.TrainingPlan(2, float("inf"), bytes(32), tmp_path / "kept", lines.append)
    module = torch.nn.Linear(40, 50)
    squares = {name: each.detach().numpy() ** 2 for name, each in module.named_parameters()}
    arrays = {f"{name}{part}": each for name, each in squares.items() for part in MOMENTS}
    training._CHECKPOINT.write(plan.checkpoint, bytes(32), arrays | {"progress": np.array([2.0, 7.0, 0.0])})
    assert plan.checkpoint.stat().st_size > 3 * 4 * 40 * 50
    assert training.train(module, lambda step: torch.zeros(()), plan, lambda *done: None)[0] == 2
    assert lines == []
    training._CHECKPOINT.write(plan.checkpoint, bytes(32), arrays | {"more": np.zeros(250)})
    training.train(module, lambda step: module.weight.sum(), plan, lambda *done: None)
    assert lines == [f"'{plan.checkpoint}' is not a file of a network in training: training starts over."]


def test_a_loss_that_is_no_number_ends_training_in_one_sentence(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2)
    plan = training.TrainingPlan(9, float("inf"), bytes(32), tmp_path / "kept")
    with pytest.raises(ExportError, match=r"The loss is no number at step 1: erase '.*kept' or, where"):
        training.train(module, lambda step: module.weight.sum() * float("nan"), plan, lambda *done: None)
