"""`shapes-sd`: Stable Diffusion in miniature, trained on pictures that it draws itself.

It is the demo model of the image service. No service imports anything from here: they load `weights/` as they would
load any other pipeline of diffusers.
"""
