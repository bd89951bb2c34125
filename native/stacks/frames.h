/* Reading the interpreter's own frames, from the thread that runs them, with or without the GIL.
 *
 * A thread's frames are stable while that thread is inside an allocation: nobody else runs it. Nothing here calls back
 * into Python, takes a lock, touches a reference count or allocates.
 *
 * One C file for each CPython version family implements this header (frames_311.c …); the walk itself is in walk.h.
 */
#ifndef HIWATER_FRAMES_H
#define HIWATER_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One remembered frame. `place` belongs to the caller; the walk returns which slots need another. */
typedef struct {
    const void* frame;    /* the interpreter's frame; only compared, or read once known to be live */
    const void* previous; /* its link to the frame below, as last seen */
    const void* instr;    /* where it stands: names the code object and the position at once */
    uint32_t place;
    uint32_t tagged; /* where the frame contains our tag (walk.h); 0: nowhere */
} hw_slot;

/* How far the line table of a code object has been read. Code runs forward more often than not, so the next line is
 * mostly found a few entries on; a module's table read from its start for every new line would cost the square of its
 * length. */
typedef struct {
    const void* code;
    const unsigned char* entry; /* next entry to read */
    int32_t start, end;         /* bytes of code the last entry covers */
    int32_t line, entry_line;   /* running line; the last entry's own, -1 where it has none */
} hw_line_cursor;

/* The last walk of one thread, root first. */
typedef struct {
    hw_slot* slots;
    uint32_t depth;
    uint32_t capacity;
    uint32_t floor; /* slots below this one do not matter to the caller, who may raise it: they are not compared */
    unsigned long thread; /* pthread_self() of its thread */
    const void* state; /* of the interpreter, as last seen attached to that thread and to no other since; never NULL */
    int32_t number;    /* a tag: of no other memo; negative, and not -1 */
    hw_slot* changed;  /* the lowest one that the last walk found new or changed */
    hw_slot* settled;  /* the top slot, once hw_frames_settle() was called; otherwise a slot that equals no frame */
    const hw_slot* lowest;  /* of those that are compared */
    const void* const* tag; /* the tagged word of the lowest; its link, where it has none */
    const void* tagged_as;  /* what it contains as long as the frame and those below have not run */
    int ends_as_before;     /* the last walk ended where a settled stack's does: that need not be found again */
    int32_t patience; /* how often it may still be compared over several frames before a higher end is looked for */
} hw_memo;

/* Make room for at least `capacity` slots, keeping those there; 0 when it can't be had. Given by the caller of the
 * walk. */
typedef int (*hw_grow)(hw_memo* memo, uint32_t capacity);

/* Bring the memo up to date with the calling thread's frames.
 * Returns the lowest slot that is new or changed (the one behind the last: nothing changed). Where no room can be had
 * for a very deep stack the memo is left empty. */
hw_slot* hw_frames_refresh(hw_memo* memo, hw_grow grow);
/* The same for a thread that holds the GIL and has called hw_frames_see_attached(), inlined. */
hw_slot* hw_frames_refresh_with_gil(hw_memo* memo, hw_grow grow);

/* Note that the caller has numbered the stack in the memo. A walk that finds another stack cancels this. */
void hw_frames_settle(hw_memo* memo);
/* Forget everything. A new memo, which is zero except for slots and capacity, must be passed here first. */
void hw_frames_forget(hw_memo* memo);

/* Whether the top frame is the settled one and all frames below it stand as they did; then *instr is where the top
 * frame stands. */
int hw_frames_are_settled(hw_memo* memo, const void** instr);
/* The same for a thread that holds the GIL: 0 where it has not been seen with the state that it has attached. */
int hw_frames_are_settled_with_gil(hw_memo* memo, const void** instr);
/* Note which state a thread that holds the GIL has attached. */
void hw_frames_see_attached(hw_memo* memo);
/* The same with a frame from hw_top_frame(). */
int hw_frames_are_settled_on(hw_memo* memo, const void* frame, const void** instr);
/* The same for a thread that may hold it, without a call where the interpreter allows that: 0 where that can't be seen.
 */
int hw_frames_are_settled_if_attached(hw_memo* memo, const void** instr);

/* Store the instruction that hw_frames_are_settled() returned. Returns the top slot, the only one that changed. */
hw_slot* hw_frames_move_top(hw_memo* memo, const void* instr);

/* What a slot's frame runs. Strings are borrowed pointers into the interpreter, valid only during the call that uses
 * them. */
typedef struct {
    const void* code;     /* the code object: an identity, not to be kept past its death */
    const void* qualname; /* Python str */
    const void* filename; /* Python str */
    int32_t first_line;
    int32_t line;
    int32_t
        is_generated; /* 1 for a method that `dataclasses` or `collections.namedtuple` wrote: its file is "<string>" */
} hw_code_info;

/* The code object of a slot's frame, to be compared only; NULL for an interpreter's helper frame. */
const void* hw_slot_code(const hw_slot* slot);

/* Where a code object's instructions are. */
const void* hw_code_start(const void* code);
uintptr_t hw_code_bytes(const void* code);

/* 1 and *info for a frame that counts as a line of the stack; 0 for one that does not: an interpreter's helper frame,
 * or a frame still being built, which like CPython we leave out. The cursor is any of the caller's, zeroed when a code
 * object may have died. */
int hw_frame_describe(const hw_slot* slot, hw_line_cursor* cursor, hw_code_info* info);

/* A state of the interpreter: where it is, and a number that no other state gets. */
typedef struct {
    const void* at; /* NULL: none */
    uint64_t id;
} hw_state;

/* The state of the calling thread, with or without the GIL. */
hw_state hw_own_state(void);

/* The frames of another state of the same interpreter, from the innermost one to the root, until `visit` returns other
 * than 0. State 0 is the oldest, which is the main thread's. Its thread stands still meanwhile, for the caller holds
 * the GIL. Returns what `visit` did, 0 at the end and where there is no such state; -1 where the calling thread does
 * not hold the GIL. */
typedef int (*hw_visit_slot)(const hw_slot* slot, void* context);
int hw_frames_of_other(uint64_t state, hw_visit_slot visit, void* context);

/* The same for a thread that waits, from any thread and without the GIL. The thread may run again at any moment, so
 * `copy` copies what is read: true where all of it was there. Only addresses are visited: of what may be a code object,
 * and of the instruction. None where there is no such state any more, or it runs. */
typedef bool (*hw_copy)(void* into, const void* from, size_t bytes);
typedef int (*hw_visit_copied)(const void* code, const void* instr, void* context);
void hw_frames_of_waiting(hw_state state, hw_copy copy, hw_visit_copied visit, void* context);

/* Such states of the main interpreter, the newest first. Returns how many, up to `most`. */
uint32_t hw_waiting_states(hw_state* states, uint32_t most, hw_copy copy);

/* What hw_code_info has, of such a frame. */
typedef struct {
    char function[1000], file[2000];
    uint32_t function_bytes, file_bytes;
    int32_t first_line, line, is_generated;
    uint64_t room[264]; /* for what is copied */
} hw_copied_code;
int hw_describe_copied(const void* code, const void* instr, hw_copy copy, hw_copied_code* to);

/* How often the main interpreter has collected the garbage of its oldest generation, which is all of it. From any
 * thread, without the GIL; -1 once the interpreter is being finalized. */
int64_t hw_full_collections(void);

/* Where the innermost of the interpreter's loops on the calling thread keeps something in its own C frame; NULL where
 * the thread runs none, or none that is known. */
const void* hw_loop_anchor(const hw_memo* memo);

/* The calling thread's current frame, with or without the GIL; NULL where its state runs on another thread. */
const void* hw_top_frame(const hw_memo* memo);

/* The calling thread's current frame, to be compared only; NULL outside any. Needs the GIL. */
const void* hw_current_frame(void);

/* Whether the calling thread holds the GIL. */
int hw_has_gil(void);

/* The first local variable of the calling thread's current frame, borrowed, where that frame runs the function of this
 * qualified name; else NULL. Needs the GIL. */
const void* hw_top_frame_self(const char* qualname);

/* Copy a Python str as UTF-8 into buffer, cut at a character border with "…" where it is longer. Returns the bytes
 * written. */
uint32_t hw_str_utf8(const void* str, char* buffer, uint32_t size);

#ifdef __cplusplus
}
#endif
#endif
