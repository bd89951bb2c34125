// Call paths as a reader wants them: frames told apart as finely as asked, some left out, equal ones joined.
//
// place   the node of a shape that a call path of the capture belongs to; 0 is all of it
// key     what a frame is at this fineness: equal keys are one thing to the reader
import { Capture, COUNTED_KINDS, isCounted, type Held } from "./capture";

export type Grouping = "line" | "function" | "file" | "module" | "thread";

/** Which frames stacks have, of a recording with native ones. */
export type Frames = "python" | "mixed" | "native";

/** Whether frames of libraries are shown, hidden, or collapsed into one frame below the user's line that called them. */
export type Libraries = "collapsed" | "shown" | "hidden";

export interface Look {
  by: Grouping;
  frames: Frames;
  hideImports: boolean;
  libraries: Libraries;
  /** The first call path of each collapsed frame that was opened. */
  opened: ReadonlySet<number>;
  /** Frames whose text contains this are left out; "" for none. */
  hide: string;
}

/** Which holders count: of one thread, of one kind, or of all counted kinds. */
export interface Choice {
  thread: number; // -1 for all
  kind: number; // -1 for all counted kinds
}

/** What a frame is called and where it stands; `frame` is one that has this key. */
export interface Key {
  name: string;
  file: number; // -1 for none
  line: number;
  /** A line that only the earlier of two captures has. */
  gone?: boolean;
  /** Stands for the frames of libraries below a line of the user's own code: "in pandas". */
  collapsed?: boolean;
}

/** Where a key stands: `file.py:12`; "" for nowhere. */
export function placeOf(capture: Capture, { file, line, gone }: Key): string {
  return file < 0 ? "" : `${capture.files[file].short}${line ? `:${line}` : ""}${gone ? " before" : ""}`;
}

/** A key with its place: `load (etl.py:12)`. */
export function nameOf(capture: Capture, key: Key): string {
  const place = placeOf(capture, key);
  return place ? `${key.name} (${place})` : key.name;
}

export interface Keys {
  ofFrame: Int32Array;
  list: Key[];
}

/** The keys of all frames of a capture at this fineness. */
export function keysOf(capture: Capture, by: Grouping): Keys {
  const { frameFunction, framePartOf, frameFile, frameLine, frameFirstLine, files } = capture;
  const numbers = new Map<string | number, number>();
  const list: Key[] = [];
  const ofFrame = new Int32Array(frameFunction.length);
  for (let frame = 0; frame < frameFunction.length; frame += 1) {
    const isLine = by === "line";
    const [fn, line] = isLine ? [frameFunction[frame], frameLine[frame]] : [framePartOf[frame], frameFirstLine[frame]];
    const file = frameFile[frame];
    const of = files[file];
    const gone = isLine && capture.frameGone[frame] === 1;
    const id =
      isLine || by === "function"
        ? ((fn * files.length + file) * 0x400000 + line) * (gone ? -1 : 1)
        : by === "file"
          ? file
          : capture.moduleOf(frame);
    let number = numbers.get(id);
    if (number === undefined) {
      number = list.length;
      numbers.set(id, number);
      const place = of.name ? file : -1;
      if (by === "file") list.push({ name: of.short || "[native]", file: place, line: 0 });
      else if (by === "module") list.push({ name: capture.moduleOf(frame), file: place, line: 0 });
      else list.push({ name: capture.functions[fn], file: place, line, ...(gone && { gone }) });
    }
    ofFrame[frame] = number;
  }
  return { ofFrame, list };
}

/** Every frame of a capture, as it was recorded. */
export const ALL_FRAMES: Look = {
  by: "line",
  frames: "mixed",
  hideImports: false,
  libraries: "shown",
  opened: new Set(),
  hide: "",
};

/** Collapses frames of libraries into one below the user's line that called them, named by the package that it called; those that call the user's code too. */
class Collapsing {
  /** What each place of the shape is: the user's own code, libraries as one frame, or frames of libraries. */
  private readonly state: ("own" | "collapsed" | "open")[] = ["own"];
  private readonly keyOfPackage = new Map<string, number>();
  private readonly openGroups = new Set<string>();

  constructor(
    private readonly capture: Capture,
    private readonly keys: Keys,
    private readonly opened: ReadonlySet<number>,
  ) {}

  /** The key of a call path's place below `above`; -1 where it is part of that place. */
  keyAt(node: number, above: number): number {
    const { capture, keys } = this;
    const frame = capture.frame[node];
    if (!capture.files[capture.frameFile[frame]].library) return keys.ofFrame[frame];
    if (this.state[above] === "collapsed") return -1;
    if (!this.mayCollapse(node, above)) return keys.ofFrame[frame];
    const key = this.keyOf(capture.moduleOf(frame).split(".")[0]);
    const group = `${above} ${key}`;
    if (this.opened.has(node)) this.openGroups.add(group);
    return this.openGroups.has(group) ? keys.ofFrame[frame] : key;
  }

  /** A place was made for this call path. */
  made(node: number, key: number): void {
    const isLibrary = this.capture.files[this.capture.frameFile[this.capture.frame[node]]].library;
    this.state.push(!isLibrary ? "own" : this.keys.list[key].collapsed ? "collapsed" : "open");
  }

  private mayCollapse(node: number, above: number): boolean {
    const { name } = this.capture.files[this.capture.frameFile[this.capture.frame[node]]];
    return name !== "" && this.state[above] === "own";
  }

  private keyOf(name: string): number {
    let key = this.keyOfPackage.get(name);
    if (key === undefined) {
      key = this.keys.list.push({ name: `in ${name}`, file: -1, line: 0, collapsed: true }) - 1;
      this.keyOfPackage.set(name, key);
    }
    return key;
  }
}

export class Shape {
  readonly keys: Keys;
  /** For each place the first call path of the capture that belongs to it. */
  readonly first: Int32Array;
  readonly place: Int32Array;
  readonly parent: Int32Array;
  readonly key: Int32Array; // -1 for node 0
  /** Children of node i: childList[childFirst[i] .. childFirst[i + 1]). */
  readonly childFirst: Int32Array;
  readonly childList: Int32Array;

  constructor(
    readonly capture: Capture,
    readonly look: Look,
  ) {
    this.keys = look.by === "thread" ? threadKeys(capture) : keysOf(capture, look.by);
    const isHidden = look.by === "thread" ? new Uint8Array(capture.frameFile.length) : hiddenFrames(capture, look);
    const isCoarse = look.by === "file" || look.by === "module" || look.by === "thread";
    const { parent, frame, frameFunction, thread, isThreadRoot } = capture;
    const place = new Int32Array(parent.length);
    const parents = [0];
    const keys = [-1];
    const known = new Map<number, number>();
    const firsts = [0];
    const isCollapsing = look.libraries === "collapsed" && (look.by === "line" || look.by === "function");
    const collapsing = isCollapsing ? new Collapsing(capture, this.keys, look.opened) : null;
    const width = this.keys.list.length + capture.files.length + 1;
    for (let node = 1; node < parent.length; node += 1) {
      const above = place[parent[node]];
      const leftOut = look.by === "thread" ? false : isThreadRoot[node] || isHidden[frame[node]];
      if (leftOut) {
        place[node] = above;
        continue;
      }
      const key =
        look.by === "thread"
          ? thread[node] + 1
          : collapsing
            ? collapsing.keyAt(node, above)
            : this.keys.ofFrame[frame[node]];
      // By function, the frame of a comprehension is one with that of the function around it.
      const isOne =
        isCoarse || (look.by === "function" && capture.framePartOf[frame[node]] !== frameFunction[frame[node]]);
      if (key < 0 || (isOne && above !== 0 && keys[above] === key)) {
        place[node] = above;
        continue;
      }
      const id = above * width + key;
      let number = known.get(id);
      if (number === undefined) {
        number = parents.length;
        known.set(id, number);
        parents.push(above);
        keys.push(key);
        firsts.push(node);
        collapsing?.made(node, key);
      }
      place[node] = number;
    }
    this.place = place;
    this.first = Int32Array.from(firsts);
    this.parent = Int32Array.from(parents);
    this.key = Int32Array.from(keys);
    [this.childFirst, this.childList] = childrenOf(this.parent);
  }

  /** Nodes at or below `node`, marked. */
  below(node: number): Uint8Array {
    const marked = new Uint8Array(this.parent.length);
    marked[node] = 1;
    for (let index = node + 1; index < marked.length; index += 1) marked[index] = marked[this.parent[index]];
    if (node === 0) marked.fill(1);
    return marked;
  }
}

function threadKeys(capture: Capture): Keys {
  const list = ["[no thread]", ...capture.threads].map((name) => ({ name, file: -1, line: 0 }));
  return { ofFrame: new Int32Array(0), list };
}

function hiddenFrames(capture: Capture, look: Look): Uint8Array {
  const wanted = look.hide.toLowerCase();
  const functions = capture.functions.map((name) => wanted !== "" && name.toLowerCase().includes(wanted));
  const files = capture.files.map(
    (file) =>
      (wanted !== "" && file.name.toLowerCase().includes(wanted)) ||
      (look.hideImports && file.imports) ||
      (look.libraries === "hidden" && file.library && file.name !== ""),
  );
  const codeHidden = { python: "native", mixed: null, native: "python" }[look.frames];
  const hidden = new Uint8Array(capture.frameFile.length);
  for (let frame = 0; frame < hidden.length; frame += 1)
    hidden[frame] = Number(
      functions[capture.frameFunction[frame]] ||
        files[capture.frameFile[frame]] ||
        (capture.hasNativeFrames && capture.codeOf(frame) === codeHidden),
    );
  return hidden;
}

/** The children of each node, by counting: [first, list]. */
export function childrenOf(parent: Int32Array): [Int32Array, Int32Array] {
  const first = new Int32Array(parent.length + 1);
  for (let node = 1; node < parent.length; node += 1) first[parent[node] + 1] += 1;
  for (let node = 0; node < parent.length; node += 1) first[node + 1] += first[node];
  const next = first.slice();
  const list = new Int32Array(Math.max(0, parent.length - 1));
  for (let node = 1; node < parent.length; node += 1) {
    list[next[parent[node]]] = node;
    next[parent[node]] += 1;
  }
  return [first, list];
}

/** Which holders a choice counts. */
export function chosen(capture: Capture, choice: Choice): Uint8Array {
  const counts = new Uint8Array(capture.holderNode.length);
  for (let holder = 0; holder < counts.length; holder += 1) {
    const kind = capture.holderKind[holder];
    const ofKind = choice.kind < 0 ? isCounted(kind) : kind === choice.kind;
    counts[holder] = Number(
      ofKind && (choice.thread < 0 || capture.thread[capture.holderNode[holder]] === choice.thread),
    );
  }
  return counts;
}

/** Sums for each node of a shape: `own…` by itself, the others with all below it; `byKind[kind]` splits the total. */
export interface Figures {
  own: Float64Array;
  ownBlocks: Float64Array;
  ownByKind: Float64Array[];
  /** What the earlier of two captures held; nothing in a page of one. */
  ownBefore: Float64Array;
  before: Float64Array;
  ownBeforeSampled: Float64Array;
  beforeSampled: Float64Array;
  /** The larger of before and after for what a node holds by itself, and the sum of those with all below it. */
  ownWidth: Float64Array;
  width: Float64Array;
  /** What of the bytes stands on sampled blocks. */
  ownSampled: Float64Array;
  sampled: Float64Array;
  total: Float64Array;
  blocks: Float64Array;
  byKind: Float64Array[];
}

export function figuresOf(shape: Shape, held: Held, counts: Uint8Array): Figures {
  const { capture, place, parent } = shape;
  const length = parent.length;
  const own = new Float64Array(length);
  const blocks = new Float64Array(length);
  const byKind = Array.from({ length: COUNTED_KINDS }, () => new Float64Array(length));
  const sampled = new Float64Array(length);
  const before = new Float64Array(length);
  const beforeSampled = new Float64Array(length);
  for (let holder = 0; holder < counts.length; holder += 1) {
    if (!counts[holder]) continue;
    const node = place[capture.holderNode[holder]];
    own[node] += held.bytes[holder];
    blocks[node] += held.blocks[holder];
    const kind = capture.holderKind[holder];
    if (isCounted(kind)) byKind[kind][node] += held.bytes[holder];
    if (capture.holderSampled[holder]) sampled[node] += held.bytes[holder];
    if (!held.before) continue;
    before[node] += held.before[holder];
    if (capture.holderSampled[holder]) beforeSampled[node] += held.before[holder];
  }
  const width = held.before ? own.map((bytes, node) => Math.max(bytes, before[node])) : own;
  const upwards = (values: Float64Array) => sumUpwards(parent, values.slice());
  return {
    own,
    ownBlocks: blocks,
    ownByKind: byKind,
    ownBefore: before,
    before: upwards(before),
    ownBeforeSampled: beforeSampled,
    beforeSampled: upwards(beforeSampled),
    ownWidth: width,
    width: upwards(width),
    ownSampled: sampled,
    total: upwards(own),
    blocks: upwards(blocks),
    byKind: byKind.map(upwards),
    sampled: upwards(sampled),
  };
}

/** Each node's value becomes the sum of its own and of all below it. */
export function sumUpwards(parent: Int32Array, values: Float64Array): Float64Array {
  for (let node = parent.length - 1; node > 0; node -= 1) values[parent[node]] += values[node];
  return values;
}
