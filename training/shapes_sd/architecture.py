"""The four networks of the pipeline and its scheduler, with random weights."""

from __future__ import annotations

from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

LATENT_SIDE = 16  # for a picture of 64 pixels
LATENT_CHANNELS = 4
TEXT_WIDTH = 128
MAX_TOKENS = 48  # per prompt, start and end included


def autoencoder() -> AutoencoderKL:
    """Returns the autoencoder: pictures [n, 3, 64, 64] from -1 to 1, to latents [n, 4, 16, 16] and back."""
    return AutoencoderKL(
        sample_size=64,
        latent_channels=LATENT_CHANNELS,
        block_out_channels=(16, 32, 64),
        layers_per_block=1,
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        norm_num_groups=1,  # more groups would lose nearly all of a plain picture's brightness
        mid_block_add_attention=False,
    )


def text_encoder(tokenizer: CLIPTokenizer) -> CLIPTextModel:
    """Returns the text encoder: tokens [n, 48] to states [n, 48, 128]."""
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=TEXT_WIDTH,
            intermediate_size=2 * TEXT_WIDTH,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=MAX_TOKENS,
            projection_dim=TEXT_WIDTH,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def denoiser() -> UNet2DConditionModel:
    """Returns the denoiser: noisy latents [n, 4, 16, 16], times [n], states [n, 48, 128] to velocities [n, 4, 16, 16].

    Cross-attention runs at 8 x 8 and 4 x 4 only: at 16 x 16 it takes a third of the time and improves nothing here.
    """
    return UNet2DConditionModel(
        sample_size=LATENT_SIDE,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        block_out_channels=(64, 128, 128),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=TEXT_WIDTH,
        attention_head_dim=4,
        norm_num_groups=8,
    )


def scheduler() -> DDIMScheduler:
    """Returns the noise schedule of training, which is also the default scheduler for sampling.

    The last noise step keeps little of the picture (0.0002 of its variance), so plain backgrounds get their colour.
    The betas alone achieve that, and every scheduler of diffusers understands betas.
    """
    return DDIMScheduler(
        num_train_timesteps=1000,
        beta_schedule="scaled_linear",
        beta_start=0.00085,
        beta_end=0.02,
        prediction_type="v_prediction",
        timestep_spacing="trailing",
        clip_sample=False,
        set_alpha_to_one=True,
        steps_offset=1,  # the pipeline expects 1; "trailing" does not use it
    )
