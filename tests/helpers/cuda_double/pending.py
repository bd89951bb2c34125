"""Calls that fall due in the middle of a function, as the interpreter's pending calls and signal handlers do."""

import sys


class At:
    """Calls `work` once, at the `number`th place of `function` and of what the double names with `place`, on the thread
    that runs it.

    The places are those before each instruction of the function (a trace function for opcodes) and those inside the C
    functions that it calls. `places` says afterwards how many there were.
    """

    def __init__(self, function, number, work, bindings=None):
        self._code = function.__code__
        self._number = number
        self._work = work
        self._bindings = bindings
        self.places = 0
        self.came = None
        """Where it fell due: a line of the function, or the name of a place in a C function."""

    def __enter__(self):
        self._before = sys.gettrace()
        if self._bindings is not None:
            self._bindings.place = self._pass
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_):
        sys.settrace(self._before)
        if self._bindings is not None:
            self._bindings.place = lambda name: None

    def _trace(self, frame, event, _):
        if frame.f_code is not self._code:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self._pass(frame.f_lineno)
        return self._trace

    def _pass(self, where):
        if self.places == self._number:
            self.came = where
            trace = sys.gettrace()
            sys.settrace(None)
            try:
                self._work()
            finally:
                sys.settrace(trace)
        self.places += 1
