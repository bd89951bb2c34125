// What each thread's call paths held over time: a press shows that thread alone. Threads that never held anything are left out.
import { useMemo } from "preact/hooks";
import { type Capture, COUNTED_KINDS, type Held } from "./capture";
import { Spark } from "./spark";
import { shortened, size } from "./words";

const MOST = 12;

interface Props {
  capture: Capture;
  held: Held;
  chosen: number;
  onThread: (thread: number) => void;
}

export function Threads({ capture, held, chosen, onThread }: Props) {
  const { order, series, most } = useMemo(() => overTime(capture), [capture]);
  if (order.length < 2) return null;
  return (
    <ul class="threads" aria-label="threads, by the most that their call paths held">
      {order.slice(0, MOST).map((thread) => (
        <li key={thread}>
          <button aria-pressed={thread === chosen} onClick={() => onThread(thread === chosen ? -1 : thread)} title={capture.threads[thread]}>
            <span>{shortened(capture.threads[thread], 40)}</span>
            <b>{size(most[thread])}</b>
            <Spark capture={capture} values={series[thread]} atNs={held.atNs} height={20} />
          </button>
        </li>
      ))}
    </ul>
  );
}

function overTime(capture: Capture): { order: number[]; series: Float64Array[]; most: number[] } {
  const group = new Int32Array(capture.holderNode.length);
  for (let holder = 0; holder < group.length; holder += 1) {
    group[holder] = capture.holderKind[holder] < COUNTED_KINDS ? capture.thread[capture.holderNode[holder]] : -1;
  }
  const series = capture.overTime(group, capture.threads.length);
  const most = series.map((values) => values.reduce((high, value) => Math.max(high, value), 0));
  const order = most.map((_, thread) => thread).filter((thread) => most[thread] > 0);
  order.sort((one, other) => most[other] - most[one]);
  return { order, series, most };
}
