#include "stacks/call_tree.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "support.h"

namespace hiwater::tests {

using capture::CodeKind;
using capture::Table;

namespace {

std::string some_text(Trace& trace) {
    const std::uint64_t length = trace.one_in(20) ? trace.below(60'000) : trace.below(40);
    std::string text(length, ' ');
    for (char& c : text) c = static_cast<char>('a' + trace.below(3));
    return text;
}

struct Tree {
    Folder folder;
    capture::CaptureFile file;
    CallTree tree;

    Tree() {
        REQUIRE(make(file, folder.file("tree.hiw")) == 0);
        tree.attach(file);
    }
};

}  // namespace

TEST_SUITE_BEGIN("call tree");

TEST_CASE("equal texts are one string, and a reader finds each where the record says") {
    for_seeds(6, [](Trace& trace) {
        Tree t;
        std::map<std::string, std::uint32_t> model;
        for (int step = 0; step < 1500; ++step) {
            const std::string text = some_text(trace);
            const std::uint32_t id = t.tree.string(text);
            const auto [known, fresh] = model.emplace(text, id);
            REQUIRE(known->second == id);
            REQUIRE(t.tree.text_of(id) == text);
        }
        const FileView view(t.folder.file("tree.hiw"));
        CHECK(view.is_whole());
        CHECK(view.count(Table::strings) == model.size() + 1);
        CHECK(view.count(Table::string_bytes) > 3 * capture::kExtentBytes);  // the texts did fill several extents
        for (const auto& [text, id] : model) {
            const auto& record = view.record<capture::StringRecord>(Table::strings, id);
            REQUIRE(record.offset / capture::kExtentBytes ==
                    (record.offset + std::max(record.length, 1u) - 1) / capture::kExtentBytes);
            REQUIRE(view.text(id) == text);
        }
    });
}

TEST_CASE("a text as long as an extent fits, and one that fills the rest of an extent stays in it") {
    Tree t;
    const std::string rest(capture::kExtentBytes - 1, 'r'), whole(capture::kExtentBytes, 'w');
    const std::uint32_t one = t.tree.string("1"), filling = t.tree.string(rest), full = t.tree.string(whole),
                        last = t.tree.string("2");
    CHECK(t.tree.text_of(one) == "1");
    CHECK(t.tree.text_of(filling) == rest);
    CHECK(t.tree.text_of(full) == whole);
    CHECK(t.tree.text_of(last) == "2");
    CHECK(FileView(t.folder.file("tree.hiw")).count(Table::string_bytes) == 2 * capture::kExtentBytes + 1);
}

TEST_CASE("equal paths are one node, different paths are not") {
    for_seeds(6, [](Trace& trace) {
        Tree t;
        std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::uint32_t> nodes;
        std::map<std::tuple<std::string, std::string, std::uint32_t>, std::uint32_t> codes;
        std::vector<std::uint32_t> all_nodes{0};
        for (int step = 0; step < 6000; ++step) {
            const std::string function = "f" + std::to_string(trace.below(40)),
                              source = trace.one_in(2) ? "a.py" : "b.py";
            const auto first_line = static_cast<std::uint32_t>(trace.below(3));
            const std::uint32_t code = t.tree.code(function, source, first_line, CodeKind::python);
            REQUIRE(codes.emplace(std::tuple{function, source, first_line}, code).first->second == code);
            const std::uint32_t parent = trace.one_in(4) ? all_nodes.front() : trace.pick(all_nodes);
            const auto line = static_cast<std::uint32_t>(trace.below(5));
            const bool is_joint = source == "b.py";
            const std::uint32_t node = is_joint ? t.tree.joint(parent, code, line) : t.tree.child(parent, code, line);
            const auto [known, fresh] = nodes.emplace(std::tuple{parent, code, line}, node);
            REQUIRE(known->second == node);
            if (fresh && !is_joint) all_nodes.push_back(node);
        }
        CHECK(t.tree.node_count() == nodes.size() + 1);
        CHECK(t.tree.code_count() == codes.size() + 1);
        CHECK(t.tree.is_consistent());
        for (const auto& [path, node] : nodes) {
            const capture::NodeRecord& n = t.tree.node(node);
            REQUIRE(std::tuple{n.parent, n.code, n.line} == path);
        }
    });
}

TEST_CASE("a code that differs in its owner alone is another code") {
    Tree t;
    const auto own = t.tree.code("<lambda>", "<string>", 1, CodeKind::python, capture::Owner::own);
    CHECK(t.tree.code("<lambda>", "<string>", 1, CodeKind::python) != own);
    CHECK(t.tree.code("<lambda>", "<string>", 1, CodeKind::python, capture::Owner::own) == own);
    CHECK(t.tree.is_consistent());
}

TEST_CASE("a code that differs in its kind alone is another code") {
    Tree t;
    CHECK(t.tree.code("f", "", 0, CodeKind::thread) != t.tree.code("f", "", 0, CodeKind::label));
}

TEST_CASE("code objects are known by address until they die; the same function again is the same code") {
    Tree t;
    const int first = 0, second = 0;
    const std::uint32_t code = t.tree.code("f", "a.py", 1, CodeKind::python);
    t.tree.remember_code(&first, code);
    CHECK(t.tree.known_code(&first) == code);
    CHECK(t.tree.known_code(&second) == 0);
    CHECK(t.tree.forget_code(&first));
    CHECK_FALSE(t.tree.forget_code(&first));
    CHECK(t.tree.known_code(&first) == 0);
    CHECK(t.tree.code("f", "a.py", 1, CodeKind::python) == code);
}

TEST_CASE("the consistency check sees a record that was changed") {
    Tree t;
    const std::uint32_t code = t.tree.code("f", "a.py", 1, CodeKind::python);
    const std::uint32_t behind = t.tree.child(0, code, 4);  // it lies behind its parent, and is in no hash table
    const std::uint32_t node = t.tree.child(0, code, 5);
    CHECK(t.tree.is_consistent());
    const_cast<capture::NodeRecord&>(t.tree.node(node)).line = 6;
    CHECK_FALSE(t.tree.is_consistent());
    const_cast<capture::NodeRecord&>(t.tree.node(node)).line = 5;
    const std::uint32_t linked = t.tree.joint(0, code, 7);
    CHECK(t.tree.is_consistent());
    const_cast<capture::NodeRecord&>(t.tree.node(linked)).parent = behind;
    CHECK_FALSE(t.tree.is_consistent());
}

TEST_CASE("a number that somebody wrote over one of the file's leads nowhere else") {
    Tree t;
    const std::uint32_t code = t.tree.code("work", "work.py", 1, CodeKind::python);
    const std::uint32_t node = t.tree.child(t.tree.child(0, code, 1), code, 2);
    constexpr std::uint32_t kNoise = 0x8badf00d;
    const_cast<capture::NodeRecord&>(t.tree.node(node)) = {kNoise, kNoise, 2, 0};
    CHECK(&t.tree.node(t.tree.node(node).parent) == &t.tree.node(0));
    CHECK(&t.tree.code_record(t.tree.node(node).code) == &t.tree.code_record(0));
    CHECK(t.tree.child(t.tree.node(node).parent, code, 3) == node + 1);
}

TEST_CASE("a node gets another code, and what is below goes with it") {
    Tree t;
    const std::uint32_t first = t.tree.code("first", "", 0, CodeKind::thread),
                        second = t.tree.code("second", "", 0, CodeKind::thread);
    const std::uint32_t code = t.tree.code("load", "load.py", 1, CodeKind::python);
    const std::uint32_t one = t.tree.child(0, first, 0), other = t.tree.child(0, second, 0),
                        below = t.tree.child(one, code, 7);
    CHECK(t.tree.find_code("first", CodeKind::thread) == first);
    CHECK(t.tree.find_code("third", CodeKind::thread) == 0);
    CHECK(t.tree.find_code("first", CodeKind::native_thread) == 0);
    const std::uint32_t third = t.tree.code("third", "", 0, CodeKind::thread);
    t.tree.change_code(one, third);
    CHECK(t.tree.child(0, third, 0) == one);
    CHECK(t.tree.child(one, code, 7) == below);
    CHECK(t.tree.child(0, first, 0) != one);
    CHECK(t.tree.is_consistent());
    t.tree.change_code(one, second);  // like another from here on
    const std::uint32_t either = t.tree.child(0, second, 0);
    CHECK((either == one || either == other));
    CHECK(t.tree.is_consistent());
    const FileView view(t.folder.file("tree.hiw"));
    CHECK(view.record<capture::NodeRecord>(Table::nodes, one).code == second);
}

TEST_SUITE_END();

}  // namespace hiwater::tests
