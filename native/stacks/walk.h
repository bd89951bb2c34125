/* The walk, the same for every version. The including file defines, before it includes this:
 *   hw_frame          the interpreter's frame struct
 *   attached_frame()  the current frame of the state that is attached to the calling thread, which has the GIL; or NULL
 *   top_frame(memo)   the calling thread's current frame, or NULL; of a state that runs on another thread meanwhile:
 *                     NULL
 *   top_frame_if_attached(memo)  the same, or NULL where that takes more than a few loads
 *   top_frame_with_gil(memo)  the same for a thread that holds the GIL, where a quick check can show it, and else NULL
 *   is_running(state, copied)  whether a state, of which `copied` is a copy, is attached to a thread
 *   see_attached(memo)  of a thread that holds the GIL: the attached state is now its own
 *   loop_anchor(memo)  where the innermost loop on the calling thread keeps something in its C frame, or NULL
 *   may_tag(memo)    whether the frames of the memo can run on no other thread now: their state is attached to this one
 *   frame_instr(f)    the instruction pointer
 *   frame_code(f)     the code object, or NULL for an interpreter's helper frame
 *   frame_first_local(f)  its first local variable, borrowed
 *   frame_height_at_call(f, above)  how many words of its local variables and its evaluation stack, which lies behind
 *                     them, are in use while `above`, which it called, runs; negative where that is not sure
 *   frame_height(f)   where that number is stored, if it is an int that is negative while the frame runs; else NULL
 *
 * Budget: a stack that has not changed costs two compares a frame. The links are compared from the top down, so a frame
 * is read only after the frame above it has been seen to link to it: memory that is no longer a frame is never touched.
 *
 * A deep stack is not compared to its end. When Python code calls Python code, the interpreter takes the operands of
 * the call off the caller's evaluation stack and gives them to the callee. The word where the first of them lay is dead
 * until the caller runs again: what is returned goes there; and after an exception, or where another frame is made in
 * the same place, this call can only be made again once an operand was put there. So we put a tag there. As long as it
 * is found, that frame has not run since, nor has any below it. Each memo has a tag of its own: a state may be used on
 * several threads, and where another one ran and tagged the frame meanwhile, this memo's tag is gone. Nobody reads the
 * word in between: the interpreter, its garbage collector, copies of frames and debuggers go by the height of the
 * evaluation stack, and the word is above that.
 *
 * When C code is called, the height is not stored: its place in the frame contains -1 as long as the frame runs, and
 * every call of Python code, every return and every suspension of a generator writes a height there. Who reads it tells
 * a running frame by its sign. So the tag of such a frame is another negative number in this place. As long as it is
 * found, the frame has not returned and was not suspended, so none below it has run; where the frame itself stands is
 * compared.
 *
 * Longer than 400 lines because all of it is compiled once for each version, and each step relies on what the steps
 * before it have compared.
 */
#ifndef HIWATER_WALK_H
#define HIWATER_WALK_H

#include <pthread.h>
#include <string.h>

#include "frames.h"

#if defined(Py_GIL_DISABLED)
#error \
    "the walkers do not read a free-threaded interpreter's copies of instructions yet: build with -DHIWATER_ENGINE=OFF"
#endif

static inline void slot_fill(hw_slot* slot, const hw_frame* f) {
    slot->frame = f;
    slot->previous = f->previous;
    slot->instr = frame_instr(f);
    slot->tagged = 0;
}

/* Its local variables, and behind them its evaluation stack. */
static inline const void** frame_words(const hw_frame* f) { return (const void**)f->localsplus; }

/* Values of `tagged`: the place of the height, or 1 + which of the frame's words it is. kRuns: a tag was lost while the
 * frame stayed at its instruction, so it runs between events. */
enum { kTaggedHeight = UINT16_MAX, kRuns = kTaggedHeight - 1 };

static inline const void** tagged_word(const hw_slot* slot) {
    return frame_words((const hw_frame*)slot->frame) + (slot->tagged - 1);
}

/* The tag of a word is the memo's address, which no object has. The slot's frame is live, and is at the slot's
 * instruction. */
static inline int has_tag(const hw_memo* memo, const hw_slot* slot) {
    if (slot->tagged == 0 || slot->tagged == kRuns) return 0;
    if (slot->tagged == kTaggedHeight) return *frame_height((const hw_frame*)slot->frame) == memo->number;
    return *tagged_word(slot) == (const void*)memo;
}

/* Which word the call to `above` left free; -1 where that is not sure. */
static inline int64_t dead_word(const hw_frame* f, const hw_frame* above) {
    const int64_t word = frame_height_at_call(f, above);
    if (word < 0) return -1;
    const PyCodeObject* code = frame_code(f);
    return word >= code->co_nlocalsplus && word < code->co_nlocalsplus + code->co_stacksize ? word : -1;
}

static int put_tag(const hw_memo* memo, hw_slot* slot) {
    const hw_frame* const f = (const hw_frame*)slot->frame;
    const int64_t word = dead_word(f, (const hw_frame*)slot[1].frame);
    if (word >= 0 && word + 1 < kRuns) {
        slot->tagged = (uint32_t)(word + 1);
        *tagged_word(slot) = memo;
        return 1;
    }
    int* const height = frame_height(f);
    if (height == NULL || *height >= 0 || memo->number >= 0) return 0;
    slot->tagged = kTaggedHeight;
    *height = memo->number;
    return 1;
}

/* Let the next checks end at this slot, if its frame contains the tag. */
static inline int end_at(hw_memo* memo, const hw_slot* slot) {
    if (!has_tag(memo, slot)) return 0;
    memo->lowest = slot;
    memo->tag =
        slot->tagged == kTaggedHeight ? (const void**)frame_height((const hw_frame*)slot->frame) : tagged_word(slot);
    memo->tagged_as = *memo->tag;
    return 1;
}

/* Where no frame contains a tag, what links the slot's frame to the one below it serves as one. */
static inline void end_at_untagged(hw_memo* memo, const hw_slot* slot) {
    memo->lowest = slot;
    memo->tag = (const void* const*)&((const hw_frame*)slot->frame)->previous;
    memo->tagged_as = slot->previous;
}

/* Not where a generator's frame was resumed by another one. */
static inline int is_called_as_before(const hw_slot* slot, const hw_frame* f) {
    return slot->frame == f && slot->previous == f->previous;
}

/* The slot that holds `f`, one of `most` from this one down; NULL when it is not there. */
static inline hw_slot* slot_of(const hw_memo* memo, const hw_frame* f, hw_slot* slot, uint32_t most) {
    for (; most != 0; --most, --slot) {
        if (is_called_as_before(slot, f)) return slot;
        if (slot == memo->slots) break;
    }
    return NULL;
}

/* How much higher a frame lies than another one in the same part of the interpreter's stack of frames, of which each
 * lies above its caller. Of frames elsewhere, those of generators too, it is hardly ever less than kPart. */
enum { kPart = 1 << 14 };
static inline uintptr_t height_above(const void* f, const void* lower) { return (uintptr_t)f - (uintptr_t)lower; }

/* Fewer frames than that are compared as soon as a tag is written. So a tag in a stack of fewer goes where it is likely
 * to stay: into a frame that did not move, and does not run between events. */
enum { kDeep = 12 };

/* So often a settled stack is compared over more than one frame below the top. Then it is likely to stay as it is for
 * more events, and the next walk, which finds nothing changed, ends it at the highest frame that can be tagged. */
enum { kPatience = 64 };

/* Equals no frame. */
static hw_slot g_unsettled = {(const void*)1, NULL, NULL, 0, 0};

/* Of the last memo that was made. Those after 2^31 are positive, and are no tags. */
static int32_t g_last_number = -1;

void hw_frames_forget(hw_memo* memo) {
    memo->depth = memo->floor = 0;
    memo->ends_as_before = 0;
    memo->lowest = memo->settled = &g_unsettled;
    if (memo->number == 0) memo->number = __atomic_sub_fetch(&g_last_number, 1, __ATOMIC_RELAXED);
    if (memo->state == NULL) memo->state = &g_unsettled;
    if (memo->thread == 0) memo->thread = (unsigned long)pthread_self();
}

/* The frames from `f` up to the root, written over the memo. */
static __attribute__((noinline)) hw_slot* walk_everything(hw_memo* memo, const hw_frame* f, hw_grow grow) {
    uint32_t depth = 0;
    for (const hw_frame* g = f; g != NULL; g = g->previous) ++depth;
    hw_frames_forget(memo);
    if (depth > memo->capacity && !grow(memo, depth)) return memo->slots;
    memo->depth = depth;
    for (const hw_frame* g = f; g != NULL; g = g->previous) slot_fill(&memo->slots[--depth], g);
    return memo->changed = memo->slots;
}

/* Notes where a slot's frame stands; whether it is elsewhere than before. */
static inline int has_moved(hw_slot* slot, const hw_frame* f) {
    const void* const instr = frame_instr(f);
    if (instr == slot->instr) return 0;
    slot->instr = instr;
    slot->tagged = 0;
    return 1;
}

/* The lowest of the slots up to this one that matters to the caller. */
static inline hw_slot* floor_below(const hw_memo* memo, hw_slot* slot) {
    hw_slot* const floor = memo->slots + memo->floor;
    return floor < slot ? floor : slot;
}

/* The caller must check the slots from `changed` up again. */
static inline hw_slot* changed_from(hw_memo* memo, hw_slot* changed) {
    if (changed < memo->slots + memo->floor) {
        memo->floor = 0;
        memo->ends_as_before = 0;
    }
    return memo->changed = changed;
}

static __attribute__((noinline)) int tag_below(const hw_memo* memo, hw_slot* slot) {
    return may_tag(memo) && put_tag(memo, slot);
}

/* The slots up to this one were linked together at the last walk, and it holds a live frame. Compare them with the
 * frames of today, down to one that has not run since, and note where each stands. Returns the lowest changed slot (the
 * one above: none), or NULL when the links differ: what is below is then not known to live. A slot's frame is the
 * previous of the slot above it, so only two words of each are read. */
static inline hw_slot* compare_down(hw_memo* memo, hw_slot* slot) {
    enum { kTagEvery = 32, kTryAgainAfter = 5 };
    hw_slot* const last = floor_below(memo, slot);
    hw_slot* lowest = slot + 1;
    int untagged = 0;
    for (const hw_frame* f = (const hw_frame*)slot->frame;; f = (const hw_frame*)slot->previous, --slot) {
        if (__builtin_expect((const void*)f->previous != slot->previous, 0)) return NULL;
        if (has_moved(slot, f)) {
            lowest = slot;
        } else if (slot->tagged != 0) {
            if (has_tag(memo, slot)) break;
            slot->tagged = kRuns;
        }
        if (slot == last) break;
        /* Later walks end at the tags that are written on the way. */
        if (++untagged > kTagEvery) untagged = tag_below(memo, slot) ? 0 : kTagEvery - kTryAgainAfter;
    }
    return lowest;
}

/* The same for a stack that was settled: it knows where to end. Where the frame with the tag stands elsewhere, it has
 * run, or is another one in the same place, in which the tag was left. */
static inline hw_slot* compare_settled(hw_memo* memo, hw_slot* const from) {
    hw_slot* const last = (hw_slot*)memo->lowest;
    hw_slot *slot = from, *lowest = from + 1;
    if (slot < last) return compare_down(memo, from);
    const hw_frame* f = (const hw_frame*)slot->frame;
    for (;; f = (const hw_frame*)slot->previous, --slot) {
        if (__builtin_expect((const void*)f->previous != slot->previous, 0)) return NULL;
        if (has_moved(slot, f)) lowest = slot;
        if (slot == last) break;
    }
    const int is_proof = lowest != last || memo->tag == (const void* const*)&f->previous;
    if (__builtin_expect(*memo->tag == memo->tagged_as && is_proof, 1)) {
        memo->ends_as_before = 1;
        return lowest;
    }
    hw_slot* const below = compare_down(memo, from);
    return below < lowest ? below : lowest;
}

static inline hw_slot* compare(hw_memo* memo, hw_slot* slot, int was_settled) {
    return was_settled ? compare_settled(memo, slot) : compare_down(memo, slot);
}

/* The top frame is not the one remembered: find where the new frames join the old stack, and put them on top of it.
 * A call would save and restore six registers at each event. */
static inline __attribute__((always_inline)) hw_slot* walk_to_the_join(hw_memo* memo, hw_slot* slot,
                                                                       const hw_frame* top, int was_settled,
                                                                       hw_grow grow) {
    enum { kNear = 8 };
    uint32_t fresh_count = 0;
    const hw_frame* f = top;
    for (;; f = f->previous) {
        if (f == NULL) return walk_everything(memo, top, grow);
        while (height_above(slot->frame, f) - 1 < kPart && slot != memo->slots) --slot; /* it has returned */
        if (is_called_as_before(slot, f)) break;
        if (height_above(f, slot->frame) >= kPart && f->previous != slot->frame) { /* not surely a new one */
            /* Calls and returns of a few frames join near the top. A search of all costs the whole depth, so that is
             * done ever less often; walking a little too far is harmless. */
            const int everywhere = fresh_count >= kNear && (fresh_count & (fresh_count - 1)) == 0;
            hw_slot* const found = slot_of(memo, f, slot, everywhere ? memo->depth : kNear);
            if (found != NULL) {
                slot = found;
                break;
            }
        }
        ++fresh_count;
    }
    hw_slot* lowest = compare(memo, slot, was_settled);
    if (lowest == NULL) return walk_everything(memo, top, grow);
    const uint32_t depth = (uint32_t)(slot - memo->slots) + 1 + fresh_count;
    if (depth > memo->capacity) {
        const int64_t changed = lowest - memo->slots;
        memo->ends_as_before = 0;
        if (!grow(memo, depth)) {
            hw_frames_forget(memo);
            return memo->slots;
        }
        lowest = memo->slots + changed;
    }
    memo->depth = depth;
    slot = memo->slots + depth;
    /* Where the tag lies deep, one near the top is better. In the top frame it says nothing: that frame runs, or
     * another one was made in its place. */
    const int64_t above = slot - memo->lowest - 1;
    if (above == 0 || above >= kDeep) memo->ends_as_before = 0;
    for (const hw_frame* fresh = top; fresh != f; fresh = fresh->previous) slot_fill(--slot, fresh);
    return lowest;
}

static inline __attribute__((always_inline)) hw_slot* refresh_from(hw_memo* memo, const hw_frame* top, hw_grow grow) {
    if (top == NULL) {
        hw_frames_forget(memo);
        return memo->slots;
    }
    const int was_settled = memo->settled != &g_unsettled;
    memo->settled = &g_unsettled;
    memo->ends_as_before = 0;
    memo->patience = kPatience;
    const uint32_t depth = memo->depth;
    if (depth == 0) return walk_everything(memo, top, grow);
    hw_slot* const highest = memo->slots + (depth - 1);
    if (!is_called_as_before(highest, top))
        return changed_from(memo, walk_to_the_join(memo, highest, top, was_settled, grow));
    hw_slot* const lowest = compare(memo, highest, was_settled);
    if (lowest > highest) memo->ends_as_before = 0; /* the stack has stayed for long: it may end higher */
    return lowest == NULL ? walk_everything(memo, top, grow) : changed_from(memo, lowest);
}

__attribute__((noinline)) hw_slot* hw_frames_refresh(hw_memo* memo, hw_grow grow) {
    return refresh_from(memo, top_frame(memo), grow);
}

inline __attribute__((always_inline)) hw_slot* hw_frames_refresh_with_gil(hw_memo* memo, hw_grow grow) {
    const hw_frame* const top = top_frame_with_gil(memo);
    return __builtin_expect(top != NULL, 1) ? refresh_from(memo, top, grow) : hw_frames_refresh(memo, grow);
}

/* Let the next checks end at the highest frame that keeps its tag, of those that did not move in a stack of few. */
static __attribute__((noinline)) void find_an_end(hw_memo* memo) {
    end_at_untagged(memo, floor_below(memo, memo->settled));
    hw_slot* slot = memo->settled;
    if (slot - memo->lowest < kDeep && memo->changed < slot) slot = memo->changed;
    int tries = may_tag(memo) ? 8 : 0;
    while (--slot > memo->lowest) {
        if (slot->tagged == kRuns || (slot->tagged == 0 && (--tries < 0 || !put_tag(memo, slot)))) continue;
        if (end_at(memo, slot)) break;
    }
    if (memo->changed > memo->settled) memo->patience = INT32_MAX; /* until the stack moves */
}

inline __attribute__((always_inline)) void hw_frames_settle(hw_memo* memo) {
    if (memo->depth == 0) return;
    memo->settled = memo->slots + (memo->depth - 1);
    if (!memo->ends_as_before) find_an_end(memo);
}

hw_slot* hw_frames_move_top(hw_memo* memo, const void* instr) {
    hw_slot* const top = memo->settled;
    top->instr = instr;
    memo->settled = &g_unsettled;
    memo->ends_as_before =
        memo->lowest->tagged != 0; /* all below the top stays: a frame there is likely to keep a tag */
    return changed_from(memo, top);
}

/* The check of nearly every event, and the only one of most. It goes from slot to slot; in a deep stack a tag ends it
 * early. The link of the lowest compared frame is what the memo has as its tag, where no frame contains one. */
static inline __attribute__((always_inline)) int are_settled(hw_memo* memo, const hw_frame* f, const void** instr) {
    const hw_slot* slot = memo->settled;
    const void* previous = slot->previous;
    if ((const void*)f != slot->frame || (const void*)f->previous != previous) return 0;
    /* Compared where it lies in memory: there is no register left for it that would not have to be saved. */
    hw_slot* const volatile* const last = (hw_slot* const volatile*)&memo->lowest;
    *instr = frame_instr(f);
    if (slot != *last) {
        f = (const hw_frame*)previous;
        --slot;
        if (__builtin_expect(frame_instr(f) != slot->instr, 0)) return 0;
        if (slot != *last) {
            do {
                previous = slot->previous;
                if (__builtin_expect((const void*)f->previous != previous, 0)) return 0;
                f = (const hw_frame*)previous;
                --slot;
                if (__builtin_expect(frame_instr(f) != slot->instr, 0)) return 0;
            } while (slot != *last);
            if (__builtin_expect(--memo->patience == 0, 0)) return 0; /* a walk finds a higher end */
        }
    }
    return *memo->tag == memo->tagged_as;
}

inline __attribute__((always_inline)) void hw_frames_see_attached(hw_memo* memo) { see_attached(memo); }

inline __attribute__((always_inline)) int hw_frames_are_settled_with_gil(hw_memo* memo, const void** instr) {
    return are_settled(memo, top_frame_with_gil(memo), instr);
}

inline __attribute__((always_inline)) int hw_frames_are_settled_if_attached(hw_memo* memo, const void** instr) {
    return are_settled(memo, top_frame_if_attached(memo), instr);
}

inline __attribute__((always_inline)) int hw_frames_are_settled_on(hw_memo* memo, const void* frame,
                                                                   const void** instr) {
    return are_settled(memo, (const hw_frame*)frame, instr);
}

__attribute__((noinline)) const void* hw_top_frame(const hw_memo* memo) { return top_frame(memo); }

int hw_frames_are_settled(hw_memo* memo, const void** instr) { return are_settled(memo, top_frame(memo), instr); }

const void* hw_loop_anchor(const hw_memo* memo) { return loop_anchor(memo); }

const void* hw_slot_code(const hw_slot* slot) { return frame_code((const hw_frame*)slot->frame); }

const void* hw_code_start(const void* code) { return _PyCode_CODE((PyCodeObject*)code); }

uintptr_t hw_code_bytes(const void* code) { return (uintptr_t)Py_SIZE((PyObject*)code) * sizeof(_Py_CODEUNIT); }

/* A variable-length integer of the location table: six bits a byte, least first; signed ones keep the sign in the
 * lowest bit. The format: CPython's Objects/locations.md, or InternalDocs/code_objects.md from 3.13 on. */
static inline uint32_t read_varint(const unsigned char** at) {
    uint32_t value = 0;
    unsigned shift = 0;
    unsigned char byte;
    do {
        byte = *(*at)++;
        value |= (uint32_t)(byte & 63) << shift;
        shift += 6;
    } while ((byte & 64) != 0 && shift < 32);
    return value;
}

static inline void read_location(hw_line_cursor* cursor, const unsigned char* limit) {
    enum { kFirstOneLine = 10, kLastOneLine = 12, kNoColumns = 13, kLong = 14, kNone = 15 };
    const unsigned char* at = cursor->entry;
    const unsigned char first = *at++;
    const int form = first >> 3 & 15;
    if (form < kFirstOneLine) {
        at += 1; /* columns */
    } else if (form <= kLastOneLine) {
        cursor->line += form - kFirstOneLine;
        at += 2;
    } else {
        if (form == kNoColumns || form == kLong) {
            const uint32_t delta = read_varint(&at);
            cursor->line += (delta & 1) != 0 ? -(int32_t)(delta >> 1) : (int32_t)(delta >> 1);
        }
        while (at < limit && (*at & 128) == 0) ++at; /* the first byte of an entry has its top bit set */
    }
    cursor->entry_line = form == kNone ? -1 : cursor->line;
    cursor->start = cursor->end;
    cursor->end += ((first & 7) + 1) * (int32_t)sizeof(_Py_CODEUNIT);
    cursor->entry = at;
}

/* The line of a byte offset in the code, or -1. */
static int32_t line_at(PyCodeObject* code, int32_t offset, hw_line_cursor* cursor) {
    const unsigned char* table = (const unsigned char*)PyBytes_AS_STRING(code->co_linetable);
    const unsigned char* limit = table + PyBytes_GET_SIZE(code->co_linetable);
    if (cursor->code != code || offset < cursor->start) {
        const hw_line_cursor fresh = {code, table, 0, 0, code->co_firstlineno, -1};
        *cursor = fresh;
    }
    while (cursor->end <= offset) {
        if (cursor->entry >= limit) return -1;
        read_location(cursor, limit);
    }
    return cursor->entry_line;
}

/* Whether a str begins with this ASCII text. */
static int begins_with(const PyObject* str, const char* text, Py_ssize_t length) {
    PyObject* s = (PyObject*)str;
    return PyUnicode_Check(s) && PyUnicode_IS_COMPACT_ASCII(s) && PyUnicode_GET_LENGTH(s) >= length &&
           memcmp(PyUnicode_DATA(s), text, (size_t)length) == 0;
}

static int is_text(const PyObject* str, const char* text) {
    const Py_ssize_t length = (Py_ssize_t)strlen(text);
    return begins_with(str, text, length) && PyUnicode_GET_LENGTH((PyObject*)str) == length;
}

static int is_generated(const PyCodeObject* code) {
    static const char of_dataclass[] = "__create_fn__.<locals>.", of_tuple[] = "_tuple_new";
    if (!is_text(code->co_filename, "<string>")) return 0;
    if (begins_with(code->co_qualname, of_dataclass, sizeof of_dataclass - 1)) return 1;
    const PyObject* names = code->co_names; /* a named tuple's is a lambda that uses one name */
    return PyTuple_GET_SIZE(names) == 1 && begins_with(PyTuple_GET_ITEM(names, 0), of_tuple, sizeof of_tuple - 1);
}

/* The state of the calling thread, where it holds the GIL. */
static PyThreadState* state_with_gil(void) {
    PyThreadState* const state = attached_state();
    return state == PyGILState_GetThisThreadState() ? state : NULL;
}

/* The file that a frame's code is from. cloudpickle sends a function without its name, and as one of the first globals
 * the `__file__` of its module. Another thread may change that dict, unless this one holds the GIL. */
static const PyObject* file_of(const hw_frame* f, const PyCodeObject* code) {
    const PyObject* const file = code->co_filename;
    if (!is_text(file, "<dynamic-code>") || state_with_gil() == NULL) return file;
    PyObject *key, *value;
    Py_ssize_t place = 0;
    for (int left = 8; left != 0 && PyDict_Next(f->f_globals, &place, &key, &value); --left)
        if (is_text(key, "__file__")) return PyUnicode_Check(value) ? value : file;
    return file;
}

int hw_frame_describe(const hw_slot* slot, hw_line_cursor* cursor, hw_code_info* info) {
    const hw_frame* const f = (const hw_frame*)slot->frame;
    PyCodeObject* code = frame_code(f);
    if (code == NULL) return 0;
    const char* start = (const char*)_PyCode_CODE(code);
    const int64_t offset = (const char*)slot->instr - start;
    if (offset < (int64_t)code->_co_firsttraceable * (int64_t)sizeof(_Py_CODEUNIT)) return 0;
    info->code = code;
    info->qualname = code->co_qualname;
    info->filename = file_of(f, code);
    info->first_line = code->co_firstlineno;
    const int32_t line = line_at(code, (int32_t)offset, cursor);
    info->line = line > 0 ? line : code->co_firstlineno;
    info->is_generated = is_generated(code);
    return 1;
}

static inline int64_t full_collections(const PyInterpreterState* interpreter) {
#if PY_VERSION_HEX < 0x030f0000
    return (int64_t)interpreter->gc.generation_stats[NUM_GENERATIONS - 1].collections;
#else /* the last few collections of each generation are kept; each counts all before it */
    const struct gc_stats* stats = interpreter->gc.generation_stats;
    return stats == NULL ? -1 : (int64_t)stats->old[1].items[stats->old[1].index].collections;
#endif
}

int64_t hw_full_collections(void) {
    const PyInterpreterState* interpreter = Py_IsInitialized() ? PyInterpreterState_Main() : NULL;
    return interpreter == NULL ? -1 : full_collections(interpreter);
}

hw_state hw_own_state(void) {
    const PyThreadState* const own = Py_IsInitialized() ? PyGILState_GetThisThreadState() : NULL;
    return own == NULL ? (hw_state){NULL, 0} : (hw_state){own, own->id};
}

int hw_frames_of_other(uint64_t state, hw_visit_slot visit, void* context) {
    const PyThreadState *const own = state_with_gil(), *found = NULL;
    if (own == NULL) return -1;
    for (PyThreadState* s = PyInterpreterState_ThreadHead(own->interp); s != NULL;
         s = PyThreadState_Next(s)) /* newest first */
        if (state == 0 || s->id == state) found = s;
    if (found == NULL || found == own) return 0;
    for (const hw_frame* f = top_of(found); f != NULL; f = f->previous) {
        hw_slot slot;
        slot_fill(&slot, f);
        const int said = visit(&slot, context);
        if (said != 0) return said;
    }
    return 0;
}

int hw_has_gil(void) { return state_with_gil() != NULL; }

const void* hw_current_frame(void) { return attached_frame(); }

const void* hw_top_frame_self(const char* qualname) {
    const hw_frame* f = attached_frame();
    PyCodeObject* code = f == NULL ? NULL : frame_code(f);
    if (code == NULL || code->co_nlocalsplus < 1 || PyUnicode_CompareWithASCIIString(code->co_qualname, qualname) != 0)
        return NULL;
    return frame_first_local(f);
}

static inline uint32_t utf8_put(char* out, uint32_t c) {
    if (c < 0x80) return out[0] = (char)c, 1;
    if (c < 0x800) return out[0] = (char)(0xc0 | c >> 6), out[1] = (char)(0x80 | (c & 63)), 2;
    if (c < 0x10000) {
        if (c >= 0xd800 && c < 0xe000) c = 0xfffd; /* a lone surrogate has no UTF-8 */
        return out[0] = (char)(0xe0 | c >> 12), out[1] = (char)(0x80 | (c >> 6 & 63)), out[2] = (char)(0x80 | (c & 63)),
               3;
    }
    out[0] = (char)(0xf0 | c >> 18), out[1] = (char)(0x80 | (c >> 12 & 63));
    out[2] = (char)(0x80 | (c >> 6 & 63)), out[3] = (char)(0x80 | (c & 63));
    return 4;
}

uint32_t hw_str_utf8(const void* str, char* buffer, uint32_t size) {
    PyObject* s = (PyObject*)str;
    if (s == NULL || !PyUnicode_Check(s)) return 0;
    const Py_ssize_t length = PyUnicode_GET_LENGTH(s);
    const int width = PyUnicode_KIND(s);
    const void* data = PyUnicode_DATA(s);
    uint32_t used = 0;
    for (Py_ssize_t i = 0; i < length; ++i) {
        if (used + 8 > size) return used + utf8_put(buffer + used, 0x2026);
        used += utf8_put(buffer + used, PyUnicode_READ(width, data, i));
    }
    return used;
}

#include "waiting_frames.h"

#endif
