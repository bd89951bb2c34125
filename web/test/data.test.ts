import assert from "node:assert/strict";
import { test } from "node:test";
import { afterEach } from "../src/capture";
import { made, Packer } from "./made";

test("columns come back as they were, signed and large ones too", () => {
  const packer = new Packer();
  const lists = [[], [0, 0], [1, 255, 256], [-1, 0, 1, -300, 70000], [2 ** 40 + 3, 5], [-(2 ** 45), 2 ** 45]];
  const columns = lists.map((list) => packer.add(list));
  const unpacked = packer.unpacked({});
  lists.forEach((list, index) => assert.deepEqual(Array.from(unpacked.numbers(columns[index])), list));
  assert.deepEqual(Array.from(unpacked.ints(columns[3])), lists[3]);
});

test("the first path after all below a path", () => {
  assert.deepEqual(Array.from(afterEach(Int32Array.from([0, 0, 1, 1, 3, 0]))), [6, 5, 3, 5, 5, 6]);
});

test("a window is its highest slice, an instant the slice it lies in", () => {
  const capture = made([{ path: [["f", "/a.py", 1]], peak: 9, slices: [1, 9, 4, 9] }], 4);
  assert.equal(capture.window(0, 0.9).slice, 0);
  assert.equal(capture.window(2.5, 2.5).slice, 2);
  assert.equal(capture.window(0, 4).slice, 1); // the first of equals
  assert.equal(capture.window(1, 1).slice, 1); // a slice ends where the next begins
  assert.equal(capture.window(99, 99).slice, 3);
});

test("what holders had in a slice is the sum of the changes up to it", () => {
  const capture = made(
    [
      { path: [["f", "/a.py", 1]], peak: 7, slices: [3, 7, 0] },
      { path: [["g", "/a.py", 2]], peak: 1, slices: [0, 1, 1] },
    ],
    3,
  );
  const held = [0, 1, 2].map((slice) => Array.from(capture.held({ at: "slice", slice, asked: null }).bytes));
  assert.deepEqual(held, [
    [3, 0],
    [7, 1],
    [0, 1],
  ]);
  assert.deepEqual(Array.from(capture.overTime(Int32Array.from([0, -1]), 1)[0]), [3, 7, 0]);
  assert.deepEqual(
    capture.overTime(Int32Array.from([1, 0]), 2).map((row) => Array.from(row)),
    [
      [0, 1, 1],
      [3, 7, 0],
    ],
  );
});
