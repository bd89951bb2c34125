// A small curve of what something held over the recording.
import type { Capture } from "./capture";
import { size } from "./words";

const WIDTH = 200;

/** Drawn as steps from slice to slice, each as high as the slice's high. */
export function Spark({
  capture,
  values,
  atNs,
  height = 34,
}: {
  capture: Capture;
  values: Float64Array;
  atNs?: number;
  height?: number;
}) {
  const { startNs, endNs } = capture.slices;
  const most = values.reduce((high, value) => Math.max(high, value), 0);
  const duration = Math.max(1, capture.durationNs);
  const y = (value: number) => (height - 1 - ((height - 3) * value) / Math.max(1, most)).toFixed(1);
  const x = (ns: number) => ((WIDTH * Math.min(ns, duration)) / duration).toFixed(1);
  let path = `M0 ${height - 1}`;
  for (let slice = 0; slice < values.length; slice += 1)
    path += `L${x(startNs[slice])} ${y(values[slice])}L${x(endNs[slice])} ${y(values[slice])}`;
  path += `L${WIDTH} ${height - 1}Z`;
  return (
    <svg
      class="spark"
      viewBox={`0 0 ${WIDTH} ${height}`}
      preserveAspectRatio="none"
      role="img"
      aria-label={`over time, at most ${size(most)}`}
    >
      <path d={path} />
      {atNs !== undefined && <line x1={x(atNs)} x2={x(atNs)} y1="0" y2={height} />}
    </svg>
  );
}
