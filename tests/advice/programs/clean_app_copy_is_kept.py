"""Finds: nothing."""

import numpy as np


class Editor:
    def __init__(self, size):
        picture = np.ones(size)
        self.picture = picture
        self.original = picture.copy()

    def blank(self):
        self.picture[:] = 0


editor = Editor(3_000_000)
editor.blank()
print(editor.original.sum())
