"""Runs a program through hiwater's launcher alone, which records nothing: `python launch.py (script | -m MOD | -c
CODE) …`."""

from __future__ import annotations

import sys

from hiwater.errors import HiwaterError
from hiwater.recording import launcher, target


def main() -> int:
    """Find, run and conclude as `hiwater run` does."""
    words = sys.argv[1:]
    try:
        if words[0] == "-m":
            program = target.module(words[1], words[2:])
        elif words[0] == "-c":
            program = target.command(words[1], words[2:])
        else:
            program = target.script(words[0], words[1:])
    except HiwaterError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except SyntaxError as error:
        ending: BaseException | None = error
        error.__traceback__ = None
    else:
        main_module = launcher.prepare(program, len(words))
        ending = launcher.launch(program, main_module)
        del main_module
    return launcher.conclude(ending)


if __name__ == "__main__":
    sys.exit(main())
