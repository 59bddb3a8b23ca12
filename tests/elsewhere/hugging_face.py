"""GPT-2 and ViT of transformers from small configurations: random weights, nothing is downloaded."""

from __future__ import annotations

from torch import nn


def gpt2() -> nn.Module:
    """Token indices (batch, up to 16) to logits; the last layer's weights are those of the embedding."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 40, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 4}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, use_cache=False))


def vit() -> nn.Module:
    """Images (batch, 3, 32, 32) to 5 classes."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    return ViTForImageClassification(ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=5))
