// Memory over time. Dragging chooses a window, clicking or the arrow keys a moment; everything below follows.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import type { Capture, Held, Moment } from "./capture";
import { type Curve, curvesOf, isStacked, stacked, valueAt } from "./curves";
import { count, printable, seconds, shortened, size } from "./words";

const HEIGHT = 138; // with the legend below it, 160
const LANE = 14;
const MOST_LANES = 4;

interface Props {
  capture: Capture;
  moment: Moment;
  held: Held;
  isDark: boolean;
  onWindow: (from: number, to: number) => void;
  onPeak: () => void;
  onEnd: () => void;
}

export function Timeline({ capture, moment, held, isDark, onWindow, onPeak, onEnd }: Props) {
  const element = useRef<HTMLDivElement>(null);
  const chart = useRef<uPlot | null>(null);
  const shown = useRef({ moment, held });
  shown.current = { moment, held };
  const [at, curves] = useMemo(() => curvesOf(capture), [capture]);
  const [hovered, setHovered] = useState<Hovered | null>(null);
  // At once and not after the next frame: printing does not wait for one.
  useLayoutEffect(() => {
    const place = element.current!;
    const { order, data } = stacked(at, curves);
    const ordered = order.map((index) => curves[index]);
    const plot = new uPlot(
      optionsOf(capture, ordered, place, { shown, onWindow, onHover: setHovered }),
      [at, ...data] as uPlot.AlignedData,
      place,
    );
    chart.current = plot;
    const observer = new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: HEIGHT }));
    observer.observe(place);
    return () => {
      observer.disconnect();
      plot.destroy();
      chart.current = null;
    };
  }, [capture, isDark]);
  useEffect(() => chart.current?.redraw(false), [moment, held]);

  const press = (event: KeyboardEvent) => {
    const last = capture.slices.startNs.length - 1;
    const now = moment.slice ?? sliceAt(capture, held.atNs);
    if (event.key === "Home") onPeak();
    else if (event.key === "End") onEnd();
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const next = Math.max(0, Math.min(last, now + (event.key === "ArrowLeft" ? -1 : 1)));
      const { startNs, endNs } = capture.slices;
      const other = event.shiftKey && moment.asked ? moment.asked : null;
      const middle = (startNs[next] + endNs[next]) / 2e9;
      onWindow(other ? Math.min(other[0], middle) : middle, other ? Math.max(other[1], middle) : middle);
    } else return;
    event.preventDefault();
  };
  return (
    <>
      <div
        ref={element}
        class="plot"
        tabIndex={0}
        role="slider"
        aria-label="moment shown, in seconds since the recording began"
        aria-valuemin={0}
        aria-valuemax={round(capture.durationNs / 1e9)}
        aria-valuenow={round(held.atNs / 1e9)}
        aria-valuetext={`${seconds(held.atNs)}, ${moment.at === "slice" ? "highest moment of the window" : moment.at}`}
        onKeyDown={press}
        onDblClick={onPeak}
      />
      {hovered && <Values curves={curves} at={at} hovered={hovered} />}
      <Legend curves={curves} at={at} atNs={capture.isTimeline ? null : held.atNs} collected={collectionsOf(capture)}>
        {!capture.isTimeline && !capture.isWhole && (
          <li class="hint">Drag to select a window, click to select a moment</li>
        )}
      </Legend>
    </>
  );
}

/** A place under the pointer: the time there, and where on the screen. */
interface Hovered {
  atNs: number;
  x: number;
  y: number;
}

/** What each curve had at the time under the pointer. */
function Values({ curves, at, hovered: { atNs, x, y } }: { curves: Curve[]; at: number[]; hovered: Hovered }) {
  const left = x + 240 > window.innerWidth ? x - 234 : x + 14;
  const kinds = curves.filter(isStacked);
  const allocated = kinds.reduce((sum, curve) => sum + valueAt(at, curve, atNs), 0);
  return (
    <div class="tip values" aria-hidden="true" style={{ left: `${Math.max(8, left)}px`, top: `${y + 18}px` }}>
      <strong>{at[at.length - 1] < 0.5 ? `${(atNs / 1e6).toFixed(2)} ms` : `${(atNs / 1e9).toFixed(3)} s`}</strong>
      {kinds.length > 1 && (
        <span>
          <i class="dot none" /> allocated <b>{size(allocated)}</b>
        </span>
      )}
      {curves.map((curve) => (
        <span key={curve.label}>
          <Swatch curve={curve} curves={curves} /> {shortened(curve.label, 30)} <b>{size(valueAt(at, curve, atNs))}</b>
        </span>
      ))}
    </div>
  );
}

function Swatch({ curve, curves }: { curve: Curve; curves: Curve[] }) {
  return <i class={isStacked(curve) ? `dot kind${curve.colour}` : `stroke ${strokeOf(curve, curves)}`} />;
}

const round = (value: number) => Math.round(value * 1000) / 1000;

function sliceAt(capture: Capture, ns: number): number {
  const { startNs } = capture.slices;
  let slice = 0;
  while (slice + 1 < startNs.length && startNs[slice + 1] <= ns) slice += 1;
  return slice;
}

/** What each curve had at a moment; without one, the most it ever had. */
function Legend({
  curves,
  at,
  atNs,
  collected,
  children,
}: {
  curves: Curve[];
  at: number[];
  atNs: number | null;
  collected: number;
  children: preact.ComponentChildren;
}) {
  const valueOf = (curve: Curve) =>
    atNs === null
      ? curve.values.reduce<number>((most, value) => Math.max(most, value ?? 0), 0)
      : valueAt(at, curve, atNs);
  return (
    <ul class="legend">
      {curves.map((curve) => (
        <li key={curve.label}>
          <Swatch curve={curve} curves={curves} /> {shortened(curve.label, 40)} <b>{size(valueOf(curve))}</b>
        </li>
      ))}
      {collected > 0 && (
        <li>
          <i class="tick" /> garbage collected <b>{count(collected)} times</b>
        </li>
      )}
      {children}
    </ul>
  );
}

/** The name of the colour of a line: processes take turns, and so do devices after the first. */
function strokeOf(curve: Curve, curves: Curve[]): string {
  if (curve.group !== "process" && curve.group !== "device")
    return { resident: "ink", reserved: "ink", limit: "warn", kind: "ink", part: "ink" }[curve.group];
  const number = curves.filter((one) => one.group === curve.group).indexOf(curve);
  return curve.group === "device" && number === 0 ? "kind3" : `line${number % 5}`;
}

function lanesOf(capture: Capture): number {
  return Math.min(
    MOST_LANES,
    capture.described.summary.scopes.reduce((most, scope) => Math.max(most, scope.depth + 1), 0),
  );
}

/** How many full garbage collections there were. */
function collectionsOf(capture: Capture): number {
  return capture.described.markers.reduce((sum, marker) => sum + (marker.kind === "gc" ? marker.value : 0), 0);
}

interface Hooks {
  shown: { current: { moment: Moment; held: Held } };
  onWindow: (from: number, to: number) => void;
  onHover: (hovered: Hovered | null) => void;
}

function optionsOf(
  capture: Capture,
  curves: Curve[],
  place: HTMLElement,
  { shown, onWindow, onHover }: Hooks,
): uPlot.Options {
  const style = getComputedStyle(place);
  const colour = (name: string) => style.getPropertyValue(`--${name}`).trim();
  const axis = {
    stroke: colour("muted"),
    font: "11px system-ui, sans-serif",
    grid: { stroke: colour("rule"), width: 1 },
    ticks: { show: false },
  };
  const lanes = lanesOf(capture) * LANE;
  const sizes = {
    ...axis,
    size: 68,
    splits: (_plot: uPlot, _axis: number, _low: number, high: number) => ticks(high),
    values: (_plot: uPlot, splits: number[]) => splits.map((value) => (value ? size(value).replace(".0 ", " ") : "0")),
  };
  // Devices have memory of their own, often many times the process's: an axis of their own, at the right.
  const devices = curves.some((curve) => curve.group === "device");
  const range = (_plot: uPlot, _low: number, high: number): [number, number] => [0, Math.max(1, high * 1.06)];
  return {
    width: place.clientWidth || 800,
    height: HEIGHT,
    padding: [8 + lanes, devices ? 4 : 22, 0, 0],
    legend: { show: false },
    cursor: { drag: { x: true, y: false, setScale: false }, points: { show: false }, y: false },
    scales: {
      x: { time: false, range: () => [0, Math.max(1e-6, capture.durationNs / 1e9)] },
      y: { range },
      ...(devices && { device: { range } }),
    },
    axes: [
      {
        ...axis,
        size: 26,
        space: 70,
        values: (_plot, splits, _axis, _space, step) => splits.map((value) => timeText(value, step)),
        grid: { show: false },
      },
      sizes,
      ...(devices
        ? [{ ...sizes, scale: "device", side: 1 as const, stroke: colour("kind3"), grid: { show: false } }]
        : []),
    ],
    series: [
      {},
      ...curves.map((curve): uPlot.Series => {
        const line = {
          label: curve.label,
          scale: curve.group === "device" ? "device" : "y",
          points: { show: false },
          spanGaps: true,
          paths: uPlot.paths.stepped!({ align: 1 }),
        };
        if (isStacked(curve)) return { ...line, width: 0, fill: colour(`kind${curve.colour}`) };
        if (curve.group === "limit") return { ...line, width: 1, stroke: colour("warn"), dash: [6, 4] };
        return { ...line, width: 1.5, stroke: colour(strokeOf(curve, curves)) };
      }),
    ],
    hooks: {
      setCursor: [
        (plot) => {
          const { left, top } = plot.cursor;
          if (left === undefined || left < 0) return onHover(null);
          const box = plot.over.getBoundingClientRect();
          onHover({ atNs: Math.max(0, plot.posToVal(left, "x")) * 1e9, x: box.left + left, y: box.top + (top ?? 0) });
        },
      ],
      draw: [(plot) => drawOver(plot, capture, shown.current, colour)],
      setSelect: [
        (plot) => {
          const { left, width } = plot.select;
          if (width < 3) return;
          onWindow(Math.max(0, plot.posToVal(left, "x")), Math.max(0, plot.posToVal(left + width, "x")));
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        },
      ],
      ready: [
        (plot) =>
          plot.over.addEventListener("click", () => {
            const time = Math.max(0, plot.posToVal(plot.cursor.left ?? 0, "x"));
            onWindow(time, time);
          }),
      ],
    },
  };
}

/** A time on the axis, with the digits that tell ticks `step` seconds apart from each other. */
function timeText(value: number, step: number): string {
  const [count, apart, unit] = step < 0.01 ? [value * 1000, step * 1000, "ms"] : [value, step, "s"];
  return `${+count.toFixed(Math.max(0, Math.ceil(-Math.log10(apart)) + 1))} ${unit}`;
}

/** Round sizes: powers of two times 1 or what makes about four of them. */
function ticks(high: number): number[] {
  const step = 2 ** Math.ceil(Math.log2(Math.max(1, high) / 5));
  const places = [];
  for (let value = 0; value <= high; value += step) places.push(value);
  return places;
}

/** Scopes above the curves, the window that is shown, the peak, and what happened. */
function drawOver(
  plot: uPlot,
  capture: Capture,
  { moment, held }: { moment: Moment; held: Held },
  colour: (name: string) => string,
): void {
  const context = plot.ctx;
  const ratio = uPlot.pxRatio;
  const { left, top, width, height } = plot.bbox;
  const x = (ns: number) => Math.max(left, Math.min(left + width, plot.valToPos(ns / 1e9, "x", true)));
  context.save();
  context.font = `${11 * ratio}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  if (moment.at === "slice") {
    const [from, to] = moment.asked ?? [held.startNs / 1e9, held.endNs / 1e9];
    context.fillStyle = colour("shade");
    context.fillRect(x(from * 1e9), top, Math.max(ratio, x(to * 1e9) - x(from * 1e9)), height);
  }
  const lanes = { x, top, lanes: lanesOf(capture), ratio };
  for (const scope of capture.described.summary.scopes) drawScope(context, scope, lanes, colour);
  const upright = (ns: number, stroke: string, dash: number[]) => {
    context.strokeStyle = stroke;
    context.lineWidth = ratio;
    context.setLineDash(dash.map((part) => part * ratio));
    context.beginPath();
    context.moveTo(Math.round(x(ns)) + 0.5, top);
    context.lineTo(Math.round(x(ns)) + 0.5, top + height);
    context.stroke();
  };
  const note = (text: string, ns: number, line: number) => {
    const isLeft = x(ns) + context.measureText(text).width + 12 * ratio > left + width;
    context.textAlign = isLeft ? "right" : "left";
    context.lineWidth = 4 * ratio;
    context.setLineDash([]);
    context.strokeStyle = colour("paper");
    context.strokeText(text, x(ns) + (isLeft ? -5 : 5) * ratio, top + (9 + 13 * line) * ratio);
    context.fillStyle = colour("ink");
    context.fillText(text, x(ns) + (isLeft ? -5 : 5) * ratio, top + (9 + 13 * line) * ratio);
  };
  if (!capture.isTimeline) {
    upright(capture.peak.atNs, colour("ink"), [2, 3]);
    note("peak", capture.peak.atNs, 0);
  }
  const { markers } = capture.described;
  drawCollections(
    context,
    markers.filter((marker) => marker.kind === "gc").map((marker) => x(marker.at_ns)),
    { foot: top + height, ratio, colour: colour("muted") },
  );
  for (const marker of markers.filter((marker) => marker.kind !== "gc").slice(0, 200)) {
    upright(marker.at_ns, colour(marker.kind === "out of memory" ? "warn" : "muted"), [1, 2]);
    note(marker.kind === "fork" ? `fork ${marker.value}` : printable(marker.kind), marker.at_ns, 1);
  }
  if (moment.at !== "peak") upright(held.atNs, colour("accent"), []);
  context.restore();
}

/** Full garbage collections as short strokes at the foot: there may be thousands, and none is news by itself. */
function drawCollections(
  context: CanvasRenderingContext2D,
  places: number[],
  { foot, ratio, colour }: { foot: number; ratio: number; colour: string },
): void {
  context.strokeStyle = colour;
  context.lineWidth = ratio;
  context.setLineDash([]);
  context.beginPath();
  for (const place of new Set(places.map(Math.round))) {
    context.moveTo(place + 0.5, foot - 7 * ratio);
    context.lineTo(place + 0.5, foot);
  }
  context.stroke();
}

interface Drawn {
  name: string;
  depth: number;
  start_ns: number;
  end_ns: number;
}

interface Lanes {
  x: (ns: number) => number;
  top: number;
  lanes: number;
  ratio: number;
}

/** A scope as a band above the curves, those it lies in above it. */
function drawScope(
  context: CanvasRenderingContext2D,
  scope: Drawn,
  { x, top, lanes, ratio }: Lanes,
  colour: (name: string) => string,
): void {
  if (scope.depth >= lanes) return;
  const [from, to] = [x(scope.start_ns), x(scope.end_ns)];
  const y = top - (lanes - scope.depth) * LANE * ratio;
  context.fillStyle = colour("band");
  context.fillRect(from, y, Math.max(ratio, to - from - ratio), (LANE - 2) * ratio);
  const room = Math.floor((to - from) / (6.2 * ratio)) - 1;
  if (room < 3) return;
  context.textAlign = "left";
  context.fillStyle = colour("ink");
  context.fillText(shortened(printable(scope.name), room), from + 4 * ratio, y + ((LANE - 2) / 2) * ratio);
}
