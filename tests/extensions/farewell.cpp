// A library to load and unload that threads of the program have used: what it says farewell with allocates, and is
// C++'s to call.
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Farewell {
    std::vector<std::string> said{"a text that is too long for the room a string has within itself"};
    ~Farewell() {
        for (int i = 0; i < 20; ++i) said.push_back(std::string(50 * static_cast<std::size_t>(i), 'x'));
    }
};

thread_local Farewell of_thread;
Farewell of_library;

}  // namespace

extern "C" int say_farewell(int threads) {
    std::size_t said = 0;
    std::vector<std::thread> all;
    for (int i = 0; i < threads; ++i)
        all.emplace_back([] {
            of_thread.said.emplace_back(3000, 'y');
            try {
                throw std::make_unique<std::string>(500, 'z');  // what is thrown is allocated, too
            } catch (const std::unique_ptr<std::string>& thrown) {
                of_thread.said.push_back(*thrown);
            }
        });
    for (auto& thread : all) thread.join();
    said += of_library.said.size();
    return said == 1 ? 0 : -1;
}
