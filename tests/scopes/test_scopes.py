"""Scopes: each scope's figures against a model that sees every value, for traces of nested, overlapping and repeated
scopes."""

import asyncio
import os
import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiwater.errors import MeterUnavailable
from hiwater.meters.base import Meter, Traits
from hiwater.scopes.manager import ScopeManager
from hiwater.scopes.scope import Peaks, Scope
from recording import rounds


class Tape(Meter):
    """A quantity with one mark, moved by hand."""

    def __init__(self, name="tape"):
        self.name = name
        self.value = self.mark = 0
        self.opened = 0
        self.intact = True

    @property
    def traits(self):
        return Traits(self.name, "a tape", "test")

    def open(self):
        self.opened += 1
        self.mark = self.value  # as beginning to count does

    def close(self):
        self.opened -= 1

    def move(self, value):
        self.value = value
        self.mark = max(self.mark, value)

    def now(self):
        return self.value

    def read_and_reset(self):
        peak, self.mark = self.mark, self.value
        intact, self.intact = self.intact, True
        return self.value, peak, intact


def manager_over(*tapes):
    by_name = {tape.name: tape for tape in tapes}
    return ScopeManager(create=by_name.__getitem__)


def figures(scope):
    return {figure.slot.name: (figure.start, figure.peak, figure.end) for figure in scope.figures}


def play(seed, steps=60):
    """One random trace; returns (what the manager says, what a model that saw everything says) for each scope."""
    chance = random.Random(seed)
    tapes = [Tape("a"), Tape("b")]
    manager = manager_over(*tapes)
    values = {"a": 0, "b": 0}
    running, finished = [], []
    for _ in range(steps):
        step = chance.random()
        if step < 0.25:
            scope = Scope("", tuple(chance.sample(["a", "b"], chance.randint(1, 2))))
            manager.enter(scope)
            running.append((scope, {name: [values[name]] for name in scope.wanted}))
        elif step < 0.45 and running:
            scope, seen = running.pop(chance.randrange(len(running)))  # in any order: scopes overlap
            manager.exit(scope)
            finished.append((scope, seen))
        elif step < 0.5 and running:
            scope, seen = chance.choice(running)
            result_so_far = figures(manager.result_so_far(scope))
            assert result_so_far == {name: (v[0], max(v), v[-1]) for name, v in seen.items()}
        else:
            name = chance.choice("ab")
            values[name] = chance.randint(0, 1000)
            next(tape for tape in tapes if tape.name == name).move(values[name])
            for _, seen in running:
                if name in seen:
                    seen[name].append(values[name])
    for scope, seen in running:
        manager.exit(scope)
        finished.append((scope, seen))
    assert [tape.opened for tape in tapes] == [0, 0]
    assert manager.open_scopes == 0
    return [(figures(scope), {name: (v[0], max(v), v[-1]) for name, v in seen.items()}) for scope, seen in finished]


def test_two_thousand_random_traces_agree_with_a_model():
    for seed in range(rounds(2000)):
        for found, model in play(seed):
            assert found == model, seed


@given(st.lists(st.integers(0, 50), min_size=1), st.data())
def test_notes_answer_as_a_walk_over_all_would(values, data):
    peaks = Peaks()
    for moment, value in enumerate(values):
        peaks.add(moment, value)
        if data.draw(st.booleans()):
            continue
    askers = sorted(data.draw(st.sets(st.integers(0, len(values) - 1), min_size=1)))
    peaks.keep(askers)
    assert len(peaks.epochs) <= len(askers)
    assert [peaks.highest_since(moment) for moment in askers] == [max(values[moment:]) for moment in askers]


def test_notes_stay_few_under_one_long_scope():
    tape = Tape()
    manager = manager_over(tape)
    outer = Scope("", ("tape",))
    manager.enter(outer)
    for value in range(5000, 0, -1):  # ever lower peaks: none of them makes another forgettable
        tape.move(value)
        inner = Scope("", ("tape",))
        manager.enter(inner)
        manager.exit(inner)
        assert len(manager._slots["tape", 0].peaks.epochs) < 80
    manager.exit(outer)
    assert figures(outer)["tape"] == (0, 5000, 1)


def test_overlapping_scopes_of_threads_each_have_the_process_peak_of_their_time():
    tape = Tape()
    manager = manager_over(tape)
    scopes = [Scope("", ("tape",)) for _ in range(4)]
    turn = [threading.Event() for _ in range(4)]
    done = [threading.Event() for _ in range(4)]

    def work(index):
        manager.enter(scopes[index])
        done[index].set()
        turn[index].wait(60)
        manager.exit(scopes[index])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for index, thread in enumerate(threads):
        thread.start()
        done[index].wait(60)
        tape.move(10 * (index + 1))
    for index in (1, 3, 0, 2):
        tape.move(100 - index)
        turn[index].set()
        threads[index].join(60)
    assert [figures(scope)["tape"] for scope in scopes] == [(0, 100, 100), (10, 99, 99), (20, 100, 98), (30, 99, 97)]


def test_tasks_that_interleave():
    tape = Tape()
    manager = manager_over(tape)

    async def task(scope, low, high):
        manager.enter(scope)
        tape.move(high)
        await asyncio.sleep(0)
        tape.move(low)
        await asyncio.sleep(0)
        manager.exit(scope)

    async def main():
        await asyncio.gather(task(a, 1, 50), task(b, 2, 40))

    a, b = Scope("", ("tape",)), Scope("", ("tape",))
    asyncio.run(main())
    assert figures(a)["tape"] == (0, 50, 2)
    assert figures(b)["tape"][1] == 50  # a's memory was there when b began


def test_a_disturbed_mark_makes_the_scopes_of_its_time_lower_bounds_and_no_others():
    tape = Tape()
    manager = manager_over(tape)
    before, during, after = (Scope("", ("tape",)) for _ in range(3))
    manager.enter(before)
    manager.exit(before)
    manager.enter(during)
    tape.intact = False
    manager.exit(during)
    manager.enter(after)
    manager.exit(after)
    assert [scope.figures[0].intact for scope in (before, during, after)] == [True, False, True]


def test_a_meter_that_fails_costs_only_its_figure():
    class Broken(Tape):
        def read_and_reset(self):
            raise OSError("gone")

    manager = manager_over(Broken("broken"), Tape())
    scope = Scope("", ("broken", "tape"))
    manager.enter(scope)
    manager.exit(scope)
    assert list(figures(scope)) == ["tape"]
    assert "gone" in scope.unmeasured["broken"]
    assert manager.open_scopes == 0


def test_a_meter_asked_for_by_name_that_cannot_work_raises_and_leaves_nothing_open():
    class Absent(Tape):
        def open(self):
            raise MeterUnavailable("not here", "go there")

    tape = Tape()
    manager = manager_over(tape, Absent("absent"))
    with pytest.raises(MeterUnavailable, match="not here"):
        manager.enter(Scope("", ("tape", "absent")))
    assert tape.opened == 0
    assert manager.open_scopes == 0


def test_ending_twice_is_ending_once():
    tape = Tape()
    manager = manager_over(tape)
    scope = Scope("", ("tape",))
    manager.enter(scope)
    manager.exit(scope)
    tape.move(7)
    manager.exit(scope)
    assert figures(scope)["tape"] == (0, 0, 0)
    assert tape.opened == 0


def test_a_scope_begun_inside_a_reading_does_not_hang():
    class Reentrant(Tape):
        interrupted = False

        def read_and_reset(self):
            if not self.interrupted:
                self.interrupted = True
                manager.enter(inner)
                manager.exit(inner)
            return super().read_and_reset()

    tape = Reentrant()
    manager = manager_over(tape)
    inner, outer = Scope("", ("tape",)), Scope("", ("tape",))
    manager.enter(outer)
    tape.move(3)
    manager.exit(outer)
    assert figures(outer)["tape"][1] == 3


class Interrupted(Tape):
    """In each of its calls, other scopes may begin and end, as in a signal handler. A call that is interrupted has done
    its work before, or does it afterwards."""

    def __init__(self, name, interrupt):
        self.interrupt = interrupt
        super().__init__(name)

    def open(self):
        self.interrupt()
        super().open()
        self.interrupt()

    def close(self):
        self.interrupt()
        super().close()
        self.interrupt()

    def read_and_reset(self):
        self.interrupt()
        found = super().read_and_reset()
        self.interrupt()
        return found


def play_interrupted(seed, steps=40):
    """As `play`, where each call of a meter may be interrupted: by one level of other scopes, which may stay open."""
    chance = random.Random(seed)
    values, running, finished, is_inside = {"a": 0, "b": 0}, [], [], False

    def begin():
        scope = Scope("", tuple(chance.sample(["a", "b"], chance.randint(1, 2))))
        manager.enter(scope)
        running.append((scope, {name: [values[name]] for name in scope.wanted}))

    def end():
        scope, seen = running.pop(chance.randrange(len(running)))
        manager.exit(scope)
        finished.append((scope, seen))

    def move():
        name = chance.choice("ab")
        values[name] = chance.randint(0, 1000)
        for tape in tapes[name]:
            tape.move(values[name])
        for _, seen in running:
            if name in seen:
                seen[name].append(values[name])

    def interrupt():
        nonlocal is_inside
        if is_inside or chance.random() < 0.8:
            return
        is_inside = True
        for _ in range(chance.randint(1, 3)):
            end() if running and chance.random() < 0.4 else begin()
        is_inside = False

    def create(name):
        made = Interrupted(name, interrupt)
        made.value = made.mark = values[name]
        interrupt()  # as an import may be
        tapes[name].append(made)
        return made

    tapes = {"a": [], "b": []}
    manager = ScopeManager(create=create)
    for _ in range(steps):
        step = chance.random()
        if step < 0.25:
            begin()
        elif step < 0.45 and running:
            end()
        else:
            move()
    while running:
        end()
    assert all(tape.opened == 0 for made in tapes.values() for tape in made)
    assert manager.open_scopes == 0
    return finished


def test_scopes_that_begin_and_end_in_the_middle_of_others_agree_with_the_model():
    measured, seeds = 0, rounds(1500)
    for seed in range(seeds):
        for scope, seen in play_interrupted(seed):
            found = figures(scope)
            assert found.keys() | scope.unmeasured.keys() == seen.keys(), seed
            for name, figure in found.items():
                assert figure == (seen[name][0], max(seen[name]), seen[name][-1]), seed
            measured += len(found)
    assert measured > 20 * seeds


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_the_child_of_a_fork_measures_what_another_thread_was_reading():
    class Slow(Tape):
        def read_and_reset(self):
            if threading.current_thread() is not threading.main_thread():
                reads.set()
                go_on.wait(60)
            return super().read_and_reset()

    reads, go_on, tape = threading.Event(), threading.Event(), Slow()
    manager = manager_over(tape)
    manager.enter(Scope("", ("tape",)))
    thread = threading.Thread(target=manager.enter, args=(Scope("", ("tape",)),))
    thread.start()
    assert reads.wait(60)
    child = os.fork()
    if child == 0:
        inner = Scope("", ("tape",))
        manager.enter(inner)
        tape.move(7)
        manager.exit(inner)
        os._exit(0 if figures(inner) == {"tape": (0, 7, 7)} else 1)
    go_on.set()
    thread.join(60)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_turns_measure_one_stretch_after_the_other_beside_other_scopes():
    for seed in range(300):
        chance = random.Random(seed)
        tape = Tape()
        manager = manager_over(tape)
        whole, running = Scope("", ("tape",)), Scope("", ("tape",))
        manager.enter(whole)
        manager.enter(running)
        stretch, seen, stretches = [0], [0], []
        for _ in range(40):
            if chance.random() < 0.3:
                done, running = running, manager.restart(running)
                stretches.append((figures(done)["tape"], (stretch[0], max(stretch), stretch[-1])))
                assert not done.is_open
                stretch = stretch[-1:]
            elif chance.random() < 0.2:
                inner = Scope("", ("tape",))
                manager.enter(inner)
                manager.exit(inner)
            else:
                tape.move(chance.randint(0, 100))
                stretch.append(tape.value)
                seen.append(tape.value)
        manager.exit(running)
        manager.exit(whole)
        assert all(found == model for found, model in stretches), seed
        assert figures(whole)["tape"] == (0, max(seen), seen[-1])
        assert tape.opened == 0
        assert manager.open_scopes == 0


def test_a_mark_that_only_rises_is_whole_for_a_scope_in_which_it_rose_whatever_lay_inside():
    class Rising(Tape):
        has_lifetime_peak = True

        def read_and_reset(self):
            last, self.last = getattr(self, "last", 0), self.mark
            return self.value, self.mark if self.mark > last else self.value, self.mark > last

    tape = Rising()
    manager = manager_over(tape)
    outer, rose, still = (Scope("", ("tape",)) for _ in range(3))
    tape.move(5)
    manager.enter(outer)
    manager.enter(rose)
    tape.move(9)
    manager.exit(rose)
    manager.enter(still)
    tape.move(3)
    manager.exit(still)
    manager.exit(outer)
    assert [scope.figures[0].intact for scope in (outer, rose, still)] == [True, True, False]
    assert figures(outer)["tape"] == (5, 9, 3)
