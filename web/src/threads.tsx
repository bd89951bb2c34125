// What each thread's call paths held over time: a press shows that thread alone. Threads that never held anything are left out.
import { useMemo } from "preact/hooks";
import { type Capture, isCounted, type Held } from "./capture";
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
  const told = useMemo(() => overTime(capture), [capture]);
  if (!told.length) return <p class="empty">No thread held anything.</p>;
  return (
    <ul class="threads" aria-label="threads, by the most live bytes of their call paths">
      {told.map(({ thread, series, most }) => (
        <li key={thread}>
          <button
            aria-pressed={thread === chosen}
            onClick={() => onThread(thread === chosen ? -1 : thread)}
            title={capture.threads[thread]}
          >
            <span>{shortened(capture.threads[thread], 40)}</span>
            <b>{size(most)}</b>
            <Spark capture={capture} values={series} atNs={held.atNs} height={20} />
          </button>
        </li>
      ))}
    </ul>
  );
}

interface Told {
  thread: number;
  series: Float64Array;
  most: number;
}

/** The threads that held most at some moment, of those that asked for most in all. */
function overTime(capture: Capture): Told[] {
  const threadOf = (holder: number) => capture.thread[capture.holderNode[holder]];
  const asked = new Float64Array(capture.threads.length);
  for (let holder = 0; holder < capture.holderNode.length; holder += 1) {
    if (isCounted(capture.holderKind[holder]) && threadOf(holder) >= 0)
      asked[threadOf(holder)] += capture.totalBytes[holder];
  }
  const busy = Array.from(asked.keys())
    .sort((one, other) => asked[other] - asked[one])
    .slice(0, 8 * MOST);
  const place = new Map(busy.map((thread, index) => [thread, index]));
  const group = new Int32Array(capture.holderNode.length);
  for (let holder = 0; holder < group.length; holder += 1)
    group[holder] = isCounted(capture.holderKind[holder]) ? (place.get(threadOf(holder)) ?? -1) : -1;
  const told = capture.overTime(group, busy.length).map((series, index) => ({
    thread: busy[index],
    series,
    most: series.reduce((high, value) => Math.max(high, value), 0),
  }));
  return told
    .filter((one) => one.most > 0)
    .sort((one, other) => other.most - one.most)
    .slice(0, MOST);
}
