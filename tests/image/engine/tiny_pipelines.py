"""Pipelines of the real families with random weights and a few thousand parameters, written as folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

from tests.late import late

diffusers = late("diffusers")
torch = late("torch")
transformers = late("transformers")

SIDE = 32  # the models' native size in pixels, for families without a fixed size
TOKENS = 40  # context length of CLIP's encoders, start and end included
WIDTH = 32
WIDER = 48  # width of XL's second encoder, which is wider in the real XL too


def clip_tokenizer() -> transformers.CLIPTokenizer:
    """Returns a tokenizer with a token for every byte."""
    alphabet = sorted(ByteLevel.alphabet())
    marks = ["<|startoftext|>", "<|endoftext|>"]
    tokens = [*alphabet, *(letter + "</w>" for letter in alphabet), *marks]
    return transformers.CLIPTokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[],
        unk_token=marks[1],
        bos_token=marks[0],
        eos_token=marks[1],
        pad_token=marks[1],
        model_max_length=TOKENS,
    )


def clip(tokenizer: transformers.CLIPTokenizer, *, projection: bool, width: int = WIDTH) -> Any:
    config = transformers.CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=width,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=TOKENS,
        projection_dim=width,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return (transformers.CLIPTextModelWithProjection if projection else transformers.CLIPTextModel)(config)


def t5(width: int) -> tuple[transformers.T5Tokenizer, transformers.T5EncoderModel]:
    pieces = ["<pad>", "</s>", "<unk>", "▁", *map(chr, range(33, 127))]
    tokenizer = transformers.T5Tokenizer(
        vocab=[(piece, -float(rank)) for rank, piece in enumerate(pieces)], extra_ids=0
    )
    config = transformers.T5Config(
        vocab_size=len(tokenizer), d_model=width, d_kv=16, d_ff=WIDTH, num_layers=1, num_heads=2
    )
    return tokenizer, transformers.T5EncoderModel(config)


def vae(channels: int, **more: Any) -> diffusers.AutoencoderKL:
    """Returns an autoencoder that reduces each side to a quarter."""
    return diffusers.AutoencoderKL(
        block_out_channels=(8, 8, 16),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        latent_channels=channels,
        layers_per_block=1,
        norm_num_groups=4,
        sample_size=SIDE,
        **more,
    )


def unet(**more: Any) -> diffusers.UNet2DConditionModel:
    return diffusers.UNet2DConditionModel(
        sample_size=SIDE // 4,
        in_channels=4,
        out_channels=4,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
        norm_num_groups=4,
        **more,
    )


def ddim() -> diffusers.DDIMScheduler:
    return diffusers.DDIMScheduler(
        beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012, clip_sample=False, steps_offset=1
    )


def stable_diffusion() -> diffusers.StableDiffusionPipeline:
    tokenizer = clip_tokenizer()
    return diffusers.StableDiffusionPipeline(
        vae=vae(4),
        text_encoder=clip(tokenizer, projection=False),
        tokenizer=tokenizer,
        unet=unet(cross_attention_dim=WIDTH),
        scheduler=ddim(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def stable_diffusion_xl() -> diffusers.StableDiffusionXLPipeline:
    tokenizer = clip_tokenizer()
    return diffusers.StableDiffusionXLPipeline(
        vae=vae(4),
        text_encoder=clip(tokenizer, projection=False),
        text_encoder_2=clip(tokenizer, projection=True, width=WIDER),
        tokenizer=tokenizer,
        tokenizer_2=clip_tokenizer(),
        unet=unet(
            cross_attention_dim=WIDTH + WIDER,
            addition_embed_type="text_time",
            addition_time_embed_dim=8,
            projection_class_embeddings_input_dim=6 * 8 + WIDER,
        ),
        scheduler=ddim(),
        add_watermarker=False,
    )


def stable_diffusion_3() -> diffusers.StableDiffusion3Pipeline:
    tokenizer = clip_tokenizer()
    third, encoder = t5(2 * WIDTH)
    return diffusers.StableDiffusion3Pipeline(
        transformer=diffusers.SD3Transformer2DModel(
            sample_size=SIDE // 4,
            patch_size=2,
            in_channels=16,
            out_channels=16,
            num_layers=1,
            attention_head_dim=8,
            num_attention_heads=4,
            joint_attention_dim=2 * WIDTH,
            caption_projection_dim=32,
            pooled_projection_dim=2 * WIDTH,
            pos_embed_max_size=32,
        ),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae(16, shift_factor=0.06, use_quant_conv=False, use_post_quant_conv=False),
        text_encoder=clip(tokenizer, projection=True),
        tokenizer=tokenizer,
        text_encoder_2=clip(tokenizer, projection=True),
        tokenizer_2=clip_tokenizer(),
        text_encoder_3=encoder,
        tokenizer_3=third,
    )


def flux() -> diffusers.FluxPipeline:
    tokenizer = clip_tokenizer()
    second, encoder = t5(WIDTH)
    return diffusers.FluxPipeline(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=vae(4, shift_factor=0.1, use_quant_conv=False, use_post_quant_conv=False),
        text_encoder=clip(tokenizer, projection=False),
        tokenizer=tokenizer,
        text_encoder_2=encoder,
        tokenizer_2=second,
        transformer=diffusers.FluxTransformer2DModel(
            in_channels=16,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=WIDTH,
            pooled_projection_dim=WIDTH,
            axes_dims_rope=(4, 4, 8),
            guidance_embeds=True,
        ),
    )


FAMILIES = {
    "StableDiffusionPipeline": stable_diffusion,
    "StableDiffusionXLPipeline": stable_diffusion_xl,
    "StableDiffusion3Pipeline": stable_diffusion_3,
    "FluxPipeline": flux,
}


def saved(family: str, folder: Path) -> Path:
    """Writes a pipeline, always with the same weights."""
    torch.manual_seed(0)
    FAMILIES[family]().save_pretrained(folder, safe_serialization=True)
    return folder
