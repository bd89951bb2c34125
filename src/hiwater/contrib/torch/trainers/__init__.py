"""Callbacks that log a few numbers of memory for each phase of a training: `hiwater.contrib.torch.trainers.lightning`,
`.pytorch_lightning`, `.huggingface`.

Each module needs its library. Only programs that use it import it.
"""
