#include "capture/capture_file.h"

#include <atomic>
#include <string>
#include <thread>

#include "support.h"

namespace hiwater::tests {

TEST_SUITE_BEGIN("threads");

TEST_CASE("a capture that grows while another thread looks for its truncation is not truncated") {
    constexpr std::uint32_t kExtents = 600;
    const Folder folder;
    capture::CaptureFile file;
    REQUIRE(make(file, folder.file("a.hiw")) == 0);
    std::atomic<bool> is_over{false};
    std::thread sampler([&] {
        while (!is_over.load()) file.find_truncation();
    });
    for (std::uint32_t i = 0; i < kExtents; ++i) file.add_extent(capture::Table::nodes, i);
    is_over = true;
    sampler.join();
    CHECK_FALSE(file.is_truncated());
    file.finish(capture::State::ended);
}

TEST_SUITE_END();

}  // namespace hiwater::tests
