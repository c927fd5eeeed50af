"""Initial weights for the autoencoder: it averages 4 x 4 pixels and repeats the averages.

From random weights, learning colours takes most of the training. From these weights, only edges remain to learn.

Red, green and blue have their own channels, each once as it is and once negated: for the activation,
silu(x) - silu(-x) = x, so the pair passes it unchanged. Two more channels hold a large constant: they dominate the
statistics of the normalisations, so those change next to nothing either. The residual branches start at 0.
"""

from __future__ import annotations

import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn

_COLOURS = 3
_CONSTANTS = (2 * _COLOURS, 2 * _COLOURS + 1)
_CARRIED = 2 * _COLOURS + 2  # channels: the colours, their negatives, the constants
_CONSTANT = 4.0
_FAINT = 0.3  # scale of the remaining channels, which training may use freely
_QUIET = -5.0  # logarithm of the latents' variance: more noise would drown the edges


@torch.no_grad()
def start_averaging(network: AutoencoderKL) -> None:
    """Sets the weights of an autoencoder with four latents, two halvings and one group per normalisation."""
    for name, module in network.named_modules():
        if name.endswith(".conv2"):
            module.weight.zero_()
            module.bias.zero_()
        elif name.endswith((".conv_shortcut", "samplers.0.conv")):
            _carry(module, averaging=".downsamplers." in name)
    for ends in (network.encoder, network.decoder):
        _split(ends.conv_in)
        _join(ends.conv_out, ends.conv_norm_out.num_channels)
    _pass(network.quant_conv)
    _pass(network.post_quant_conv)
    network.quant_conv.bias[network.config.latent_channels :] = _QUIET
    network.quant_conv.weight[network.config.latent_channels :] *= 0.1


def _carry(conv: nn.Conv2d, *, averaging: bool) -> None:
    """Passes the carried channels on unchanged, or averages them 2 x 2."""
    conv.weight.mul_(_FAINT)
    conv.weight[:_CARRIED] = 0
    conv.bias[:_CARRIED] = 0
    for channel in range(_CARRIED):
        _tap(conv.weight[channel, channel], averaging)


def _split(conv: nn.Conv2d) -> None:
    """Maps three colours, or the first three latents, to the carried channels."""
    conv.weight.mul_(_FAINT)
    conv.weight[:_CARRIED] = 0
    conv.bias[:_CARRIED] = 0
    for colour in range(_COLOURS):
        _tap(conv.weight[colour, colour], averaging=False)
        conv.weight[colour + _COLOURS, colour] = -conv.weight[colour, colour]
    for channel, sign in zip(_CONSTANTS, (1, -1), strict=True):
        conv.bias[channel] = sign * _CONSTANT


def _join(conv: nn.Conv2d, channels: int) -> None:
    """Maps pairs that were normalised over `channels` channels to three colours or three latents."""
    spread = (2 * _CONSTANT**2 / channels) ** 0.5
    conv.weight.mul_(_FAINT)
    conv.weight[:_COLOURS] = 0
    conv.bias.zero_()
    for colour in range(_COLOURS):
        _tap(conv.weight[colour, colour], averaging=False)
        conv.weight[colour, colour] *= spread
        conv.weight[colour, colour + _COLOURS] = -conv.weight[colour, colour]


def _pass(conv: nn.Conv2d) -> None:
    for channel in range(_COLOURS):
        conv.weight[channel] = 0
        conv.weight[channel, channel] = 1
    conv.bias.zero_()


def _tap(kernel: Tensor, averaging: bool) -> None:
    """Sets a kernel to its centre alone, or to the average of the four pixels that become one."""
    kernel.zero_()
    if averaging:
        kernel[:2, :2] = 0.25
    else:
        kernel[kernel.shape[0] // 2, kernel.shape[1] // 2] = 1
