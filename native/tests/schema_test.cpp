// The schema text is JSON that names every table and puts every field inside its record, next to its neighbours.
#include <cctype>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <iterator>
#include <string>
#include <vector>

#include "capture/capture_file.h"
#include "support.h"

namespace hiwater::tests {

namespace {

struct Value {
    enum class Sort { number, text, list, object } sort = Sort::number;
    std::uint64_t number = 0;
    std::string text;
    std::vector<Value> list;
    std::map<std::string, Value> object;
};

// As much of JSON as the schema uses: objects, lists, texts without escapes, whole numbers. Throws on anything else.
class Json {
public:
    explicit Json(std::string text) : text_(std::move(text)) {}

    Value whole() {
        Value v = value();
        while (at_ < text_.size() && text_[at_] == ' ') ++at_;
        if (at_ != text_.size()) throw std::runtime_error("something follows the value");
        return v;
    }

private:
    char here() const {
        if (at_ >= text_.size()) throw std::runtime_error("the text ends early");
        return text_[at_];
    }
    void expect(char c) {
        if (here() != c) throw std::runtime_error(std::string("expected ") + c + " at " + std::to_string(at_));
        ++at_;
    }
    std::string quoted() {
        expect('"');
        std::string s;
        while (here() != '"') s += text_[at_++];
        ++at_;
        if (s.find('\\') != std::string::npos) throw std::runtime_error("an escape");
        return s;
    }
    template <typename One>
    void separated(char open, char close, One one) {
        expect(open);
        for (bool first = true; here() != close; first = false) {
            if (!first) expect(',');
            one();
        }
        expect(close);
    }
    Value value() {
        Value v;
        if (here() == '{') {
            v.sort = Value::Sort::object;
            separated('{', '}', [&] {
                std::string name = quoted();
                expect(':');
                if (!v.object.emplace(name, value()).second) throw std::runtime_error("twice: " + name);
            });
        } else if (here() == '[') {
            v.sort = Value::Sort::list;
            separated('[', ']', [&] { v.list.push_back(value()); });
        } else if (here() == '"') {
            v.sort = Value::Sort::text;
            v.text = quoted();
        } else {
            if (std::isdigit(static_cast<unsigned char>(here())) == 0)
                throw std::runtime_error("no value at " + std::to_string(at_));
            while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0)
                v.number = v.number * 10 + (text_[at_++] - '0');
        }
        return v;
    }

    std::string text_;
    std::size_t at_ = 0;
};

// [name, type, offset] or [name, type, offset, count]; the type is "<u8", "<i4" or "S40".
void check_fields(const std::vector<Value>& fields, std::uint64_t record_bytes) {
    std::vector<bool> taken(record_bytes, false);
    for (const Value& field : fields) {
        REQUIRE(field.list.size() >= 3);
        const std::string& type = field.list[1].text;
        CAPTURE(field.list[0].text);
        const bool is_text = type[0] == 'S';
        REQUIRE((is_text || type.substr(0, 2) == "<u" || type.substr(0, 2) == "<i"));
        const std::uint64_t size = std::stoul(type.substr(is_text ? 1 : 2)),
                            count = field.list.size() > 3 ? field.list[3].number : 1;
        const std::uint64_t offset = field.list[2].number;
        REQUIRE(offset + size * count <= record_bytes);
        for (std::uint64_t i = offset; i < offset + size * count; ++i) {
            REQUIRE_FALSE(taken[i]);
            taken[i] = true;
        }
    }
}

Value schema() {
    std::string text(capture::kSchemaBytes, '?');
    capture::write_schema(text.data());
    return Json(text).whole();
}

}  // namespace

TEST_SUITE_BEGIN("schema");

TEST_CASE("the schema is JSON, says its version and names every table in order") {
    const Value all = schema();
    CHECK(all.object.at("format").text == "hiwater.capture");
    CHECK(all.object.at("version").number == capture::kVersion);
    const char* names[] = {
        "string_bytes",   "strings",         "codes",        "nodes",          "accounts",          "account_peaks",
        "slices",         "slice_entries",   "timeline",     "facts",          "markers",           "residency",
        "large_blocks",   "pressure",        "devices",      "device_samples", "device_terms",      "scopes",
        "live_snapshots", "holder_searches", "holder_paths", "holder_blocks",  "holder_references", "relatives"};
    static_assert(std::size(names) == capture::kTables);
    const std::vector<Value>& tables = all.object.at("tables").list;
    REQUIRE(tables.size() == capture::kTables);
    for (std::uint32_t i = 0; i < capture::kTables; ++i) CHECK(tables[i].object.at("name").text == names[i]);
}

TEST_CASE("fields lie inside their records and not over one another, and leave no byte of a table's record unnamed") {
    const Value all = schema();
    check_fields(all.object.at("header").list, sizeof(capture::Header));
    for (const Value& table : all.object.at("tables").list) {
        CAPTURE(table.object.at("name").text);
        const std::uint64_t record_bytes = table.object.at("record_bytes").number;
        check_fields(table.object.at("fields").list, record_bytes);
        std::uint64_t named = table.object.at("fields").list.empty() ? 1 : 0;
        for (const Value& field : table.object.at("fields").list)
            named += std::stoul(field.list[1].text.substr(2)) * (field.list.size() > 3 ? field.list[3].number : 1);
        CHECK(named == record_bytes);
    }
}

TEST_CASE("the reader of this test refuses what is no JSON") {
    for (const char* wrong : {"{", "[1,]", "{\"a\":1,\"a\":2}", "[1] x", "[\"a]", "[a]"})
        CHECK_THROWS(Json(wrong).whole());
}

TEST_SUITE_END();

}  // namespace hiwater::tests
