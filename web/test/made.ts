// Captures for tests, made through the same packed form that a page has.
import { Capture } from "../src/capture";
import { Unpacked } from "../src/columns";
import type { PackedColumn } from "../src/page";

export class Packer {
  private readonly bytes: number[] = [];

  add(values: number[]): PackedColumn {
    const signed = values.some((value) => value < 0);
    const raw = signed ? values.map((value) => (value < 0 ? -2 * value - 1 : 2 * value)) : values;
    let width = 0;
    while (raw.some((value) => value >= 256 ** width)) width += 1;
    const at = this.bytes.length;
    for (let plane = 0; plane < width; plane += 1)
      for (const value of raw) this.bytes.push(Math.floor(value / 256 ** plane) % 256);
    return { at, count: values.length, width, signed: signed ? 1 : 0 };
  }

  unpacked(head: unknown): Unpacked {
    const text = new TextEncoder().encode(JSON.stringify(head));
    const content = new Uint8Array(4 + text.length + this.bytes.length);
    new DataView(content.buffer).setUint32(0, text.length, true);
    content.set(text, 4);
    content.set(this.bytes, 4 + text.length);
    return new Unpacked(content);
  }
}

type FrameOf = [name: string, file: string, line: number, firstLine?: number, partOf?: string];

interface Holder {
  path: FrameOf[];
  kind?: number;
  thread?: string;
  peak: number;
  end?: number;
  run?: number;
  delta?: number;
  sampled?: 0 | 1;
  slices?: number[]; // what it had at the high of each slice
}

interface Node {
  frame: number;
  thread: string | null;
  below: Map<string, Node>;
  holders: number[];
}

const LIBRARY = "/lib/python3.11/";
const isNative = (file: string) => file.endsWith(".so");

/** A capture of these holders; slices last a second each. */
export function made(holders: Holder[], slices = 1): Capture {
  const packer = new Packer();
  const functions: string[] = [];
  const files: string[] = [];
  const frames: number[][] = [];
  const numberOf = <Item>(list: Item[], item: Item): number => {
    const known = list.findIndex((one) => JSON.stringify(one) === JSON.stringify(item));
    return known >= 0 ? known : list.push(item) - 1;
  };
  const root: Node = { frame: 0, thread: null, below: new Map(), holders: [] };
  const step = (node: Node, thread: string | null, frame: number): Node => {
    const id = `${thread ?? ""}:${frame}`;
    let next = node.below.get(id);
    if (!next) node.below.set(id, (next = { frame, thread, below: new Map(), holders: [] }));
    return next;
  };
  numberOf(frames, [numberOf(functions, ""), numberOf(files, ""), 0, 0, 0]);
  holders.forEach((holder, index) => {
    let node = step(root, holder.thread ?? "MainThread", 0);
    for (const [name, file, line, firstLine = 1, partOf = name] of holder.path) {
      const [of, around] = [numberOf(functions, name), numberOf(functions, partOf)];
      node = step(node, null, numberOf(frames, [of, numberOf(files, file), line, around, firstLine]));
    }
    node.holders.push(index);
  });
  const above: number[] = [];
  const frame: number[] = [];
  const threads: { node: number; name: string }[] = [];
  const nodeOf: number[] = [];
  const visit = (node: Node, parent: number) => {
    const number = above.length;
    above.push(number - parent);
    frame.push(node.frame);
    if (node.thread !== null) threads.push({ node: number, name: node.thread });
    for (const holder of node.holders) nodeOf[holder] = number;
    for (const child of node.below.values()) visit(child, number);
  };
  visit(root, 0);
  const highs = Array.from({ length: slices }, (_, slice) =>
    holders.map((holder) => holder.slices?.[slice] ?? holder.peak),
  );
  const changes = highs.map((high, slice) =>
    high
      .map((value, index) => ({ index, value: value - (highs[slice - 1]?.[index] ?? 0) }))
      .filter((one) => one.value !== 0),
  );
  const seconds = (from: number) => packer.add(highs.map((_, slice) => (slice + from) * 1e9));
  const sum = (values: number[]) => values.reduce((total, value) => total + value, 0);
  const described = {
    title: "made.py",
    summary: {
      process: { mode: "exact", words: "process 7 ended after 1 s", sample_bytes: 64, duration_ns: slices * 1e9 },
      peak: { at_ns: 5e8, allocated_bytes: sum(holders.map((one) => one.peak)) },
      resident: { start_bytes: 50, end_bytes: 80 },
      scopes: [],
      processes: [],
      devices: [],
    },
    asked: { at: "peak", slice: null, kind: "all", by: "stack", inverted: false },
    files: files.map((name) => ({
      name,
      module: name.replace(/^.*\/|\.py$/g, "") || "[native]",
      library: name === "" || name.startsWith(LIBRARY) || name.startsWith("<frozen"),
      imports: name.startsWith("<frozen importlib."),
    })),
    functions,
    frames: {
      function: packer.add(frames.map((one) => one[0])),
      file: packer.add(frames.map((one) => one[1])),
      line: packer.add(frames.map((one) => one[2])),
      part_of: packer.add(frames.map((one) => one[3])),
      first_line: packer.add(frames.map((one) => one[4])),
      ...(files.some(isNative) && {
        origin: packer.add(
          frames.map((one) => (isNative(files[one[1]]) ? one[1] + 2 : Number(files[one[1]].endsWith(".py")))),
        ),
      }),
    },
    nodes: { above: packer.add(above), frame: packer.add(frame) },
    threads,
    holders: {
      node: packer.add(nodeOf),
      kind: packer.add(holders.map((one) => one.kind ?? 0)),
      sampled: packer.add(holders.map((one) => one.sampled ?? 0)),
      peak_bytes: packer.add(holders.map((one) => one.peak)),
      peak_blocks: packer.add(holders.map(() => 1)),
      end_bytes: packer.add(holders.map((one) => one.end ?? 0)),
      end_blocks: packer.add(holders.map((one) => (one.end ? 1 : 0))),
      total_bytes: packer.add(holders.map((one) => one.run ?? one.peak)),
      total_blocks: packer.add(holders.map(() => 1)),
      temporaries: packer.add(holders.map(() => 0)),
      ...(holders.some((one) => one.delta !== undefined) && {
        delta_bytes: packer.add(holders.map((one) => one.delta ?? 0)),
        before_peak_bytes: packer.add(holders.map((one) => one.peak - (one.delta ?? 0))),
        before_end_bytes: packer.add(holders.map(() => 0)),
      }),
    },
    changes: {
      count: packer.add(changes.map((one) => one.length)),
      holder: packer.add(changes.flat().map((one) => one.index)),
      bytes: packer.add(changes.flat().map((one) => one.value)),
      blocks: packer.add(changes.flat().map((one) => Math.sign(one.value))),
    },
    slices: {
      start_ns: seconds(0),
      end_ns: seconds(1),
      peak_ns: seconds(0.5),
      peak_bytes: packer.add(highs.map(sum)),
      unlisted_bytes: packer.add(highs.map(() => 0)),
    },
    timeline: {
      at_ns: packer.add(highs.map((_, slice) => slice * 1e9)),
      points: slices,
      series: [
        { name: "resident", group: "resident", bytes: packer.add(highs.map((_, slice) => 100 + 100 * slice)) },
        { name: "python", group: "kind", bytes: packer.add(highs.map((_, slice) => 1 + slice)) },
        { name: "native", group: "kind", bytes: packer.add(highs.map(() => 0)) },
        { name: "slack", group: "kind", bytes: packer.add(highs.map(() => 7)) },
      ],
      limits: [],
    },
    source: { which: "none", files: [], left_out: 0 },
  };
  const unpacked = packer.unpacked({ schema: "hiwater.page/3", captures: [described] });
  return new Capture(unpacked.page.captures[0], unpacked);
}
