"""`shapes-vlm`: eyes for SmolLM2-135M-Instruct, trained on drawings of coloured shapes.

It is the demo model for pictures in conversations. No service imports this package: they load `weights/` beside
SmolLM2's own weights, in LLaVA's architecture.
"""
