"""`shapes-sd`: Stable Diffusion in miniature, trained on synthetic pictures.

It is the demo model of the image service. No service imports this package: they load `weights/` like any other
diffusers pipeline.
"""
