"""The `torch` runtime: safetensors models through the model definitions of transformers."""
