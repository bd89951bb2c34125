// Arenas of Python's own allocator: mappings, whose unused part is its slack.
#include <Python.h>

#include "interpose/python_tables.h"
#include "session/recorder.h"

namespace hiwater::interpose {

namespace {

PyObjectArenaAllocator g_arena_below;
bool g_arena_installed = false;

void* arena_alloc(void*, std::size_t bytes) {
    void* at;
    {
        Covered covered;
        at = g_arena_below.alloc(g_arena_below.ctx, bytes);
    }
    if (at != nullptr && recording()) recorder().on_arena(reinterpret_cast<std::uintptr_t>(at), bytes);
    return at;
}

void arena_free(void*, void* at, std::size_t bytes) {
    TakenRange gone;
    if (recording()) {
        recorder().take_range(reinterpret_cast<std::uintptr_t>(at), bytes, &gone);
        recorder().note_arena_freed(bytes);
    }
    g_arena_below.free(g_arena_below.ctx, at, bytes);
    spare_room.refill();
}

}  // namespace

void install_arenas() {
    if (g_arena_installed) return;
    PyObject_GetArenaAllocator(&g_arena_below);
    PyObjectArenaAllocator ours{g_arena_below.ctx, arena_alloc, arena_free};  // only functions change: see Domain
    PyObject_SetArenaAllocator(&ours);
    g_arena_installed = true;
}

void remove_arenas() noexcept {
    PyObjectArenaAllocator now;
    PyObject_GetArenaAllocator(&now);
    if (!g_arena_installed || now.alloc != arena_alloc) return;
    PyObject_SetArenaAllocator(&g_arena_below);
    g_arena_installed = false;
}

}  // namespace hiwater::interpose
