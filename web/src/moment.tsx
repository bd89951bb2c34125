// The moment that is shown, which kinds and threads count, and the tabs: one row that stays in sight.
import { useEffect, useRef, useState } from "preact/hooks";
import { type Capture, COUNTED_KINDS, END, type Held, KIND_WORDS, KINDS, type Moment, PEAK } from "./capture";
import { beforeWords, signedWithin, stateOf } from "./change";
import type { Choice, Frames } from "./shape";
import { seconds, shortened, size, sizeWithin } from "./words";

export function momentWords(moment: Moment, held: Held): string {
  if (moment.at === "peak") return `at the peak, at ${seconds(held.atNs)}`;
  if (moment.at === "end") return `at the end, at ${seconds(held.atNs)}`;
  const { asked } = moment;
  if (asked && asked[0] < asked[1])
    return `at ${seconds(held.atNs)}, the highest between ${seconds(asked[0] * 1e9)} and ${seconds(asked[1] * 1e9)}`;
  if (held.startNs === held.endNs) return `at ${seconds(held.atNs)}, when memory was refused`;
  return `at ${seconds(held.atNs)}, the highest between ${seconds(held.startNs)} and ${seconds(held.endNs)}`;
}

interface MomentProps {
  capture: Capture;
  moment: Moment;
  held: Held;
  counts: Uint8Array;
  choice: Choice;
  frames: Frames;
  words: string;
  onMoment: (moment: Moment) => void;
  onChoice: (choice: Choice) => void;
  onFrames: (frames: Frames) => void;
}

export function MomentBar(props: MomentProps) {
  const { capture, moment, held, counts, choice, frames, words, onMoment, onChoice, onFrames } = props;
  const refused = capture.refusedSlice;
  let [bytes, sampled, before, beforeSampled] = [0, 0, 0, 0];
  for (let holder = 0; holder < counts.length; holder += 1) {
    if (!counts[holder]) continue;
    bytes += held.bytes[holder];
    if (capture.holderSampled[holder]) sampled += held.bytes[holder];
    if (!held.before) continue;
    before += held.before[holder];
    if (capture.holderSampled[holder]) beforeSampled += held.before[holder];
  }
  const error = capture.changeErrorOf(sampled, beforeSampled);
  const state = stateOf(before, bytes, error);
  return (
    <div class="moment-bar">
      <span class="segmented" role="group" aria-label="moment">
        <button aria-pressed={moment.at === "peak"} onClick={() => onMoment(PEAK)}>
          Peak
        </button>
        {!capture.isWhole && (
          <button aria-pressed={moment.at === "end"} onClick={() => onMoment(END)}>
            End
          </button>
        )}
        {refused >= 0 && (
          <button
            aria-pressed={moment.slice === refused}
            onClick={() => onMoment({ at: "slice", slice: refused, asked: null })}
          >
            Refused
          </button>
        )}
      </span>
      <span class="moment-words" role="status" id="moment">
        <b>{sizeWithin(bytes, capture.errorOf(sampled))}</b> {words}
        {held.before && (
          <>
            : <b class={`state ${state}`}>{signedWithin(bytes - before, error)}</b>
            {state === "within error" && ", within error,"} from {size(before)} before, {beforeWords(capture, moment)}
          </>
        )}
      </span>
      <label>
        Kind{" "}
        <select
          value={choice.kind}
          onChange={(event) => onChoice({ ...choice, kind: Number(event.currentTarget.value) })}
        >
          <option value={-1}>all kinds</option>
          {KINDS.slice(0, COUNTED_KINDS).map((kind, number) => (
            <option key={kind} value={number}>
              {KIND_WORDS[number]}
            </option>
          ))}
        </select>
      </label>
      {capture.hasNativeFrames && (
        <label>
          Code{" "}
          <select value={frames} onChange={(event) => onFrames(event.currentTarget.value as Frames)}>
            <option value="python">Python</option>
            <option value="mixed">Python and native</option>
            <option value="native">native</option>
          </select>
        </label>
      )}
      {capture.threads.length > 1 && (
        <label>
          {capture.isWhole ? "Process" : "Thread"}{" "}
          <select
            value={choice.thread}
            onChange={(event) => onChoice({ ...choice, thread: Number(event.currentTarget.value) })}
          >
            <option value={-1}>all {capture.threads.length}</option>
            {capture.threads.map((thread, number) => (
              <option key={number} value={number}>
                {shortened(thread, 40)}
              </option>
            ))}
          </select>
        </label>
      )}
    </div>
  );
}

export function Tabs<Tab extends string>({
  tabs,
  tab,
  onTab,
}: {
  tabs: [Tab, string][];
  tab: Tab;
  onTab: (tab: Tab) => void;
}) {
  const list = useRef<HTMLDivElement>(null);
  const [moved, setMoved] = useState(false);
  useEffect(() => {
    if (moved) list.current?.querySelector<HTMLElement>("[aria-selected=true]")?.focus();
  }, [tab]);
  if (!tabs.length) return null;
  const press = (event: KeyboardEvent) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    setMoved(true);
    const place = tabs.findIndex(([name]) => name === tab);
    onTab(tabs[(place + step + tabs.length) % tabs.length][0]);
    event.preventDefault();
  };
  return (
    <div class="tabs" role="tablist" aria-label="views" ref={list} onKeyDown={press}>
      {tabs.map(([name, words]) => (
        <button
          key={name}
          id={`tab-${name}`}
          role="tab"
          aria-selected={name === tab}
          aria-controls="view"
          tabIndex={name === tab ? 0 : -1}
          onClick={() => onTab(name)}
        >
          {words}
        </button>
      ))}
    </div>
  );
}
