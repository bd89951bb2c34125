"""The arguments of `hiwater run`, and how a command line is split into hiwater's and the program's.

It is parsed by hand, for two reasons. Everything after the script, `-m MOD` or `-c CODE` belongs to the program, also
options with our names, which argparse cannot guarantee. And argparse must not be loaded before the program starts.
"""

from __future__ import annotations

import hiwater

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hiwater._os.settings import Settings

# The formats `hiwater report` knows: shown at once on stdout, or written beside the capture under this suffix.
SHOWN_FORMATS = ("text", "tree", "table", "markdown", "timeline")
FILE_SUFFIXES = {
    "json": ".json", "collapsed": ".collapsed", "svg": ".svg", "html": ".html", "speedscope": ".speedscope.json",
    "pprof": ".pb.gz", "csv": ".csv", "png": ".png", "pdf": ".pdf",
}  # fmt: skip

USAGE = "usage: hiwater run [options] (script.py | folder | archive.pyz | program | - | -m MOD | -c CODE) [arguments …]"
HELP = f"""\
{USAGE}

Runs a program as `python` would and records every allocation. At the end it prints on stderr the peaks, the line with
the most memory at the peak, what happened to other processes, and the path of the capture. The exit code is the
program's own. If there is no file of this name, hiwater searches PATH for the program.

options:
  -o, --output FILE   the capture; %p is the process id, %h the host, %r the rank (0 outside a job), %% a percent sign
                      (default: hiwater-<program>.%p.hiw in the current folder)
  --sample SIZE       record every block of SIZE and more, and a random sample of the smaller ones: this costs little,
                      and figures have a standard error; 64KiB is a good choice
  --limit SIZE        limit the program's address space, as `ulimit -v` does: the program gets a MemoryError
                      before the OOM killer runs. hiwater's tables do not count. Children inherit the limit. Not for
                      CUDA, which reserves far more address space than it uses
  --format FORMAT     make a report when the program has ended: {", ".join(SHOWN_FORMATS)} on stdout;
                      {", ".join(FILE_SUFFIXES)} in a file next to the capture
  --open              open the report; without --format, the page (html)
  -h                  show these options
  --help              show all options

more options:
  --sample-seed N     make the sample repeatable
  --last-words FILE   when the program comes near to a limit of its memory, write to FILE how near, and which line of
                      code has most: FILE survives the OOM killer. The default is /dev/termination-log in a pod of
                      Kubernetes; an empty FILE turns it off
  --mode MODE         the capture's permissions in octal, as for chmod (default: 600, for you alone: a capture contains
                      arguments and file names)
  --own PACKAGE       an installed package whose code is yours, so that a report can begin with a line of it; may be
                      repeated. The package that is run, and packages installed from a folder (pip install .), are yours
                      anyway
  --no-children       do not record the Python processes that the program starts; by default their captures are in the
                      folder FILE.d, which `hiwater report FILE` shows with this one
  --holders           at the end, search for what holds the program's objects: `hiwater holders FILE` shows it
  --snapshot-every T  note what is live after each interval T (10s, 5min): `hiwater leaks FILE` then shows what grows,
                      also in a program without markers, and `hiwater report FILE --kept` shows ages
  --native            record the native frames, too: which C, C++, Rust or Fortran functions allocated, between your
                      line and the allocator. `hiwater report FILE --frames mixed` shows them
  --standby           record nothing until `hiwater attach` requests it. Python processes that the program starts are in
                      standby, too: they have HIWATER=standby in their environment
  --no-argv           leave the program's arguments out of the capture
  --no-device-history
                      do not record torch's history of GPU memory (it is recorded by default if a GPU is in use)
  -q, --quiet         print warnings only
  -v, --verbose       print what is being done

settings: HIWATER_OUTPUT, HIWATER_SAMPLE, HIWATER_SAMPLE_SEED, HIWATER_LIMIT, HIWATER_LAST_WORDS, HIWATER_MODE,
HIWATER_OWN, HIWATER_CHILDREN=0, HIWATER_ARGV=0, HIWATER_DEVICE_HISTORY=0, HIWATER_HOLDERS, HIWATER_NATIVE,
HIWATER_SNAPSHOT_EVERY, HIWATER_FORMAT, HIWATER_OPEN, HIWATER_QUIET, HIWATER_VERBOSE in the environment, or output,
sample, sample_seed, limit, last_words, mode, own, children, argv, device_history, holders, native, snapshot_every,
format, open, quiet, verbose under [tool.hiwater] in pyproject.toml; the command line comes first.

exit codes: the program's own; 2 wrong options, 125 hiwater could not start, 126 Python cannot run the program,
127 not found.

examples:
  hiwater run train.py --epochs 3
  hiwater run -o run.%r.hiw -m package.tool --fast
  hiwater run --sample 64KiB server.py
  hiwater run --format tree -c 'import json; json.dumps(list(range(10**6)))'
"""

_KINDS = {"-m": "module", "-c": "command"}
HELP_FLAGS = {"-h": ("usual", True), "--help": ("help", True)}

WITH_VALUE = {
    "-o": "output",
    "--output": "output",
    "--format": "format",
    "--sample": "sample",
    "--sample-seed": "sample_seed",
    "--last-words": "last_words",
    "--limit": "limit",
    "--mode": "mode",
    "--own": "own",
    "--snapshot-every": "snapshot_every",
}
FLAGS = {
    "--children": ("children", True),
    "--no-children": ("children", False),
    "--holders": ("holders", True),
    "--native": ("native", True),
    "--standby": ("standby", True),
    "--no-argv": ("argv", False),
    "--device-history": ("device_history", True),
    "--no-device-history": ("device_history", False),
    "--open": ("open", True),
    "-q": ("quiet", True),
    "--quiet": ("quiet", True),
    "-v": ("verbose", True),
    "--verbose": ("verbose", True),
    **HELP_FLAGS,
}


class ProgramArguments:
    """A program and the options before it. `kind` is "script", "module" or "command"; `program` is its path, name or
    code."""

    verb = ""
    with_value: Mapping[str, str] = {}
    """For each option the name under which `put()` gets its value."""
    flags: Mapping[str, tuple[str, bool]] = {}
    """The same for options without a value, and what `put()` gets."""
    where_others_go = ""
    """For the error about an unknown option."""

    def __init__(self) -> None:
        self.kind = "script"
        self.program = ""
        self.arguments: list[str] = []
        self.help = False
        self.usual = False

    def put(self, name: str, value: object) -> None:
        """Note an option. Raises UsageError."""
        setattr(self, name, value)

    def help_of(self, text: str) -> str | None:
        """The part of the help text that was requested; None if a program is to be run."""
        return text if self.help else usual_options(text) if self.usual else None

    def read(self, words: Sequence[str]) -> bool:
        """Read the command line. False if help was requested, or there is no program. Raises UsageError."""
        rest = list(words)
        while rest:
            word = rest.pop(0)
            if word == "--":
                self._note("script", word, rest)
                break
            if word == "-" or not word.startswith("-"):
                self._note("script", word, [word, *rest])
                break
            if word[:2] in _KINDS:
                attached = [word[2:]] if len(word) > 2 else []
                self._note(_KINDS[word[:2]], word[:2], [*attached, *rest])
                break
            self._take_option(word, rest)
            if self.help or self.usual:
                return False
        return bool(self.program) or self.kind == "command"

    def _note(self, kind: str, option: str, words: list[str]) -> None:
        if not words:
            raise hiwater.errors.UsageError(f"{option} needs something after it", f"see `hiwater {self.verb} --help`")
        self.kind, self.program, *self.arguments = kind, *words

    def _take_option(self, word: str, rest: list[str]) -> None:
        """Note one option of ours, and remove its value from `rest`."""
        name, equals, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        if name in self.with_value:
            if not equals and not rest:
                raise hiwater.errors.UsageError(f"{name} needs a value", f"see `hiwater {self.verb} --help`")
            self.put(self.with_value[name], value if equals else rest.pop(0))
        elif name in self.flags and not equals:
            self.put(*self.flags[name])
        else:
            from hiwater.cli.suggestions import unknown_option

            known = [*self.with_value, *self.flags]
            raise unknown_option(word, known, f"hiwater {self.verb}", self.where_others_go)


def usual_options(text: str) -> str:
    """A help text without what stands under "more options"."""
    before, heading, rest = text.partition("more options:\n")
    more, _, after = rest.partition("\n\n")
    count = sum(line.startswith("  -") for line in more.splitlines())
    return f"{before}{heading}  --help shows {count} more\n\n{after}"


class RunArguments(ProgramArguments):
    """The program and the options."""

    verb, with_value, flags = "run", WITH_VALUE, FLAGS
    where_others_go = "the program's own options go after its name, python's before `-m hiwater`"

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.output = settings.text("output")
        self.format = settings.text("format")
        self.limit = settings.text("limit")
        self.last_words = settings.text("last_words")
        self.mode = settings.text("mode", "600") or "600"
        self.sample = settings.text("sample")
        self.sample_seed = settings.text("sample_seed")
        self.argv = settings.flag("argv", True)
        self.children = settings.flag("children", True)
        self.device_history = settings.flag("device_history", True)
        self.open = settings.flag("open", False)
        self.holders = settings.flag("holders", False)
        self.native = settings.flag("native", False)
        self.snapshot_every = settings.text("snapshot_every")
        self.snapshot_seconds = 0.0
        self.own = settings.names("own")
        self.standby = False
        self.quiet = settings.flag("quiet", False)
        self.verbose = settings.flag("verbose", False)

    def put(self, name: str, value: object) -> None:
        if name == "own":
            self.own += str(value).replace(",", " ").split()
        else:
            super().put(name, value)


def parse(words: Sequence[str], settings: Settings) -> RunArguments:
    """Parse the command line `words`. Raises UsageError with a remedy."""
    result = RunArguments(settings)
    has_program = result.read(words)
    if result.help or result.usual:
        return result
    if not has_program:
        raise hiwater.errors.UsageError(
            "there is no program to run", "give a script, -m MOD or -c CODE, as in `hiwater run script.py`"
        )
    _check_format(result)
    for size in (result.sample, result.limit):
        if size is not None:
            from hiwater._os.sizes import parse_size  # few ask for it

            parse_size(size)  # checked before the program is searched
    permissions(result.mode)
    if result.snapshot_every is not None:
        from hiwater._os.durations import parse_duration  # few ask for it

        result.snapshot_seconds = parse_duration(result.snapshot_every)
    if result.sample_seed is not None and not (result.sample_seed.isdecimal() and len(result.sample_seed) <= 20):
        raise hiwater.errors.UsageError(
            f"--sample-seed {result.sample_seed!r} is not a number of 64 bits", "write a whole number above 0"
        )
    return result


def permissions(mode: str) -> int:
    """The permissions for `mode`, such as "640" or "0640". Raises UsageError if it is no mode, or excludes the
    owner."""
    if mode.isascii() and mode.isdigit() and len(mode) <= 4 and not set(mode) & {"8", "9"}:
        bits = int(mode, 8)
        if bits <= 0o777 and bits & 0o600 == 0o600:
            return bits
    raise hiwater.errors.UsageError(
        f"--mode {mode!r} is not a file mode", "write it in octal, with the owner's 6 or 7, as in 640"
    )


def _check_format(result: RunArguments) -> None:
    known = (*SHOWN_FORMATS, *FILE_SUFFIXES)
    if result.format is not None and result.format not in known:
        raise hiwater.errors.UsageError(f"unknown format {result.format!r}", f"choose one of {', '.join(known)}")
    if result.open and result.format is None:
        result.format = "html"
    if result.open and result.format in SHOWN_FORMATS:
        raise hiwater.errors.UsageError(
            f"--open needs a report that is a file, and {result.format} is not", "leave out one of the two"
        )
