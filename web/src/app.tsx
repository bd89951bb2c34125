// The page: what is shown is one moment of one process, seen from several sides.
import { useMemo, useState } from "preact/hooks";
import { type Capture, COUNTED_KINDS, END, KINDS, type Moment, PEAK } from "./capture";
import type { Colouring } from "./colour";
import { FlameView } from "./flame_view";
import { factsOf, Head } from "./head";
import { HoldersView, type Line } from "./holders";
import { KeptView } from "./kept";
import { MappingsView } from "./mappings";
import { MomentBar, momentWords, Tabs } from "./moment";
import { MyLinesView } from "./my_lines";
import type { RunTable } from "./page";
import { ProcessesView } from "./processes";
import { hasResidency, ResidencyView } from "./residency";
import { type Choice, chosen, type Frames } from "./shape";
import { SourceView } from "./source";
import { TableView } from "./table";
import { Threads } from "./threads";
import { nextTheme, type Theme, useTheme } from "./theme";
import { Timeline } from "./timeline";
import { count, printable, shortened, size } from "./words";

type Tab =
  "flame" | "mine" | "table" | "source" | "holders" | "kept" | "resident" | "mappings" | "threads" | "processes";

export function App({ captures, run }: { captures: Capture[]; run: RunTable | undefined }) {
  const [index, setIndex] = useState(() => largest(captures));
  const [theme, isDark, setTheme] = useTheme();
  const capture = captures[index];
  const { title, compared, summary } = capture.described;
  return (
    <>
      <header class="bar">
        <span class="brand">hiwater</span>
        <h1 title={printable(summary.process.argv.join(" "))}>
          {compared && "What grew in "}
          {shortened(title, 120)}
        </h1>
        <span class="facts muted">{factsOf(capture)}</span>
        {captures.length > 1 && (
          <label>
            Process{" "}
            <select value={index} onChange={(event) => setIndex(Number(event.currentTarget.value))}>
              {captures.map(({ described }, number) => (
                <option key={number} value={number}>
                  {!described.whole && described.summary.process.pid} {shortened(described.title, 40)} —{" "}
                  {size(sizeOf(captures[number]))}
                </option>
              ))}
            </select>
          </label>
        )}
        <button class="quiet theme" onClick={() => setTheme(nextTheme(theme))}>
          Theme: {THEME_WORDS[theme]}
        </button>
      </header>
      <Recording key={index} capture={capture} captures={captures} run={run} isDark={isDark} onCapture={setIndex} />
    </>
  );
}

const THEME_WORDS: Record<Theme, string> = { auto: "system", light: "light", dark: "dark" };

const sizeOf = ({ isTimeline, described: { summary } }: Capture): number =>
  isTimeline ? summary.resident.peak_bytes : summary.peak.allocated_bytes;

/** The capture to open: the one with the highest peak. A page that compares opens on the pair that was compared first. */
function largest(captures: Capture[]): number {
  if (captures[0].compared) return 0;
  return captures.reduce((most, one, index) => (sizeOf(one) > sizeOf(captures[most]) ? index : most), 0);
}

function Recording({
  capture,
  captures,
  run,
  isDark,
  onCapture,
}: {
  capture: Capture;
  captures: Capture[];
  run: RunTable | undefined;
  isDark: boolean;
  onCapture: (index: number) => void;
}) {
  const { asked, summary, merged } = capture.described;
  const [moment, setMoment] = useState<Moment>(() => capture.asked);
  const [choice, setChoice] = useState<Choice>({
    thread: -1,
    kind: KINDS.slice(0, COUNTED_KINDS).indexOf(asked.kind as "python"),
  });
  const [frames, setFrames] = useState<Frames>(asked.frames as Frames);
  const [colouring, setColouring] = useState<Colouring>(capture.isBeside ? "delta" : "kind");
  const [wantedLine, setWantedLine] = useState<{ file: number; line: number } | null>(null);
  const held = useMemo(() => capture.held(moment), [capture, moment]);
  const counts = useMemo(() => chosen(capture, choice), [capture, choice]);
  const tabs = useMemo(() => tabsOf(capture, captures, run), [capture, captures]);
  const [tab, setTab] = useState<Tab>(
    asked.kept && tabs.some(([one]) => one === "kept") ? "kept" : (tabs[0]?.[0] ?? "flame"),
  );
  const words = momentWords(moment, held);
  const [wantedHeld, setWantedHeld] = useState<Line[] | null>(null);
  const showHolders = (stack: Line[] | null) => {
    setWantedHeld(stack);
    setTab("holders");
  };
  const showSource = (file: number, line: number) => {
    setWantedLine({ file, line });
    setTab("source");
  };
  return (
    <main>
      <Head capture={capture} onSource={showSource} />
      <section class="timeline" aria-label="memory over time">
        <Timeline
          capture={capture}
          moment={moment}
          held={held}
          isDark={isDark}
          onWindow={(from, to) => setMoment(capture.window(from, to))}
          onPeak={() => setMoment(PEAK)}
          onEnd={() => setMoment(END)}
        />
      </section>
      <div class="moment">
        <Tabs tabs={tabs} tab={tab} onTab={setTab} />
        {!capture.isTimeline && (
          <MomentBar
            capture={capture}
            moment={moment}
            held={held}
            counts={counts}
            choice={choice}
            frames={frames}
            words={words}
            onMoment={setMoment}
            onChoice={setChoice}
            onFrames={setFrames}
          />
        )}
      </div>
      <div id="view" role="tabpanel" aria-labelledby={`tab-${tab}`} class="view">
        {tab === "flame" && tabs[0]?.[0] === "flame" && (
          <FlameView
            capture={capture}
            frames={frames}
            held={held}
            counts={counts}
            momentWords={words}
            isDark={isDark}
            colouring={colouring}
            onColouring={setColouring}
            onSource={showSource}
            onHolders={capture.described.object_holders ? showHolders : undefined}
          />
        )}
        {tab === "mine" && (
          <MyLinesView
            capture={capture}
            held={held}
            moment={moment}
            choice={choice}
            momentWords={words}
            onSource={showSource}
          />
        )}
        {tab === "table" && (
          <TableView
            capture={capture}
            frames={frames}
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
        {tab === "holders" && (
          <HoldersView capture={capture} wanted={wantedHeld} onAll={() => setWantedHeld(null)} onSource={showSource} />
        )}
        {tab === "kept" && <KeptView capture={capture} choice={choice} onSource={showSource} />}
        {tab === "resident" && <ResidencyView capture={capture} />}
        {tab === "mappings" && <MappingsView capture={capture} held={held} momentWords={words} />}
        {tab === "threads" && (
          <Threads
            capture={capture}
            held={held}
            chosen={choice.thread}
            onThread={(thread) => setChoice({ ...choice, thread })}
          />
        )}
        {tab === "processes" && <ProcessesView captures={captures} run={run} onCapture={onCapture} />}
      </div>
      <footer class="muted">
        {merged.stacks > 0 &&
          `The ${count(merged.stacks)} smallest stacks, none of which held more than ${size(merged.most_bytes)} at any moment, stand under their nearest callers as [smaller stacks]. All sums include them. `}
        Made by hiwater {summary.process.hiwater}. Sizes are requested bytes in binary units unless a figure says
        resident. The page is whole in this file and asks nothing of any other.
      </footer>
    </main>
  );
}

function tabsOf(capture: Capture, captures: Capture[], run: RunTable | undefined): [Tab, string][] {
  const { isTimeline, isBeside, isWhole, described } = capture;
  const has = (wanted: boolean, tab: Tab, words: string): [Tab, string][] => (wanted ? [[tab, words]] : []);
  return [
    ...has(!isTimeline, "flame", "Flame graph"),
    ...has(!isTimeline && !isBeside, "mine", "My lines"),
    ...has(!isTimeline, "table", "Table"),
    ...has(!isTimeline, "source", "Source"),
    ...has(described.object_holders !== undefined, "holders", "Holders"),
    ...has(!isTimeline && !isWhole, "kept", "Kept"),
    ...has(hasResidency(capture), "resident", "Resident"),
    ...has(!isTimeline && !isWhole, "mappings", "Mappings"),
    ...has(!isTimeline && !isWhole && capture.threads.length > 1, "threads", "Threads"),
    ...has(
      run !== undefined || captures.length > 1 || described.summary.processes.length > 0,
      "processes",
      "Processes",
    ),
  ];
}
