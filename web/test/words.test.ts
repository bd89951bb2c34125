import assert from "node:assert/strict";
import { test } from "node:test";
import { printable, share, shortened, shortPath, size } from "../src/words";

test("sizes as everywhere in hiwater", () => {
  assert.deepEqual([0, 1023, 1024, 851862323, -2048].map(size), ["0 B", "1023 B", "1.0 KiB", "812.4 MiB", "−2.0 KiB"]);
  assert.deepEqual([share(1, 3), share(0, 0)], ["33.3 %", "–"]);
  // Half-way between two digits, as Python has it.
  const MIB = 2 ** 20;
  assert.deepEqual(
    [157.25, 157.75, 3].map((value) => size(value * MIB)),
    ["157.2 MiB", "157.8 MiB", "3.0 MiB"],
  );
  assert.deepEqual([share(1, 16), share(3, 16), share(1, 800)], ["6.2 %", "18.8 %", "0.1 %"]);
});

test("names stay names", () => {
  assert.equal(printable("a\x1b[31mb\u202e\n\u2028"), "a\\x1b[31mb\\u202e\\x0a\\u2028");
  assert.equal(printable("café 😀 👩‍👩‍👧 ❤️"), "café 😀 👩‍👩‍👧 ❤️");
  assert.equal(shortened("abcdefghij", 5), "ab…ij");
});

test("paths without what says nothing", () => {
  assert.equal(shortPath("/v/lib/python3.11/site-packages/pandas/core/frame.py"), "pandas/core/frame.py");
  assert.equal(shortPath("/usr/lib/python3.13t/json/decoder.py"), "json/decoder.py");
  assert.equal(shortPath("/home/me/etl.py"), "etl.py");
  assert.equal(shortPath("/home/me/pkg/__init__.py"), "pkg/__init__.py");
  assert.equal(shortPath("<string>"), "<string>");
});
