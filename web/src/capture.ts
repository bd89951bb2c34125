// One recorded process: its columns, and what every holder had at any moment that can be asked for.
import type { Unpacked } from "./columns";
import type { CaptureData as Described, PackedColumn } from "./page";
import { printable, shortPath } from "./words";

export const KINDS = [
  "python",
  "native",
  "mapping",
  "device",
  "shared",
  "file",
  "attached",
  "reserved",
  "slack",
] as const;
export const COUNTED_KINDS = 5;
/** Whether a kind is part of what is called allocated. */
export const isCounted = (kind: number): boolean => kind < COUNTED_KINDS;
export const KIND_WORDS = [
  "Python objects",
  "native heap",
  "anonymous mappings",
  "device memory",
  "shared memory",
  "file-backed mappings",
  "attached shared memory",
  "reserved address space",
  "pymalloc's arenas",
];

/** A moment: the peak, the end, or the high of a slice; `asked` is the window in seconds that led to the slice. */
export interface Moment {
  at: "peak" | "end" | "slice";
  slice: number | null;
  asked: [number, number] | null;
}

export const PEAK: Moment = { at: "peak", slice: null, asked: null };
export const END: Moment = { at: "end", slice: null, asked: null };

/** What each holder had. `errorBytes` is the most by which one figure may be off. */
export interface Held {
  bytes: Float64Array;
  blocks: Float64Array;
  /** What the earlier capture held at the corresponding moment; null on the page of one capture. */
  before: Float64Array | null;
  atNs: number;
  startNs: number;
  endNs: number;
  errorBytes: number;
}

export class Capture {
  readonly functions: string[];
  readonly files: { name: string; short: string; module: string; library: boolean; imports: boolean }[];
  readonly frameFunction: Int32Array;
  readonly frameFile: Int32Array;
  readonly frameLine: Int32Array;
  /** The function that the frame is part of, which for a comprehension is the one around it, and the function's first line. */
  readonly framePartOf: Int32Array;
  readonly frameFirstLine: Int32Array;
  /** Call paths: the caller of each, its frame, and the first path after all below it. */
  readonly parent: Int32Array;
  readonly frame: Int32Array;
  readonly after: Int32Array;
  /** For each path the index of its thread, -1 for none. */
  readonly thread: Int32Array;
  readonly isThreadRoot: Uint8Array;
  readonly threads: string[];
  readonly holderNode: Int32Array;
  readonly holderKind: Int32Array;
  /** 1 for holders of blocks that were sampled at random: what they say has a standard error. */
  readonly holderSampled: Int32Array;
  readonly totalBytes: Float64Array;
  readonly totalBlocks: Float64Array;
  readonly temporaries: Float64Array;
  /** 1 for frames at lines that only the earlier of two captures has. */
  readonly frameGone: Int32Array;
  /** 0: no code, 1: Python's, 2 and more: native, of the library with this number less two; null if no native frames were recorded. */
  private readonly origin: Int32Array | null;
  /** What the earlier capture held at the moment that was asked for; null in a page of one. */
  private readonly beforeAsked: Float64Array | null = null;
  readonly peak: Held;
  readonly end: Held;
  /** What each holder had at the end, by the quarter of the time that allocated it; empty where that is not known. */
  readonly endByAge: Float64Array[];
  readonly slices: {
    startNs: Float64Array;
    endNs: Float64Array;
    peakNs: Float64Array;
    peakBytes: Float64Array;
    unlisted: Float64Array;
  };
  /** Changes from slice to slice: those of slice i are [changeFirst[i], changeFirst[i + 1]). */
  readonly changeFirst: Int32Array;
  readonly changeHolder: Int32Array;
  readonly changeBytes: Float64Array;
  readonly changeBlocks: Float64Array;
  private lastSlice: { number: number; held: Held } | null = null;

  constructor(
    readonly described: Described,
    readonly unpacked: Unpacked,
  ) {
    const { ints, numbers } = { ints: unpacked.ints.bind(unpacked), numbers: unpacked.numbers.bind(unpacked) };
    this.functions = described.functions.map(printable);
    this.files = described.files.map((file) => ({
      ...file,
      name: printable(file.name),
      short: printable(shortPath(file.name)),
      module: printable(file.module),
    }));
    this.frameFunction = ints(described.frames.function);
    this.frameFile = ints(described.frames.file);
    this.frameLine = ints(described.frames.line);
    this.framePartOf = ints(described.frames.part_of);
    this.frameFirstLine = ints(described.frames.first_line);
    this.frameGone = described.frames.gone ? ints(described.frames.gone) : new Int32Array(this.frameLine.length);
    this.origin = described.frames.origin ? ints(described.frames.origin) : null;
    this.frame = ints(described.nodes.frame);
    this.parent = ints(described.nodes.above);
    for (let node = 0; node < this.parent.length; node += 1) this.parent[node] = node - this.parent[node];
    this.after = afterEach(this.parent);
    this.threads = described.threads.map((thread) => printable(thread.name) || "[no name]");
    this.thread = new Int32Array(this.parent.length).fill(-1);
    this.isThreadRoot = new Uint8Array(this.parent.length);
    described.threads.forEach(({ node }, index) => {
      this.isThreadRoot[node] = 1;
      this.thread.fill(index, node, this.after[node]);
    });
    const { holders, changes, slices } = described;
    this.holderNode = ints(holders.node);
    this.holderKind = ints(holders.kind);
    this.holderSampled = ints(holders.sampled);
    this.totalBytes = numbers(holders.total_bytes);
    this.totalBlocks = numbers(holders.total_blocks);
    this.temporaries = numbers(holders.temporaries);
    const beside = (column: PackedColumn | undefined) => (column ? numbers(column) : null);
    const duration = this.durationNs;
    const peakNs = described.summary.peak.at_ns;
    this.peak = {
      bytes: numbers(holders.peak_bytes),
      blocks: numbers(holders.peak_blocks),
      before: beside(holders.before_peak_bytes),
      atNs: peakNs,
      startNs: 0,
      endNs: duration,
      errorBytes: 0,
    };
    this.end = {
      bytes: numbers(holders.end_bytes),
      blocks: numbers(holders.end_blocks),
      before: beside(holders.before_end_bytes),
      atNs: duration,
      startNs: duration,
      endNs: duration,
      errorBytes: 0,
    };
    this.endByAge = (described.ages?.end_bytes ?? []).map(numbers);
    this.slices = {
      startNs: numbers(slices.start_ns),
      endNs: numbers(slices.end_ns),
      peakNs: numbers(slices.peak_ns),
      peakBytes: numbers(slices.peak_bytes),
      unlisted: numbers(slices.unlisted_bytes),
    };
    const counts = ints(changes.count);
    this.changeFirst = new Int32Array(this.slices.startNs.length + 1);
    for (let slice = 0; slice < this.slices.startNs.length; slice += 1)
      this.changeFirst[slice + 1] = this.changeFirst[slice] + (counts[slice] ?? 0);
    this.changeHolder = ints(changes.holder);
    this.changeBytes = numbers(changes.bytes);
    this.changeBlocks = numbers(changes.blocks);
    const delta = beside(holders.delta_bytes);
    const now = delta && this.held(this.asked).bytes;
    this.beforeAsked = delta && delta.map((change, holder) => now![holder] - change);
    this.lastSlice = null; // it was made without what was before
  }

  get hasNativeFrames(): boolean {
    return this.origin !== null;
  }

  /** Whether a frame is of Python code, of native code, or of neither. */
  codeOf(frame: number): "python" | "native" | "none" {
    const origin = this.origin?.[frame] ?? 1;
    return origin === 0 ? "none" : origin === 1 ? "python" : "native";
  }

  /** The module of a frame: that of native code is its library, whatever file its source is in. */
  moduleOf(frame: number): string {
    const origin = this.origin?.[frame] ?? 1;
    return this.files[origin < 2 ? this.frameFile[frame] : origin - 2].module;
  }

  /** The moment that the command line asked for. */
  get asked(): Moment {
    const { at, slice } = this.described.asked;
    return slice !== null ? { at: "slice", slice, asked: null } : at === "end" ? END : PEAK;
  }

  /** With what this capture is compared; undefined in a page of one. */
  get compared(): Described["compared"] {
    return this.described.compared;
  }

  /** Whether the page compares two captures. */
  get isBeside(): boolean {
    return this.beforeAsked !== null;
  }

  get durationNs(): number {
    return this.described.summary.process.duration_ns;
  }

  /** The most that the standard error of a sum can be of which `sampled` bytes stand on sampled blocks. */
  errorOf(sampled: number): number {
    return Math.ceil(Math.sqrt(this.described.summary.process.sample_bytes * Math.max(0, sampled)));
  }

  /** The same of the difference of two sums: the variances of both captures add. */
  changeErrorOf(sampled: number, beforeSampled: number): number {
    const rate = this.compared?.before.sample_bytes ?? 0;
    return Math.ceil(Math.hypot(this.errorOf(sampled), Math.ceil(Math.sqrt(rate * Math.max(0, beforeSampled)))));
  }

  /** Whether this is about the memory of a device, and not about a process. */
  get isHistory(): boolean {
    return this.described.summary.process.mode === "history";
  }

  /** Whether this is all processes of a machine at one instant, and not one process. Its threads are the processes. */
  get isWhole(): boolean {
    return this.described.whole !== undefined;
  }

  get isTimeline(): boolean {
    return this.described.summary.process.mode === "timeline";
  }

  /** The highest of the slices that touch the time from `from` to `to` seconds: the rule of `--at T1:T2`. */
  window(from: number, to: number): Moment {
    if (this.isWhole) return PEAK; // there is no other moment
    const { startNs, endNs, peakBytes } = this.slices;
    const [begin, end] = [from * 1e9, to * 1e9];
    let best = -1;
    for (let slice = 0; slice < startNs.length; slice += 1) {
      if (startNs[slice] <= end && endNs[slice] > begin && (best < 0 || peakBytes[slice] > peakBytes[best]))
        best = slice;
    }
    return { at: "slice", slice: best < 0 ? startNs.length - 1 : best, asked: [from, to] };
  }

  /** The slice that was noted when memory was last refused: it has no length; -1 for none. */
  get refusedSlice(): number {
    const { startNs, endNs, peakNs } = this.slices;
    const refusedAt = new Set(
      this.described.markers.filter((marker) => marker.kind === "out of memory").map((marker) => marker.at_ns),
    );
    let slice = refusedAt.size ? startNs.length - 1 : -1;
    while (slice >= 0 && !(startNs[slice] === endNs[slice] && refusedAt.has(peakNs[slice]))) slice -= 1;
    return slice;
  }

  held(moment: Moment): Held {
    if (moment.at === "peak") return this.peak;
    if (moment.at === "end" || moment.slice === null) return this.end;
    if (this.lastSlice?.number === moment.slice) return this.lastSlice.held;
    const held = this.ofSlice(moment.slice);
    this.lastSlice = { number: moment.slice, held };
    return held;
  }

  private ofSlice(slice: number): Held {
    const bytes = new Float64Array(this.holderNode.length);
    const held = new Float64Array(this.holderNode.length);
    for (let change = 0; change < this.changeFirst[slice + 1]; change += 1) {
      bytes[this.changeHolder[change]] += this.changeBytes[change];
      held[this.changeHolder[change]] += this.changeBlocks[change];
    }
    const { startNs, endNs, peakNs, unlisted } = this.slices;
    return {
      bytes,
      blocks: held,
      before: this.beforeAsked,
      atNs: peakNs[slice],
      startNs: startNs[slice],
      endNs: endNs[slice],
      errorBytes: unlisted[slice],
    };
  }

  /** What groups of holders had at the high of each slice: `group` says which a holder is in, below 0 for none. */
  overTime(group: Int32Array, groups: number): Float64Array[] {
    const slices = this.slices.startNs.length;
    const now = new Float64Array(groups);
    const rows = Array.from({ length: groups }, () => new Float64Array(slices));
    for (let slice = 0; slice < slices; slice += 1) {
      for (let change = this.changeFirst[slice]; change < this.changeFirst[slice + 1]; change += 1) {
        const into = group[this.changeHolder[change]];
        if (into >= 0) now[into] += this.changeBytes[change];
      }
      for (let index = 0; index < groups; index += 1) rows[index][slice] = now[index];
    }
    return rows;
  }
}

/** For each path of a depth-first list the first one that is not below it. */
export function afterEach(parent: Int32Array): Int32Array {
  const after = new Int32Array(parent.length);
  for (let node = parent.length - 1; node >= 0; node -= 1) {
    if (after[node] === 0) after[node] = node + 1;
    const above = parent[node];
    if (node > 0 && after[above] < after[node]) after[above] = after[node];
  }
  return after;
}
