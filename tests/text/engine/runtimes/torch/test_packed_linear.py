"""Linear layers packed for a CPU compute the same as before, packed alone or several as one."""

from __future__ import annotations

from typing import Any

from tests.late import late

packed_linear = late("services.text.engine.runtimes.torch.packed_linear")
torch = late("torch")


def new_layer(*, bias: bool) -> Any:
    class Layer(torch.nn.Module):
        """Layers as in a model definition: three share one input, two share another, one is alone."""

        def __init__(self) -> None:
            super().__init__()
            sizes = {"q_proj": 64, "k_proj": 16, "v_proj": 16, "gate_proj": 40, "up_proj": 40}
            for name, size in sizes.items():
                setattr(self, name, torch.nn.Linear(32, size, bias=bias))
            self.o_proj = torch.nn.Linear(64, 32, bias=bias)

        def forward(self, rows: torch.Tensor, other: torch.Tensor) -> list[torch.Tensor]:
            query = self.q_proj(rows)
            return [
                *(query, self.k_proj(rows), self.v_proj(rows), self.o_proj(query)),
                *(self.up_proj(other), self.gate_proj(other), self.gate_proj(rows)),
            ]

    return Layer()


def test_packed_layers_compute_the_same() -> None:
    generator = torch.Generator().manual_seed(0)
    for bias in (False, True):
        layer = new_layer(bias=bias).to(torch.bfloat16).requires_grad_(False)
        for number in (1, 5):
            inputs = [torch.randn(1, number, 32, generator=generator).bfloat16() for _ in range(2)]
            before = layer(*inputs)
            packed_linear.pack_linears(layer)
            for _ in range(2):
                for found, expected in zip(layer(*inputs), before, strict=True):
                    torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)
            layer = new_layer(bias=bias).to(torch.bfloat16).requires_grad_(False)
        packed_linear.pack_linears(layer)
        assert isinstance(layer.k_proj, packed_linear.PartOfLinear) == packed_linear.computes_bfloat16()


def test_joint_results_are_not_reused() -> None:
    layer = new_layer(bias=False).to(torch.bfloat16).requires_grad_(False)
    packed_linear.pack_linears(layer)
    first, second = (torch.full((1, 1, 32), value).bfloat16() for value in (1.0, 2.0))
    for name in ("q_proj", "k_proj", "v_proj"):
        getattr(layer, name)(first)
    again = [getattr(layer, name)(second) for name in ("k_proj", "q_proj", "v_proj")]
    expected = [2 * getattr(layer, name)(first) for name in ("k_proj", "q_proj", "v_proj")]
    for found, wanted in zip(again, expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=0.02, rtol=0.02)


def test_layers_in_32_bits_are_left_alone() -> None:
    layer = new_layer(bias=False)
    packed_linear.pack_linears(layer)
    assert type(layer.q_proj) is torch.nn.Linear
