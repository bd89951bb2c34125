"""Callbacks that log a few numbers of memory for each phase of a training: `hiwater.contrib.torch.trainers.lightning`, `.pytorch_lightning`, `.huggingface`.

Each module needs its library, and is imported by whoever uses it.
"""
