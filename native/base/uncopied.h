// Base of objects that must not be copied: guards of a scope, and owners of memory or a descriptor.
#pragma once

namespace hiwater {

struct Uncopied {
    Uncopied() = default;
    Uncopied(const Uncopied&) = delete;
    Uncopied& operator=(const Uncopied&) = delete;
};

}  // namespace hiwater
