// What a program leaves that is about to be killed because memory runs out: a few lines in a file of the user's choice,
// which say how near it is to its limit and which line of its code has most. The file is rewritten in place whenever
// the picture is clearly worse. Kubernetes mounts its own (terminationMessagePath) as a single file, which cannot be
// replaced by another.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/pages.h"
#include "session/limits.h"
#include "session/top_line.h"

namespace hiwater {

// Of the sampler's thread, after begin(). Takes no memory from the program's heap.
class LastWords {
public:
    struct Text {
        char text[kPage];  // one page: the kernel writes it whole, even where the process is killed meanwhile
        std::size_t size = 0;
    };

    // `path` "": no file.
    void begin(const std::string& path, mode_t mode);
    bool have_file() const noexcept { return !path_.empty() && failure_.empty(); }
    // Whether the process is near the limit, and nearer by 1/64 of it than when this was last true: seven times on its
    // way to the limit.
    bool become_due(const NearestLimit& nearest) noexcept;
    void compose(const NearestLimit& nearest, const TopLineView& top, std::int64_t resident_bytes,
                 const std::string& capture, Text* out) const noexcept;
    // Returns false when they cannot be written, now or ever: failure() says why.
    bool write(Text& words) noexcept;
    const std::string& failure() const noexcept { return failure_; }

private:
    bool fail(const char* reason) noexcept;

    std::string path_, folder_, failure_;
    mode_t mode_ = 0;
    pid_t pid_ = 0;
    std::int64_t told_bytes_ = 0;
};

}  // namespace hiwater
