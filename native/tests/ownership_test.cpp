#include "stacks/ownership.h"
#include "support.h"

namespace hiwater::tests {

TEST_SUITE_BEGIN("ownership");

using capture::Owner;

TEST_CASE("a star stands for any text, also for none") {
    CHECK(matches("", ""));
    CHECK(!matches("", "x"));
    CHECK(matches("*", ""));
    CHECK(matches("<*>", "<x>"));
    CHECK(!matches("<*>", "<"));  // the pieces do not share a character
    CHECK(matches("*/lib/python3.*/*", "/usr/lib/python3.11/json/decoder.py"));
    CHECK(!matches("*/lib/python3.*/*", "/usr/lib/python3.11"));
    CHECK(matches("*-packages/shop/*", "/v/site-packages/shop/core.py"));
    CHECK(!matches("*-packages/shop/*", "/v/site-packages/shopping/core.py"));
    CHECK(matches("a*b*a", "abba"));
    CHECK(!matches("a*b*a", "aba b"));
    CHECK(matches("*ab", "aab"));
    CHECK(!matches("*a", "ab"));
    CHECK(matches("**", ""));
}

TEST_CASE("a question mark stands for one character") {
    CHECK(matches("a?c", "abc"));
    CHECK(!matches("a?c", "ac"));
    CHECK(!matches("?", ""));
    CHECK(matches("*/?\?/c?\?\?.py", "/tmp/x/bc/c123.py"));
    CHECK(!matches("*/?\?/c?\?\?.py", "/tmp/x/bcd/c123.py"));
    CHECK(!matches("*/?\?/c?\?\?.py", "/tmp/x/bc/c1234.py"));
}

TEST_CASE("the first rule that matches counts, and each file is looked at once") {
    Ownership ownership;
    ownership.begin({{"*/shop/*", Owner::own}, {"*-packages/*", Owner::library}, {"/none", Owner::imports}});
    CHECK(ownership.owner_of(3, "/v/site-packages/shop/core.py") == Owner::own);
    CHECK(ownership.owner_of(7, "/v/site-packages/numpy/core.py") == Owner::library);
    CHECK(ownership.owner_of(2, "/none") == Owner::imports);
    CHECK(ownership.owner_of(5, "/elsewhere") == Owner::library);
    CHECK(ownership.owner_of(3, "/none") == Owner::own);  // of the string that the number stands for
}

TEST_SUITE_END();

}  // namespace hiwater::tests
