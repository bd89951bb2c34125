#include "base/own_limit.h"

#include <sys/resource.h>

#include <thread>
#include <vector>

#include "support.h"

namespace hiwater::tests {

TEST_SUITE_BEGIN("threads");

// Far above what a process under TSan reserves.
constexpr std::uint64_t kCeiling = std::uint64_t{1} << 60, kModules = 8 << 20, kPage = 4096;

// Leaves the limit as it was.
struct AddressSpaceLimit {
    rlimit before{};
    AddressSpaceLimit() { ::getrlimit(RLIMIT_AS, &before); }
    ~AddressSpaceLimit() { ::setrlimit(RLIMIT_AS, &before); }
    static rlim_t now() {
        rlimit limit{};
        ::getrlimit(RLIMIT_AS, &limit);
        return limit.rlim_cur;
    }
};

TEST_CASE("a ceiling holds while threads map and unmap pages of the recorder at once") {
    const AddressSpaceLimit guard;
    OwnLimit limit;
    REQUIRE(limit.set(kCeiling));
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&limit] {
            for (int turn = 0; turn < 5'000; ++turn) {
                limit.add(2 * kPage);
                limit.remove(kPage);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    constexpr std::uint64_t kOwn = kModules + std::uint64_t{4} * 5'000 * kPage;
    CHECK(limit.in_force().limit == static_cast<std::int64_t>(kCeiling));
    CHECK(limit.in_force().uncounted == static_cast<std::int64_t>(kOwn));
    CHECK(AddressSpaceLimit::now() / kPage == (kCeiling + kOwn) / kPage);
}

TEST_CASE("a limit that the program sets since holds") {
    const AddressSpaceLimit guard;
    OwnLimit limit;
    REQUIRE(limit.set(kCeiling));
    rlimit theirs{kCeiling / 2, guard.before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_AS, &theirs) == 0);
    limit.add(kPage);
    CHECK(AddressSpaceLimit::now() == kCeiling / 2);
    CHECK(limit.in_force().limit == static_cast<std::int64_t>(kCeiling / 2));
    CHECK(limit.in_force().uncounted == 0);
}

TEST_SUITE_END();

}  // namespace hiwater::tests
