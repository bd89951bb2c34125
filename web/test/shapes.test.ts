import assert from "node:assert/strict";
import { test } from "node:test";
import { stateOf } from "../src/change";
import { Painter } from "../src/colour";
import { afterKey, boxIn } from "../src/flame";
import { ownLines, rank } from "../src/ranking";
import { search } from "../src/search";
import { ALL_FRAMES, chosen, figuresOf, type Look, Shape } from "../src/shape";
import { Inverted, layout, MOST_CALLERS, type Tree, Upright } from "../src/tree";
import { made } from "./made";

const LOOK: Look = { ...ALL_FRAMES, hideImports: true };
const ALL = { thread: -1, kind: -1 };

const capture = made([
  {
    path: [
      ["main", "/app/a.py", 1],
      ["load", "/app/a.py", 5],
      ["read", "/lib/python3.11/io.py", 9],
    ],
    peak: 60,
    kind: 1,
  },
  {
    path: [
      ["main", "/app/a.py", 1],
      ["load", "/app/a.py", 5],
    ],
    peak: 20,
  },
  {
    path: [
      ["main", "/app/a.py", 2],
      ["<module>", "<frozen importlib._bootstrap>", 3],
      ["<module>", "/app/b.py", 1],
    ],
    peak: 15,
  },
  {
    path: [
      ["work", "/app/a.py", 7],
      ["work", "/app/a.py", 7],
    ],
    peak: 5,
    thread: "worker",
  },
  { path: [["main", "/app/a.py", 1]], peak: 1000, kind: 7 }, // listed, not counted
]);

function treeOf(look: Look, inverted = false, choice = ALL): Tree {
  const shape = new Shape(capture, look);
  const figures = figuresOf(shape, capture.peak, chosen(capture, choice));
  return inverted ? new Inverted(shape, figures) : new Upright(shape, figures);
}

const name = (tree: Tree, node: number) => tree.shape.keys.list[tree.key(node)].name;

/** The tree as nested text, with what each node has. */
function told(tree: Tree, node = 0): string {
  const children = tree
    .children(node)
    .map((child) => told(tree, child))
    .join(" ");
  const own = node === 0 ? `${tree.bytes(0)}` : `${name(tree, node)} ${tree.bytes(node)}`;
  return children ? `${own}(${children})` : own;
}

test("upright: equal frames are one, the largest first, what is not counted is not there", () => {
  assert.equal(told(treeOf(LOOK)), "100(main 80(load 80(read 60)) main 15(<module> 15) work 5(work 5))");
});

test("by function lines are one, by file a callee in the same file is its caller", () => {
  assert.equal(told(treeOf({ ...LOOK, by: "function" })), "100(main 95(load 80(read 60) <module> 15) work 5(work 5))");
  assert.equal(told(treeOf({ ...LOOK, by: "file" })), "100(a.py 100(io.py 60 b.py 15))");
  assert.equal(told(treeOf({ ...LOOK, by: "thread" })), "100(MainThread 95 worker 5)");
});

test("by function equal names are told apart by their first lines, and a comprehension is part of its function", () => {
  const lambdas = made([
    {
      path: [
        ["main", "/app/a.py", 9, 8],
        ["<lambda>", "/app/a.py", 2, 2],
      ],
      peak: 30,
    },
    {
      path: [
        ["main", "/app/a.py", 9, 8],
        ["<lambda>", "/app/a.py", 4, 4],
      ],
      peak: 20,
    },
    {
      path: [
        ["main", "/app/a.py", 10, 8],
        ["main.<locals>.<listcomp>", "/app/a.py", 10, 8, "main"],
      ],
      peak: 10,
    },
  ]);
  const shape = new Shape(lambdas, { ...LOOK, by: "function" });
  const tree = new Upright(shape, figuresOf(shape, lambdas.peak, chosen(lambdas, ALL)));
  assert.equal(told(tree), "60(main 60(<lambda> 30 <lambda> 20))");
  assert.deepEqual(
    rank(shape, lambdas.peak, ALL).map((row) => [row.key.name, row.key.line, row.ownBytes]),
    [
      ["<lambda>", 2, 30],
      ["<lambda>", 4, 20],
      ["main", 8, 10],
    ],
  );
});

test("what is left out gives what it holds to its caller", () => {
  assert.equal(
    told(treeOf({ ...LOOK, hideImports: false })),
    "100(main 80(load 80(read 60)) main 15(<module> 15(<module> 15)) work 5(work 5))",
  );
  assert.equal(
    told(treeOf({ ...LOOK, libraries: "hidden" })),
    "100(main 80(load 80) main 15(<module> 15) work 5(work 5))",
  );
  assert.equal(told(treeOf({ ...LOOK, hide: "LOAD" })), "100(main 80(read 60) main 15(<module> 15) work 5(work 5))");
});

test("inverted: from what asked to its callers, with the same sum", () => {
  const tree = treeOf(LOOK, true);
  assert.equal(told(tree), "100(read 60(load 60(main 60)) load 20(main 20) <module> 15(main 15) work 5(work 5))");
  assert.equal(tree.own(tree.children(0)[0]), 0);
  assert.deepEqual(
    [0, 1, 2].map((kind) => tree.kindBytes(0, kind)),
    [40, 60, 0],
  );
});

test("one thread, one kind", () => {
  assert.equal(treeOf(LOOK, false, { thread: 1, kind: -1 }).bytes(0), 5);
  assert.equal(treeOf(LOOK, false, { thread: -1, kind: 1 }).bytes(0), 60);
  assert.equal(treeOf(LOOK, true, { thread: 0, kind: 7 }).bytes(0), 1000);
});

test("a search counts each byte once and marks every frame that matches", () => {
  const { shape } = treeOf(LOOK);
  const counts = chosen(capture, ALL);
  const find = (wanted: string) => {
    const found = search(shape, capture.peak, counts, wanted);
    return found && [found.bytes, found.frames];
  };
  assert.deepEqual(find("work"), [5, 1]);
  assert.deepEqual(find("a.py"), [100, 4]);
  assert.deepEqual(find("/^(read|load)/"), [80, 2]);
  assert.equal(find("/(/"), null);
  assert.equal(find("  "), null);
  assert.deepEqual(find("nothing"), [0, 0]);
});

test("rows: own bytes sum to all, a function that calls itself is counted once", () => {
  const rows = rank(new Shape(capture, { ...LOOK, by: "function", hideImports: false }), capture.peak, ALL);
  assert.equal(
    rows.reduce((sum, row) => sum + row.ownBytes, 0),
    100,
  );
  assert.deepEqual(
    rows.map((row) => [row.key.name, row.ownBytes, row.totalBytes]),
    [
      ["read", 60, 60],
      ["load", 20, 80],
      ["<module>", 15, 15],
      ["work", 5, 5],
      ["main", 0, 95],
      ["<module>", 0, 15],
    ],
  );
});

test("own lines: each byte at the innermost line of one's own code", () => {
  const lines = ownLines(capture, capture.peak, chosen(capture, ALL));
  assert.deepEqual(
    lines.map((line) => [line.key.name, line.key.line, line.bytes]),
    [
      ["load", 5, 80],
      ["<module>", 1, 15],
      ["work", 7, 5],
    ],
  );
});

test("frames stand side by side below their callers, narrow ones are left out, a zoom takes all of the width", () => {
  const tree = treeOf(LOOK);
  const boxes = layout(tree, 0, 0.1);
  assert.deepEqual(
    boxes
      .filter((box) => box.row === 1)
      .map((box) => [name(tree, box.node), box.x, box.width])
      .sort(),
    [
      ["main", 0, 0.8],
      ["main", 0.8, 0.15],
    ],
  );
  const zoomed = layout(tree, tree.children(tree.children(0)[0])[0], 0.1);
  assert.deepEqual(
    zoomed.map((box) => [box.row, box.width]),
    [
      [0, 1],
      [1, 1],
      [2, 1],
      [3, 0.75],
    ],
  );
});

test("libraries collapse into the line that called them, and open one by one", () => {
  const collapsed = made([
    {
      path: [
        ["main", "/app/a.py", 1],
        ["read", "/lib/python3.11/io.py", 9],
        ["parse", "/lib/python3.11/re.py", 2],
        ["callback", "/app/a.py", 5],
      ],
      peak: 30,
    },
    {
      path: [
        ["main", "/app/a.py", 1],
        ["seek", "/lib/python3.11/io.py", 20],
      ],
      peak: 10,
    },
  ]);
  const look: Look = { ...LOOK, libraries: "collapsed" };
  const tree = (opened: number[]) => {
    const shape = new Shape(collapsed, { ...look, opened: new Set(opened) });
    return new Upright(shape, figuresOf(shape, collapsed.peak, chosen(collapsed, ALL)));
  };
  const names = (of: Tree, node = 0): unknown =>
    of.children(node).map((child) => [name(of, child), of.bytes(child), names(of, child)]);
  const closed = tree([]);
  assert.deepEqual(names(closed), [["main", 40, [["in io", 40, [["callback", 30, []]]]]]]);
  const inIo = closed.children(closed.children(0)[0])[0];
  assert.deepEqual(names(tree([closed.shape.first[inIo]])), [
    [
      "main",
      40,
      [
        ["read", 30, [["parse", 30, [["callback", 30, []]]]]],
        ["seek", 10, []],
      ],
    ],
  ]);
});

test("an inverted tree counts what allocates nothing now in the figures over the run", () => {
  const gone = made([
    { path: [["f", "/app/a.py", 1]], peak: 5 },
    { path: [["g", "/app/a.py", 2]], peak: 0, run: 9 },
  ]);
  const shape = new Shape(gone, LOOK);
  const tree = new Inverted(shape, figuresOf(shape, gone.peak, chosen(gone, ALL)));
  assert.deepEqual([tree.bytes(0), tree.children(0).length], [5, 1]);
  assert.equal(tree.part(0)[shape.place[gone.holderNode[1]]], 1);
});

test("a page that compares two: growth is summed like bytes, and colours say which way", () => {
  const two = made([
    {
      path: [
        ["main", "/app/a.py", 1],
        ["more", "/app/a.py", 2],
      ],
      peak: 100,
      delta: 90,
    },
    {
      path: [
        ["main", "/app/a.py", 1],
        ["less", "/app/a.py", 3],
      ],
      peak: 10,
      delta: -40,
    },
  ]);
  const shape = new Shape(two, LOOK);
  const figures = figuresOf(shape, two.peak, chosen(two, ALL));
  for (const tree of [new Upright(shape, figures), new Inverted(shape, figures)]) {
    const delta = (node: number) => tree.bytes(node) - tree.before(node);
    assert.deepEqual([delta(0), tree.width(0)], [50, 150]);
    const [more, less] = [...tree.children(0)].flatMap((node) =>
      name(tree, node) === "main" ? tree.children(node) : [node],
    );
    assert.deepEqual([delta(more), delta(less)], [90, -40]);
    const paint = new Painter(tree, "delta", false);
    assert.match(paint.of(more).fill, /^hsl\(8 /);
    assert.match(paint.of(less).fill, /^hsl\(187 /);
  }
  // A moment that nobody asked for stands beside the one that was asked for, which is the peak here.
  assert.deepEqual(Array.from(two.held({ at: "slice", slice: 0, asked: null }).before!), [10, 50]);
  assert.deepEqual(
    rank(shape, two.peak, ALL).map((row) => [row.key.name, row.ownBytes, row.ownBefore, row.totalBefore]),
    [
      ["more", 100, 10, 10],
      ["less", 10, 50, 50],
      ["main", 0, 0, 60],
    ],
  );
  assert.deepEqual(
    [stateOf(0, 5, 0), stateOf(5, 0, 0), stateOf(5, 9, 2), stateOf(5, 9, 1), stateOf(9, 5, 0), stateOf(5, 5, 0)],
    ["new", "gone", "within error", "grew", "shrank", "unchanged"],
  );
});

test("what stands on sampled blocks is summed apart and gives the standard error", () => {
  const two = made([
    { path: [["main", "/app/a.py", 1]], peak: 100, sampled: 1 },
    { path: [["main", "/app/a.py", 1]], peak: 10 },
  ]);
  const shape = new Shape(two, LOOK);
  const figures = figuresOf(shape, two.peak, chosen(two, ALL));
  for (const tree of [new Upright(shape, figures), new Inverted(shape, figures)]) {
    assert.deepEqual([tree.bytes(0), tree.sampled(0), two.errorOf(tree.sampled(0))], [110, 100, 80]);
  }
  const [row] = rank(shape, two.peak, ALL);
  assert.deepEqual([row.ownBytes, row.ownSampled, row.totalSampled], [110, 100, 100]);
});

test("colours by kind and by module, paler for what is not one's own", () => {
  const tree = treeOf(LOOK);
  const [main] = tree.children(0);
  const [load] = tree.children(main);
  const [read] = tree.children(load);
  const saturation = (fill: string) => Number(/ (\d+)% /.exec(fill)![1]);
  for (const colouring of ["kind", "module"] as const) {
    for (const isDark of [false, true]) {
      const painter = new Painter(tree, colouring, isDark);
      assert.ok(saturation(painter.of(read).fill) < saturation(painter.of(load).fill));
      assert.equal(painter.of(load).fill, new Painter(tree, colouring, isDark).of(load).fill);
    }
  }
});

test("an inverted tree of deep recursion has a bound, and a zoom goes further", () => {
  const depth = 1000;
  const down = made(
    [1, 2, 3].map((short) => ({
      path: Array.from({ length: depth - short }, () => ["down", "/app/a.py", 3]),
      peak: 10,
    })),
  );
  const shape = new Shape(down, LOOK);
  const figures = figuresOf(shape, down.peak, chosen(down, ALL));
  assert.equal(layout(new Upright(shape, figures), 0, 0).length, depth);
  const tree = new Inverted(shape, figures);
  const boxes = layout(tree, 0, 0);
  assert.equal(Math.max(...boxes.map((box) => box.row)), MOST_CALLERS);
  const last = boxes.find((box) => box.row === MOST_CALLERS)!;
  assert.equal(Math.max(...layout(tree, last.node, 0).map((box) => box.row)), 2 * MOST_CALLERS);
});

test("keys go where the eye goes", () => {
  const tree = treeOf(LOOK);
  const boxes = layout(tree, 0, 0);
  const rows = boxes.reduce<(typeof boxes)[]>((list, box) => ((list[box.row] ??= []).push(box), list), []);
  rows.forEach((row) => row.sort((one, other) => one.x - other.x));
  const at = (selected: number, key: string, rootBelow = false) =>
    afterKey(key, { tree, boxes, rows, selected, zoom: 0, rootBelow });
  const [first, second] = tree.children(0);
  assert.deepEqual(at(0, "ArrowDown"), { node: first });
  assert.deepEqual(at(0, "ArrowUp", true), { node: first });
  assert.deepEqual(at(first, "ArrowRight"), { node: second });
  assert.deepEqual(at(second, "ArrowLeft"), { node: first });
  assert.deepEqual(at(second, "ArrowUp"), { node: 0 });
  assert.deepEqual(at(first, "Enter"), { zoom: first });
  assert.equal(at(first, "Escape"), null);
  assert.equal(at(first, "x"), null);
  assert.equal(boxIn(rows[1], 0.81)?.node, second);
  assert.equal(boxIn(rows[1], 1), null);
});

test("of a recording with native frames, Python's, both or native ones are shown", () => {
  const path: [string, string, number][] = [
    ["main", "/app/a.py", 1],
    ["solve", "/app/solver.so", 0],
    ["take", "/lib/blas.so", 0],
  ];
  const capture = made([
    { path, peak: 60 },
    { path: path.slice(0, 1), peak: 5 },
  ]);
  const shown = (frames: Look["frames"]) => {
    const shape = new Shape(capture, { ...ALL_FRAMES, frames });
    const { own } = figuresOf(shape, capture.peak, chosen(capture, ALL));
    return Array.from(shape.key.slice(1), (key, place) => `${shape.keys.list[key].name} ${own[place + 1]}`);
  };
  assert.deepEqual(shown("python"), ["main 65"]);
  assert.deepEqual(shown("mixed"), ["main 5", "solve 0", "take 60"]);
  assert.deepEqual(shown("native"), ["solve 0", "take 60"]);
});
