// What is drawn over time: resident memory, each kind that counts, devices, what a device's allocator had reserved, processes and limits, over common times.
import { type Capture, COUNTED_KINDS, isCounted, KIND_WORDS, KINDS } from "./capture";
import { printable } from "./words";

export interface Curve {
  label: string;
  group: "resident" | "kind" | "part" | "device" | "reserved" | "process" | "limit";
  kind: number; // -1 for what is no kind
  /** For curves that stand on one another, the number of the colour; otherwise -1. */
  colour: number;
  /** A value for each time; undefined where this curve has none of its own. */
  values: (number | undefined)[];
}

interface Points {
  atNs: ArrayLike<number>;
  bytes: ArrayLike<number>;
}

/** Times in seconds, and the curves over them. */
export function curvesOf(capture: Capture): [number[], Curve[]] {
  const { timeline } = capture.described;
  const own = capture.unpacked.numbers(timeline.at_ns);
  const highs = capture.isTimeline ? [] : highsOf(capture);
  const drawn = timeline.series
    .map((series) => ({
      series,
      kind: series.group === "kind" ? KINDS.indexOf(series.name as (typeof KINDS)[number]) : -1,
    }))
    .filter(({ series, kind }) => series.group !== "kind" || isCounted(kind));
  const parts = drawn.filter(({ series }) => series.group === "part");
  const points = drawn.map(({ series, kind }): Points[] => {
    const sampled = {
      atNs: series.at_ns ? capture.unpacked.numbers(series.at_ns) : own,
      bytes: capture.unpacked.numbers(series.bytes),
    };
    return kind < 0 || !highs[kind] ? [sampled] : [sampled, { atNs: capture.slices.peakNs, bytes: highs[kind] }];
  });
  // The first and the last moment are drawn too: a short run may have one sample, and the last sample comes before the end.
  const sampled = points.flat().flatMap((some) => Array.from(some.atNs));
  const times = Array.from(new Set([0, ...sampled, capture.durationNs])).sort((one, other) => one - other);
  const place = new Map(times.map((ns, index) => [ns, index]));
  const curves = drawn.map(({ series, kind }, index): Curve => {
    const values: (number | undefined)[] = new Array(times.length).fill(undefined);
    for (const { atNs, bytes } of points[index])
      for (let point = 0; point < atNs.length; point += 1) values[place.get(atNs[point])!] = bytes[point];
    const colour = series.group === "part" ? parts.indexOf(drawn[index]) : kind;
    // Kinds stand on one another, and so do processes: each needs a value everywhere, the last one that is known.
    if (colour >= 0) values.forEach((value, at) => (values[at] = value ?? values[at - 1] ?? 0));
    if (series.group === "resident") toTheEnds(values, capture);
    return { label: kind < 0 ? printable(series.name) : KIND_WORDS[kind], group: series.group, kind, colour, values };
  });
  const most = curves.reduce(
    (high, curve) => curve.values.reduce<number>((one, value) => Math.max(one, value ?? 0), high),
    0,
  );
  // A limit that is far away would leave the curves no room.
  const near = timeline.limits.filter((limit) => limit.bytes <= 2 * most);
  const limits = near.map((limit): Curve => ({
    label: printable(limit.name),
    group: "limit",
    kind: -1,
    colour: -1,
    values: times.map(() => limit.bytes),
  }));
  return [
    times.map((ns) => ns / 1e9),
    [...curves.filter((curve) => curve.kind < 0 || curve.values.some((value) => value)), ...limits],
  ];
}

/** Resident memory at the start and at the end, where no sample was taken just then. */
function toTheEnds(values: (number | undefined)[], capture: Capture): void {
  const { start_bytes: start, end_bytes: end } = capture.described.summary.resident;
  values[0] ??= start;
  values[values.length - 1] ??= end;
}

/** What each kind had at the high of each slice: the samples of the timeline may have missed it. */
function highsOf(capture: Capture): Float64Array[] {
  const group = capture.holderKind.map((kind) => (isCounted(kind) ? kind : -1));
  return capture.overTime(group, COUNTED_KINDS);
}

/** Whether a curve is drawn on those before it. */
export const isStacked = (curve: Curve): boolean => curve.colour >= 0;

/** Kinds stand on one another, and so do processes: each curve is drawn as the sum of itself and those below it, the highest sum first. */
export function stacked(at: number[], curves: Curve[]): { order: number[]; data: (number | undefined)[][] } {
  const below = at.map(() => 0);
  const sums = curves.map((curve) =>
    isStacked(curve) ? curve.values.map((value, index) => (below[index] += value ?? 0)) : curve.values,
  );
  const numbers = curves.map((_, index) => index);
  const isArea = (index: number) => isStacked(curves[index]);
  const order = [...numbers.filter(isArea).reverse(), ...numbers.filter((index) => !isArea(index))];
  return { order, data: order.map((index) => sums[index]) };
}

/** What a curve had at a moment: its last value up to then. */
export function valueAt(at: number[], curve: Curve, atNs: number): number {
  let value = 0;
  for (let point = 0; point < at.length && at[point] * 1e9 <= atNs + 0.5; point += 1)
    value = curve.values[point] ?? value;
  return value;
}
