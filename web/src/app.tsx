// The page: what is shown is one moment of one process, seen from several sides.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { type Capture, COUNTED_KINDS, END, type Held, KIND_WORDS, KINDS, type Moment, PEAK } from "./capture";
import { beforeWords, signedWithin, stateOf } from "./change";
import type { Colouring } from "./colour";
import { FlameView } from "./flame_view";
import { Head } from "./head";
import { KeptView, MappingsView } from "./kept";
import { ProcessesView } from "./processes";
import { type Choice, chosen } from "./shape";
import { SourceView } from "./source";
import { TableView } from "./table";
import { Threads } from "./threads";
import { nextTheme, type Theme, useTheme } from "./theme";
import { Timeline } from "./timeline";
import { seconds, shortened, size, sizeWithin } from "./words";

type Tab = "flame" | "table" | "source" | "kept" | "mappings" | "processes";

export function App({ captures }: { captures: Capture[] }) {
  const [index, setIndex] = useState(0);
  const [theme, isDark, setTheme] = useTheme();
  return (
    <>
      <header class="bar">
        <span class="brand">hiwater</span>
        {captures.length > 1 && (
          <label>
            Process{" "}
            <select value={index} onChange={(event) => setIndex(Number(event.currentTarget.value))}>
              {captures.map((capture, number) => (
                <option key={number} value={number}>
                  {capture.described.summary.process.pid} {shortened(capture.described.title, 40)} —{" "}
                  {size(capture.described.summary.peak.allocated_bytes)}
                </option>
              ))}
            </select>
          </label>
        )}
        <button class="quiet theme" onClick={() => setTheme(nextTheme(theme))}>
          Theme: {THEME_WORDS[theme]}
        </button>
      </header>
      <Recording key={index} capture={captures[index]} captures={captures} isDark={isDark} onCapture={setIndex} />
    </>
  );
}

const THEME_WORDS: Record<Theme, string> = { auto: "as the system's", light: "light", dark: "dark" };

function Recording({
  capture,
  captures,
  isDark,
  onCapture,
}: {
  capture: Capture;
  captures: Capture[];
  isDark: boolean;
  onCapture: (index: number) => void;
}) {
  const { asked, summary } = capture.described;
  const [moment, setMoment] = useState<Moment>(() => capture.asked);
  const [choice, setChoice] = useState<Choice>({
    thread: -1,
    kind: KINDS.slice(0, COUNTED_KINDS).indexOf(asked.kind as "python"),
  });
  const [colouring, setColouring] = useState<Colouring>(capture.isBeside ? "delta" : "kind");
  const [wantedLine, setWantedLine] = useState<{ file: number; line: number } | null>(null);
  const held = useMemo(() => capture.held(moment), [capture, moment]);
  const counts = useMemo(() => chosen(capture, choice), [capture, choice]);
  const words = momentWords(moment, held);
  const hasProcesses = captures.length > 1 || summary.processes.length > 0;
  const tabs: [Tab, string][] = [
    ...(capture.isTimeline
      ? []
      : ([
          ["flame", "Flame graph"],
          ["table", "Table"],
          ["source", "Source"],
          ["kept", "Kept"],
          ["mappings", "Mappings"],
        ] as [Tab, string][])),
    ...(hasProcesses ? ([["processes", "Processes"]] as [Tab, string][]) : []),
  ];
  const [tab, setTab] = useState<Tab>(tabs[0]?.[0] ?? "flame");
  const showSource = (file: number, line: number) => {
    setWantedLine({ file, line });
    setTab("source");
  };
  return (
    <main>
      <Head capture={capture} onSource={showSource} />
      <section aria-label="memory over time">
        <Timeline
          capture={capture}
          moment={moment}
          held={held}
          isDark={isDark}
          onWindow={(from, to) => setMoment(capture.window(from, to))}
          onPeak={() => setMoment(PEAK)}
          onEnd={() => setMoment(END)}
        />
        <Threads
          capture={capture}
          held={held}
          chosen={choice.thread}
          onThread={(thread) => setChoice({ ...choice, thread })}
        />
      </section>
      {!capture.isTimeline && (
        <MomentBar
          capture={capture}
          moment={moment}
          held={held}
          counts={counts}
          choice={choice}
          words={words}
          onMoment={setMoment}
          onChoice={setChoice}
        />
      )}
      <Tabs tabs={tabs} tab={tab} onTab={setTab} />
      <div id="view" role="tabpanel" aria-labelledby={`tab-${tab}`} class="view">
        {tab === "flame" && tabs[0]?.[0] === "flame" && (
          <FlameView
            capture={capture}
            held={held}
            counts={counts}
            momentWords={words}
            isDark={isDark}
            colouring={colouring}
            onColouring={setColouring}
            onSource={showSource}
          />
        )}
        {tab === "table" && (
          <TableView
            capture={capture}
            held={held}
            choice={choice}
            by={asked.by}
            momentWords={words}
            onSource={showSource}
          />
        )}
        {tab === "source" && (
          <SourceView capture={capture} held={held} choice={choice} momentWords={words} asked={wantedLine} />
        )}
        {tab === "kept" && <KeptView capture={capture} choice={choice} onSource={showSource} />}
        {tab === "mappings" && <MappingsView capture={capture} held={held} momentWords={words} />}
        {tab === "processes" && <ProcessesView captures={captures} onCapture={onCapture} />}
      </div>
      <footer class="muted">
        Made by hiwater {summary.process.hiwater}. Sizes are requested bytes in binary units unless a figure says
        resident. The page is whole in this file and asks nothing of any other.
      </footer>
    </main>
  );
}

function momentWords(moment: Moment, held: Held): string {
  if (moment.at === "peak") return `at the peak, at ${seconds(held.atNs)}`;
  if (moment.at === "end") return `at the end, at ${seconds(held.atNs)}`;
  const { asked } = moment;
  if (asked && asked[0] < asked[1])
    return `at ${seconds(held.atNs)}, the highest of the slices that touch ${seconds(asked[0] * 1e9)} to ${seconds(asked[1] * 1e9)}`;
  if (held.startNs === held.endNs) return `at ${seconds(held.atNs)}, when memory was refused`;
  return `at ${seconds(held.atNs)}, the highest moment between ${seconds(held.startNs)} and ${seconds(held.endNs)}`;
}

interface MomentProps {
  capture: Capture;
  moment: Moment;
  held: Held;
  counts: Uint8Array;
  choice: Choice;
  words: string;
  onMoment: (moment: Moment) => void;
  onChoice: (choice: Choice) => void;
}

function MomentBar({ capture, moment, held, counts, choice, words, onMoment, onChoice }: MomentProps) {
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
    <div class="moment">
      <span class="segmented" role="group" aria-label="moment">
        <button aria-pressed={moment.at === "peak"} onClick={() => onMoment(PEAK)}>
          Peak
        </button>
        <button aria-pressed={moment.at === "end"} onClick={() => onMoment(END)}>
          End
        </button>
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
      {capture.threads.length > 1 && (
        <label>
          Thread{" "}
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

function Tabs({ tabs, tab, onTab }: { tabs: [Tab, string][]; tab: Tab; onTab: (tab: Tab) => void }) {
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
