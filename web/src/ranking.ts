// What held most memory: rows by line, function, file, module, thread or kind; and what each line of each file did.
import { type Capture, type Held, isCounted, KIND_WORDS, KINDS } from "./capture";
import { ALL_FRAMES, chosen, type Choice, figuresOf, type Key, Shape, sumUpwards } from "./shape";
import { size } from "./words";

/** One thing that held memory; `own…` asked for by itself, `total…` also by what it called, each byte once. */
export interface Row {
  key: Key;
  ownBytes: number;
  ownBlocks: number;
  totalBytes: number;
  /** What of them stands on sampled blocks. */
  ownSampled: number;
  totalSampled: number;
  /** Over the whole run, with all that it called. */
  runBytes: number;
  runBlocks: number;
  temporaries: number;
  endBytes: number;
  /** The same of the earlier of two captures; nothing in a page of one. */
  ownBefore: number;
  totalBefore: number;
  ownBeforeSampled: number;
  totalBeforeSampled: number;
}

function emptyRow(key: Key): Row {
  return {
    key,
    ownBytes: 0,
    ownBlocks: 0,
    totalBytes: 0,
    ownSampled: 0,
    totalSampled: 0,
    runBytes: 0,
    runBlocks: 0,
    temporaries: 0,
    endBytes: 0,
    ownBefore: 0,
    totalBefore: 0,
    ownBeforeSampled: 0,
    totalBeforeSampled: 0,
  };
}

export const NO_FRAME: Key = { name: "[no Python frame]", file: -1, line: 0 };

/**
 * For each node but the first whether no caller of it has the same key: what such nodes hold is counted once for the key,
 * however deep a function calls itself.
 */
export function outermost(shape: Shape, keyOf: (node: number) => number, keys: number): Uint8Array {
  const outer = new Uint8Array(shape.parent.length);
  const open = new Int32Array(keys);
  const stack: number[] = [0];
  while (stack.length) {
    const node = stack.pop()!;
    if (node < 0) {
      open[keyOf(~node)] -= 1;
      continue;
    }
    if (node > 0) {
      const key = keyOf(node);
      if (key >= 0) {
        if (open[key] === 0) outer[node] = 1;
        open[key] += 1;
        stack.push(~node);
      }
    }
    for (let child = shape.childFirst[node]; child < shape.childFirst[node + 1]; child += 1)
      stack.push(shape.childList[child]);
  }
  return outer;
}

/** Sums of a column of the holders for each node of a shape. */
export function sumsAt(shape: Shape, values: Float64Array, counts: Uint8Array): Float64Array {
  const sums = new Float64Array(shape.parent.length);
  for (let holder = 0; holder < counts.length; holder += 1) {
    if (counts[holder]) sums[shape.place[shape.capture.holderNode[holder]]] += values[holder];
  }
  return sums;
}

/** Rows for every key that held something then or asked for something ever: most own bytes first, then most in total, then by name. */
export function rank(shape: Shape, held: Held, choice: Choice): Row[] {
  const { capture } = shape;
  const counts = chosen(capture, choice);
  const figures = figuresOf(shape, held, counts);
  const upwards = (values: Float64Array) => sumUpwards(shape.parent, sumsAt(shape, values, counts));
  const [end, runBytes, runBlocks, temporaries] = [
    upwards(capture.end.bytes),
    upwards(capture.totalBytes),
    upwards(capture.totalBlocks),
    upwards(capture.temporaries),
  ];
  const rows = shape.keys.list.map(emptyRow);
  const outer = outermost(shape, (node) => shape.key[node], rows.length);
  for (let node = 1; node < shape.parent.length; node += 1) {
    const row = rows[shape.key[node]];
    row.ownBytes += figures.own[node];
    row.ownBlocks += figures.ownBlocks[node];
    row.ownSampled += figures.ownSampled[node];
    row.ownBefore += figures.ownBefore[node];
    row.ownBeforeSampled += figures.ownBeforeSampled[node];
    if (!outer[node]) continue;
    row.totalBytes += figures.total[node];
    row.totalSampled += figures.sampled[node];
    row.totalBefore += figures.before[node];
    row.totalBeforeSampled += figures.beforeSampled[node];
    row.runBytes += runBytes[node];
    row.runBlocks += runBlocks[node];
    row.temporaries += temporaries[node];
    row.endBytes += end[node];
  }
  if (figures.ownWidth[0]) {
    const [ownBytes, ownBlocks] = [figures.own[0], figures.ownBlocks[0]];
    const [ownBefore, ownBeforeSampled] = [figures.ownBefore[0], figures.ownBeforeSampled[0]];
    rows.push({
      key: NO_FRAME,
      ownBytes,
      ownBlocks,
      totalBytes: ownBytes,
      ownSampled: figures.ownSampled[0],
      totalSampled: figures.ownSampled[0],
      runBytes: ownBytes,
      runBlocks: ownBlocks,
      temporaries: 0,
      endBytes: 0,
      ownBefore,
      totalBefore: ownBefore,
      ownBeforeSampled,
      totalBeforeSampled: ownBeforeSampled,
    });
  }
  return rows.filter(isAnything).sort(byOwnBytes);
}

function isAnything(row: Row): boolean {
  return row.totalBytes > 0 || row.runBytes > 0 || row.totalBefore > 0;
}

function byOwnBytes(one: Row, other: Row): number {
  return (
    other.ownBytes - one.ownBytes ||
    other.totalBytes - one.totalBytes ||
    other.runBytes - one.runBytes ||
    compare(one.key.name, other.key.name)
  );
}

function compare(one: string, other: string): number {
  return one < other ? -1 : one > other ? 1 : 0;
}

/** A row for each kind of memory, counted or not, that has anything. */
export function rankKinds(capture: Capture, held: Held, thread: number): Row[] {
  const counts = Uint8Array.from(capture.holderNode, (node) => Number(thread < 0 || capture.thread[node] === thread));
  const names = KINDS.map((_, kind) => `${KIND_WORDS[kind]}${isCounted(kind) ? "" : ", not in the sum"}`);
  return rankBy(capture, held, counts, names, (holder) => capture.holderKind[holder]);
}

/** A row for each size of allocations, in powers of two: the mean of what each call path allocated over the run. */
export function rankSizes(capture: Capture, held: Held, choice: Choice): Row[] {
  const names = Array.from({ length: MOST_SIZES }, (_, power) => `${size(2 ** power)} to ${size(2 ** (power + 1))}`);
  return rankBy(capture, held, chosen(capture, choice), names, (holder) => {
    const mean = capture.totalBytes[holder] / Math.max(1, capture.totalBlocks[holder]);
    return Math.min(MOST_SIZES - 1, Math.floor(Math.log2(Math.max(1, mean))));
  });
}

const MOST_SIZES = 50;

/** The sums of holders by a number that each has: one row for each of these names, without those that have nothing. */
function rankBy(
  capture: Capture,
  held: Held,
  counts: Uint8Array,
  names: string[],
  numberOf: (holder: number) => number,
): Row[] {
  const rows = names.map((name) => emptyRow({ name, file: -1, line: 0 }));
  for (let holder = 0; holder < capture.holderNode.length; holder += 1) {
    if (!counts[holder]) continue;
    const row = rows[numberOf(holder)];
    row.ownBytes += held.bytes[holder];
    row.ownBlocks += held.blocks[holder];
    row.totalBytes += held.bytes[holder];
    if (capture.holderSampled[holder]) row.ownSampled += held.bytes[holder];
    if (capture.holderSampled[holder]) row.totalSampled += held.bytes[holder];
    row.runBytes += capture.totalBytes[holder];
    row.runBlocks += capture.totalBlocks[holder];
    row.temporaries += capture.temporaries[holder];
    row.endBytes += capture.end.bytes[holder];
    if (!held.before) continue;
    row.ownBefore += held.before[holder];
    row.totalBefore += held.before[holder];
    if (capture.holderSampled[holder]) row.ownBeforeSampled += held.before[holder];
    if (capture.holderSampled[holder]) row.totalBeforeSampled += held.before[holder];
  }
  return rows.filter(isAnything);
}

/** What one line did, by itself and with all that it called. */
export interface LineUse {
  bytes: number;
  ownBytes: number;
  runBytes: number;
  endBytes: number;
}

/** The lines of files that asked for memory, by file number: each byte once for a line, and once for a file. */
export function linesByFile(
  capture: Capture,
  held: Held,
  choice: Choice,
): Map<number, { bytes: number; runBytes: number; lines: Map<number, LineUse> }> {
  const shape = new Shape(capture, ALL_FRAMES);
  const counts = chosen(capture, choice);
  const figures = figuresOf(shape, held, counts);
  const upwards = (values: Float64Array) => sumUpwards(shape.parent, sumsAt(shape, values, counts));
  const [end, run] = [upwards(capture.end.bytes), upwards(capture.totalBytes)];
  const places = new Map<string, number>();
  const placeOfKey = shape.keys.list.map(({ file, line }) => {
    const id = file < 0 || !line ? "" : `${file}:${line}`;
    if (id && !places.has(id)) places.set(id, places.size);
    return id ? places.get(id)! : -1;
  });
  const fileOf = (node: number) => (placeOfKey[shape.key[node]] < 0 ? -1 : shape.keys.list[shape.key[node]].file);
  const outerLine = outermost(shape, (node) => placeOfKey[shape.key[node]], places.size);
  const outerFile = outermost(shape, fileOf, capture.files.length);
  const files = new Map<number, { bytes: number; runBytes: number; lines: Map<number, LineUse> }>();
  for (let node = 1; node < shape.parent.length; node += 1) {
    const number = fileOf(node);
    if (number < 0) continue;
    let file = files.get(number);
    if (!file) files.set(number, (file = { bytes: 0, runBytes: 0, lines: new Map() }));
    const at = shape.keys.list[shape.key[node]].line;
    let line = file.lines.get(at);
    if (!line) file.lines.set(at, (line = { bytes: 0, ownBytes: 0, runBytes: 0, endBytes: 0 }));
    line.ownBytes += figures.own[node];
    if (outerLine[node]) {
      line.bytes += figures.total[node];
      line.runBytes += run[node];
      line.endBytes += end[node];
    }
    if (outerFile[node]) {
      file.bytes += figures.total[node];
      file.runBytes += run[node];
    }
  }
  return files;
}

/** What the lines of a file held with all that they called, at the high of each slice; only those that stand out beside the highest. */
export function lineSeries(capture: Capture, counts: Uint8Array, file: number): Map<number, Float64Array> {
  const { parent, frame, frameFile, frameLine, slices, changeFirst, changeHolder, changeBytes } = capture;
  // The lines of this file on each call path; most paths have those of their caller.
  const none: number[] = [];
  const linesOf: number[][] = [none];
  for (let node = 1; node < parent.length; node += 1) {
    const above = linesOf[parent[node]];
    const line = frameFile[frame[node]] === file ? frameLine[frame[node]] : 0;
    linesOf.push(!line || above.includes(line) ? above : [...above, line]);
  }
  const now = new Map<number, number>();
  const series = new Map<number, Float64Array>();
  for (let slice = 0; slice < slices.startNs.length; slice += 1) {
    for (let change = changeFirst[slice]; change < changeFirst[slice + 1]; change += 1) {
      if (!counts[changeHolder[change]]) continue;
      for (const line of linesOf[capture.holderNode[changeHolder[change]]])
        now.set(line, (now.get(line) ?? 0) + changeBytes[change]);
    }
    for (const [line, bytes] of now) {
      if (!series.has(line)) series.set(line, new Float64Array(slices.startNs.length));
      series.get(line)![slice] = bytes;
    }
  }
  const high = (curve: Float64Array) => curve.reduce((most, value) => Math.max(most, value), 0);
  const most = Array.from(series.values()).reduce((bytes, curve) => Math.max(bytes, high(curve)), 0);
  return new Map(Array.from(series).filter(([, curve]) => high(curve) > most / 100));
}

/** Lines of the user's own code as rows of what grew. */
export function rankOwnLines(capture: Capture, held: Held, choice: Choice): Row[] {
  return ownLines(capture, held, chosen(capture, choice)).map((line) => ({
    ...emptyRow(line.key),
    ownBytes: line.bytes,
    totalBytes: line.bytes,
    ownBlocks: line.blocks,
    ownSampled: line.sampled,
    totalSampled: line.sampled,
    runBytes: line.runBytes,
    ownBefore: line.before,
    totalBefore: line.before,
    ownBeforeSampled: line.beforeSampled,
    totalBeforeSampled: line.beforeSampled,
  }));
}

/** A line of the user's own code with what it and all that it called held: every byte belongs to one. */
export interface OwnLine {
  key: Key;
  bytes: number;
  before: number;
  sampled: number;
  beforeSampled: number;
  blocks: number;
  runBytes: number;
  holders: number[];
}

/** Each holder given to its innermost line of the user's own code (to its innermost frame where it has none), most first. */
export function ownLines(capture: Capture, held: Held, counts: Uint8Array): OwnLine[] {
  const { parent, frame, frameFile, frameFunction, frameLine, frameGone, files, isThreadRoot } = capture;
  const nearest = new Int32Array(parent.length);
  for (let node = 1; node < parent.length; node += 1) {
    const isOwn = !isThreadRoot[node] && !files[frameFile[frame[node]]].library;
    nearest[node] = isOwn ? node : nearest[parent[node]];
  }
  const lines = new Map<string, OwnLine>();
  for (let holder = 0; holder < counts.length; holder += 1) {
    if (!counts[holder] || !(held.bytes[holder] || held.before?.[holder])) continue;
    const node = nearest[capture.holderNode[holder]] || capture.holderNode[holder];
    const of = frame[node];
    const gone = frameGone[of] === 1;
    const id = `${frameFunction[of]}:${frameFile[of]}:${frameLine[of]}:${gone}`;
    let line = lines.get(id);
    if (!line) {
      const [file, at] = [files[frameFile[of]].name ? frameFile[of] : -1, frameLine[of]];
      const key =
        node === 0 || isThreadRoot[node]
          ? NO_FRAME
          : { name: capture.functions[frameFunction[of]], file, line: at, gone };
      lines.set(
        id,
        (line = { key, bytes: 0, before: 0, sampled: 0, beforeSampled: 0, blocks: 0, runBytes: 0, holders: [] }),
      );
    }
    line.bytes += held.bytes[holder];
    line.before += held.before?.[holder] ?? 0;
    if (capture.holderSampled[holder]) {
      line.sampled += held.bytes[holder];
      line.beforeSampled += held.before?.[holder] ?? 0;
    }
    line.blocks += held.blocks[holder];
    line.runBytes += capture.totalBytes[holder];
    line.holders.push(holder);
  }
  return Array.from(lines.values()).sort((one, other) => other.bytes - one.bytes);
}
