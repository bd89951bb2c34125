import assert from "node:assert/strict";
import { test } from "node:test";
import { highlighted } from "../src/highlight";

test("Python source in pieces: strings over lines, comments, keywords, and every letter kept", () => {
  const lines = [
    'def f(x): # "not a string"',
    '    """A text',
    "    with 'quotes' and # no comment",
    '    """ + name',
    "    return rb'a\\'b' if définir else 0x1F",
    "@decorated.twice",
    "    'open",
    "café = inside",
  ];
  const told = highlighted(lines);
  assert.deepEqual(
    told.map((line) => line.map((piece) => piece[1]).join("")),
    lines,
  );
  assert.deepEqual(told[0], [
    ["key", "def"],
    ["", " f(x): "],
    ["note", '# "not a string"'],
  ]);
  assert.deepEqual(told[2], [["text", lines[2]]]);
  assert.deepEqual(told[3], [
    ["text", '    """'],
    ["", " + name"],
  ]);
  assert.deepEqual(told[4], [
    ["", "    "],
    ["key", "return"],
    ["", " "],
    ["text", "rb'a\\'b'"],
    ["", " "],
    ["key", "if"],
    ["", " définir "],
    ["key", "else"],
    ["", " "],
    ["number", "0x1F"],
  ]);
  assert.deepEqual([told[5], told[7]], [[["key", lines[5]]], [["", lines[7]]]]);
});
