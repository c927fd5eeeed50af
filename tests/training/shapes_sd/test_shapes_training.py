"""Training resumes after an interruption with identical results, and its checkpoints contain no pickle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.late import late

checkpoint = late("training.shapes_sd.checkpoint")
torch = late("torch")
training = late("training.shapes_sd.training")

SEED = 3
STEPS = 12


def plan() -> training.Plan:
    return training.Plan(name="line", seed=SEED, steps=STEPS, rate=1e-2, falls_from=0.5, decay=0.9, warmup=4)


@pytest.fixture(autouse=True)
def saved_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "SAVE_SECONDS", -1.0)


def trained(state: Path, stop_at: int | None = None) -> Path:
    torch.manual_seed(SEED)
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))

    def loss_of(step: int) -> torch.Tensor:
        if step == stop_at:
            raise KeyboardInterrupt
        given = torch.from_numpy(training.step_rng(plan(), step).standard_normal((8, 3), dtype="float32"))
        return (network(given) - given.sum(dim=1, keepdim=True)).square().mean()

    return training.train(plan(), network, loss_of, state)


def content(path: Path) -> dict[str, torch.Tensor]:
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


@pytest.mark.parametrize("stop_at", [1, 5, 11])
def test_an_interruption_changes_nothing(tmp_path: Path, stop_at: int) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "halved").mkdir()
    whole = content(trained(tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "halved", stop_at)
    halved = content(trained(tmp_path / "halved"))
    assert whole.keys() == halved.keys()
    assert all(torch.equal(whole[name], halved[name]) for name in whole)
    assert any(name.startswith("optimizer.") for name in whole)


def test_a_finished_training_is_not_done_again(tmp_path: Path) -> None:
    path = trained(tmp_path)
    before = path.stat().st_mtime_ns
    assert trained(tmp_path, stop_at=0) == path
    assert path.stat().st_mtime_ns == before


def test_the_average_is_between_the_start_and_the_end(tmp_path: Path) -> None:
    path = trained(tmp_path)
    network = checkpoint.averaged(
        path, torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    )
    last = {name.removeprefix("network."): value for name, value in content(path).items() if "network" in name}
    assert not any(torch.equal(value, last[name]) for name, value in network.state_dict().items())
    assert not any(parameter.requires_grad for parameter in network.parameters())


def test_a_checkpoint_says_how_far_it_is_and_is_no_pickle(tmp_path: Path) -> None:
    path = trained(tmp_path)
    assert list(tmp_path.iterdir()) == [path]
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert header["__metadata__"] == {"step": "12"}


def test_the_rate_rises_stays_and_falls() -> None:
    rates = [plan().rate_at(step) for step in range(STEPS)]
    assert rates[:3] == pytest.approx([0.0025, 0.005, 0.0075])
    assert rates[3:7] == pytest.approx([0.01] * 4)
    assert rates[7:] == sorted(rates[7:], reverse=True)
    assert 0 < rates[-1] < 0.002


def test_every_step_has_a_chance_of_its_own() -> None:
    drawn = [training.step_rng(plan(), step).random() for step in (0, 1, 0)]
    assert drawn[0] == drawn[2] != drawn[1]
