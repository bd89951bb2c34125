"""The names of native functions, outside of the recorded program: from the files' own tables of symbols."""
