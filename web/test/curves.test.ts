import assert from "node:assert/strict";
import { test } from "node:test";
import { type Curve, curvesOf, stacked, valueAt } from "../src/curves";
import { made } from "./made";

test("curves of kinds have the high of each slice, which samples may miss", () => {
  const capture = made(
    [
      { path: [["f", "/a.py", 1]], peak: 7, slices: [3, 7, 0] },
      { path: [["g", "/a.py", 2]], kind: 1, peak: 5, slices: [0, 5, 5] },
    ],
    3,
  );
  const [at, curves] = curvesOf(capture);
  assert.deepEqual(at, [0, 0.5, 1, 1.5, 2, 2.5, 3]); // samples at whole seconds, highs between, and the end
  assert.deepEqual(
    curves.map((curve) => curve.label),
    ["resident", "Python objects", "native heap"],
  );
  assert.deepEqual(curves[1].values, [1, 3, 2, 7, 3, 0, 0]);
  assert.deepEqual(curves[2].values, [0, 0, 0, 5, 0, 5, 5]);
  assert.deepEqual(curves[0].values, [100, undefined, 200, undefined, 300, undefined, 80]);
  assert.deepEqual(
    [valueAt(at, curves[0], 1.5e9), valueAt(at, curves[1], 1.5e9), valueAt(at, curves[2], 99e9)],
    [200, 7, 5],
  );
});

test("kinds stand on one another and are drawn from the highest down, lines over them", () => {
  const curve = (group: Curve["group"], kind: number, values: number[]): Curve => ({
    label: "",
    group,
    kind,
    colour: kind,
    values,
  });
  const { order, data } = stacked(
    [0, 1],
    [curve("resident", -1, [9, 9]), curve("kind", 0, [1, 2]), curve("kind", 1, [3, 0]), curve("reserved", -1, [5, 6])],
  );
  assert.deepEqual(order, [2, 1, 0, 3]);
  assert.deepEqual(data, [
    [4, 2],
    [1, 2],
    [9, 9],
    [5, 6],
  ]);
});
