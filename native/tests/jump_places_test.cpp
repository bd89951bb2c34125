#include "base/jump_places.h"

#include <alloca.h>
#include <setjmp.h>

#include <cstring>

#include "base/stack_place.h"
#include "support.h"

namespace hiwater::tests {

namespace {

// Whether the stack pointer is read from a place that lies `deep` frames and `below` bytes further down.
[[gnu::noinline]] bool is_read(const JumpPlaces& places, int deep, std::size_t below) {
    char* const room = static_cast<char*>(alloca(below));
    std::memset(room, deep, below);
    if (deep != 0) return is_read(places, deep - 1, below + 16) && room[0] == deep;
    std::uintptr_t stack = 0;
    sigjmp_buf place;
    store_stack_pointer(&stack);
    return sigsetjmp(place, 1) == 0 && places.stack_at(place) == stack;
}

}  // namespace

TEST_SUITE_BEGIN("jump places");

TEST_CASE("the stack pointer is found in what this C library's setjmp() saves") {
    JumpPlaces places;
    CHECK(!places.are_known());
    places.learn();
    REQUIRE(places.are_known());
    for (int deep = 0; deep < 20; ++deep)
        for (std::size_t below : {16, 32, 496, 512, 4080, 5000}) CHECK(is_read(places, deep, below));
}

TEST_SUITE_END();

}  // namespace hiwater::tests
