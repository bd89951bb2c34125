"""Random programs that allocate on a simulated device, and the figures of their lines worked out the slow way: a
trace function notes all that happens, and each figure is looked for in the whole list of notes."""

import linecache
import sys

KIB = 1 << 10


class Program:
    """Three functions that call one another, one of them a generator function; the same each time it runs."""

    def __init__(self, choice, allocator):
        self._allocator = allocator
        self._levels = []
        source = "\n".join(
            line for number in range(3) for line in self._function(choice, number, generates=number == 2)
        )
        name = f"<program {id(self)}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        self._names = {"take": self.take, "give": self.give}
        exec(compile(source, name, "exec"), self._names)
        self.functions = [self._names[f"f{number}"] for number in range(3)]
        self._seed = choice.random()
        self.reset()

    def reset(self):
        for block in self._allocator.live:
            self._allocator.free(block)
        self._held = []

    def take(self, size):
        self._held.append(self._allocator.malloc(size * KIB))
        self._levels.append(self._allocator.now("allocated_bytes"))

    def give(self):
        if self._held:
            self._allocator.free(self._held.pop(len(self._held) // 2))
            self._levels.append(self._allocator.now("allocated_bytes"))

    def run(self):
        for function in self.functions[:2]:
            function(2)

    @staticmethod
    def _function(choice, number, *, generates):
        yield f"def f{number}(depth):"
        for _ in range(choice.randint(3, 6)):
            size = choice.randint(1, 64)
            yield "    " + choice.choice(
                [
                    f"take({size})",
                    f"take({size}); give(); take(1)",
                    "give()",
                    "x = (lambda: take(3))(), (lambda: give())()",
                ]
                + [f"x = f{choice.randint(0, 1)}(depth - 1) if depth > 0 else None"]
                + (["x = sum(f2(depth - 1)) if depth > 0 else give()"] * 2)
            )
            if choice.random() < 0.2:
                yield "    try: take(9); int('x' if depth % 2 else '1')"
                yield "    except ValueError: give()"
            if generates and choice.random() < 0.7:
                yield f"    take({size}); yield {size}; take({size}); give()"
        yield "    yield 0" if generates else "    return depth"

    def run_naively(self):
        """{(function, line): (calls, growth, highest above a start, highest)}."""
        notes = self._notes()
        visits = _visits(notes)
        found = {}
        for name, line in {(visit.name, visit.line) for visit in visits}:
            mine = [visit for visit in visits if (visit.name, visit.line) == (name, line)]
            outermost = [visit for visit in mine if not any(other.holds(visit) for other in mine)]
            found[name, line] = (
                sum(visit.is_call for visit in mine),
                sum(visit.growth(notes) for visit in outermost),
                max(visit.above(notes) for visit in outermost),
                max(visit.highest(notes) for visit in mine),
            )
        return found

    def _notes(self):
        """(what, frame, function, line, allocated) in order."""
        codes = {function.__code__: function.__name__ for function in self.functions}
        nested = {
            constant: name
            for code, name in codes.items()
            for constant in code.co_consts
            if hasattr(constant, "co_code")
        }
        notes = []
        seen = set()
        alive = []  # frames, so that no address is used again

        def note(what, frame):
            alive.append(frame)
            seen.add(id(frame))
            name = codes.get(frame.f_code) or nested[frame.f_code]
            now = self._allocator.now("allocated_bytes")
            notes.append((what, id(frame), name, frame.f_lineno, now, frame.f_code in nested))

        def local(frame, event, _argument):
            if event in ("line", "return"):
                note(event, frame)
            return local

        def tracer(frame, event, _argument):
            if frame.f_code in codes or frame.f_code in nested:
                if event == "call" and id(frame) in seen:
                    note("resume", frame)
                return local
            if frame.f_code in (self.take.__func__.__code__, self.give.__func__.__code__):
                return leaving
            return None

        def leaving(frame, event, _argument):
            if event == "line":  # after each step of the allocator's
                notes.append(("level", 0, "", 0, self._allocator.now("allocated_bytes"), False))
            return leaving

        before = sys.gettrace()
        sys.settrace(tracer)
        try:
            self.run()
        finally:
            sys.settrace(before)
        return notes


class _Visit:
    """A stretch in which a frame is on a line: from a note to the next one of the same frame."""

    def __init__(self, name, line, first, last, is_call, earlier):
        self.name, self.line, self.first, self.last, self.is_call, self.earlier = (
            name,
            line,
            first,
            last,
            is_call,
            earlier,
        )

    def holds(self, other):
        return other is not self and self.first <= other.first and other.last <= self.last

    def growth(self, notes):
        return notes[self.last][4] - notes[self.first][4]

    def highest(self, notes):
        return max(note[4] for note in notes[self.first : self.last + 1])

    def above(self, notes):
        """What earlier stretches of the same call changed counts."""
        return sum(visit.growth(notes) for visit in self.earlier) + self.highest(notes) - notes[self.first][4]


def _visits(notes):
    visits = []
    stretches = {}  # of the line that a frame is on, by frame
    for first, (what, frame, name, line, _, is_nested) in enumerate(notes):
        if what not in ("line", "resume"):
            continue
        last = next(index for index in range(first + 1, len(notes)) if notes[index][1] == frame)
        if what == "line":
            stretches[frame] = []
        earlier = list(stretches.get(frame, []))
        visit = _Visit(name, line, first, last, what == "line" and not is_nested, earlier)
        stretches.setdefault(frame, []).append(visit)
        visits.append(visit)
    return visits
