// What was recorded, the peaks side by side with how exact each is, where resident memory is, and what limits trust.
import type { Capture } from "./capture";
import { signedWithin } from "./change";
import type { DeviceData as Described } from "./page";
import { sourceLine } from "./panel";
import { type Key, placeOf } from "./shape";
import { keyOf } from "./user_lines";
import { blocks, count, printable, seconds, shortened, size } from "./words";

interface Props {
  capture: Capture;
  onSource: (file: number, line: number) => void;
}

/** What was recorded, in one line. */
export function factsOf(capture: Capture): string {
  const { process, devices } = capture.described.summary;
  const { whole } = capture.described;
  if (whole) return `${whole.words} on ${printable(whole.host)} over ${seconds(process.duration_ns)}`;
  const mode =
    process.mode === "exact"
      ? "every block recorded"
      : process.mode === "timeline"
        ? "watched from outside"
        : capture.isHistory
          ? `history of ${printable(devices[0]?.name ?? "a device")}`
          : `blocks below ${size(process.sample_bytes)} sampled`;
  return [
    process.python && `Python ${printable(process.python)}`,
    capture.isHistory ? `over ${seconds(process.duration_ns)}` : printable(process.words),
    mode,
    day(process.started_at),
  ]
    .filter(Boolean)
    .join(" · ");
}

export function Head({ capture, onSource }: Props) {
  const { title, compared } = capture.described;
  return (
    <section class="head" aria-label="the peaks">
      {compared && (
        <p class="compared">
          <code>{shortened(compared.after.name, 120)}</code> compared with{" "}
          <code>{shortened(compared.before.name, 120)}</code>
          <span class="muted">
            , {compared.before.title !== title && `of ${shortened(compared.before.title, 80)}, `}
            {compared.before.python && `Python ${printable(compared.before.python)}, `}process {compared.before.pid},{" "}
            {seconds(compared.before.duration_ns)}. Figures without "before" are those of the first.
          </span>
        </p>
      )}
      {!capture.isTimeline && <Answer capture={capture} onSource={onSource} />}
      {compared ? (
        <Changes capture={capture} />
      ) : capture.described.whole ? (
        <AtOnce whole={capture.described.whole} />
      ) : (
        <Figures capture={capture} />
      )}
      <Notes capture={capture} />
    </section>
  );
}

/** The line of the user's own code to change first, or what changed: what one opens a report for. */
function Answer({ capture, onSource }: Props) {
  return capture.isBeside ? (
    <NetChange capture={capture} onSource={onSource} />
  ) : (
    <Headline capture={capture} onSource={onSource} />
  );
}

/** The same line with the same figures as in every other report: made where the report is. */
function Headline({ capture, onSource }: Props) {
  const { headline, answer, explain } = capture.described.summary;
  if (!headline) return null;
  const finding = explain.find((one) => one.file === headline.file && one.line === headline.line);
  return (
    <p class="answer">
      {printable(answer.before)}
      <Place capture={capture} line={keyOf(capture, headline)} after={printable(answer.after)} onSource={onSource} />
      {finding && (
        <span class="advice">
          {finding.rule}: {finding.saving.words}. {finding.change}
        </span>
      )}
    </p>
  );
}

/** The net change and its causes, in the words of every other view, and the first cause with its source. */
function NetChange({ capture, onSource }: Props) {
  const { words, causes } = capture.compared!.headline;
  const cause = causes[0];
  return (
    <p class="answer change">
      <b>{printable(words)}</b>{" "}
      {cause && (
        <Place
          capture={capture}
          line={{ ...keyOf(capture, cause), gone: cause.state === "gone" }}
          onSource={onSource}
        />
      )}
    </p>
  );
}

/** A line, what a sentence says `after` it, and its source; a button where the page has the file. */
function Place({ capture, line, after, onSource }: Props & { line: Key; after?: string }) {
  const source = line.file < 0 || line.gone ? null : sourceLine(capture, line.file, line.line);
  const place = placeOf(capture, line);
  return (
    <>
      <code>{shortened(line.name, 80)}</code>{" "}
      {source !== null ? (
        <button class="link" onClick={() => onSource(line.file, line.line)}>
          {place}
        </button>
      ) : (
        <span class="muted">{place}</span>
      )}
      {after}
      {source && <code class="quote">{shortened(source.trim(), 140)}</code>}
    </>
  );
}

/** Both peaks before and after, allocated beside resident, and what was kept. */
function Changes({ capture }: { capture: Capture }) {
  const { before, peak, resident, end } = capture.compared!;
  const { exactness, resident_exactness: how } = capture.described;
  return (
    <dl class="figures">
      <Changed
        label="allocated at its peak"
        figure={peak}
        note={`requested bytes · ${both(before.exactness, exactness)}`}
        isMain
      />
      <Changed label="resident at its peak" figure={resident} note={both(before.resident_exactness, how)} isMain />
      <Changed label="allocated at the end" figure={end} note="never freed" />
    </dl>
  );
}

function both(before: string, after: string): string {
  return before === after ? before : `${before}; then ${after}`;
}

type Quantity = NonNullable<Capture["compared"]>["peak"];

function Changed({ label, figure, note, isMain }: { label: string; figure: Quantity; note: string; isMain?: boolean }) {
  if (figure.before === null && figure.after === null) return null;
  const known = (bytes: number | null) => (bytes === null ? "not recorded" : size(bytes));
  const { change, percent, standard_error: error } = figure;
  const words = [
    change !== null && signedWithin(change, error),
    percent !== null && `${percent > 0 ? "+" : percent < 0 ? "−" : "±"}${Math.abs(percent).toFixed(1)} %`,
    figure.within_error && "within error",
    note,
  ];
  return (
    <Figure
      label={label}
      value={`${known(figure.before)} → ${known(figure.after)}`}
      note={words.filter(Boolean).join(" · ")}
      isMain={isMain}
    />
  );
}

/** The highest sums of all processes at one instant. Peaks of processes are at different times and do not add up. */
function AtOnce({ whole }: { whole: NonNullable<Capture["described"]["whole"]> }) {
  return (
    <dl class="figures">
      {whole.figures.map(({ name, bytes, words }) => (
        <Figure key={name} label={`${name} at one instant`} value={size(bytes)} note={words} isMain />
      ))}
    </dl>
  );
}

function day(started: string | null): string {
  return started ? `${started.slice(0, 10)} ${started.slice(11, 16)} UTC` : "";
}

function Figures({ capture }: { capture: Capture }) {
  const { summary, exactness, resident_exactness } = capture.described;
  const { peak, resident, end, totals, devices } = summary;
  const overhead = resident.overhead_bytes ? `, and ${size(resident.overhead_bytes)} overhead of hiwater` : "";
  return (
    <dl class="figures">
      {!capture.isTimeline && (
        <Figure
          label="allocated at its peak"
          value={size(peak.allocated_bytes)}
          note={`${exactness} · ${blocks(peak.blocks)}`}
          isMain
        />
      )}
      {!capture.isHistory && (
        <Figure
          label="resident at its peak"
          value={size(resident.program_peak_bytes)}
          note={`${resident_exactness}${overhead}`}
          isMain
        />
      )}
      {devices.map((device, index) => (
        <Device key={index} device={device} />
      ))}
      {!capture.isTimeline && (
        <Figure
          label="allocated at the end"
          value={size(end.allocated_bytes)}
          note={`${blocks(end.blocks)} never freed`}
        />
      )}
      {!capture.isTimeline && (
        <Figure
          label="allocated over the run"
          value={size(totals.allocated_bytes)}
          note={`${count(totals.allocations)} allocations`}
        />
      )}
      {capture.isTimeline && (
        <Figure
          label="resident at the end"
          value={size(resident.end_bytes)}
          note={`${size(resident.start_bytes)} at the start`}
        />
      )}
    </dl>
  );
}

function Figure({ label, value, note, isMain }: { label: string; value: string; note: string; isMain?: boolean }) {
  return (
    <div class={isMain ? "figure main" : "figure"}>
      <dt>{label}</dt>
      <dd>
        <b>{value}</b>
        <span>{note}</span>
      </dd>
    </div>
  );
}

/** A GPU: whatever of its three peaks is known. */
function Device({ device }: { device: Described }) {
  const peaks = (["allocated", "reserved", "used"] as const)
    .map((word) => ({ word, bytes: device[`peak_${word}_bytes`] }))
    .filter((one): one is { word: "allocated" | "reserved" | "used"; bytes: number } => typeof one.bytes === "number");
  if (!peaks.length) return null;
  const name = printable(device.name);
  const rest = peaks.slice(1).map((one) => `${size(one.bytes)} ${one.word}`);
  return (
    <Figure
      label={`${shortened(name, 40)}, ${peaks[0].word} at its peak`}
      value={size(peaks[0].bytes)}
      note={rest.join(" · ")}
      isMain
    />
  );
}

function Notes({ capture }: { capture: Capture }) {
  const { summary, markers, compared } = capture.described;
  const refused = markers.filter((marker) => marker.kind === "out of memory").length;
  const own = [
    summary.process.stop_reason && `Recording stopped early: ${printable(summary.process.stop_reason)}`,
    summary.lost_events &&
      `${count(summary.lost_events)} events were lost: the figures miss these allocations and frees.`,
    ...summary.shortcomings.map(printable),
    summary.process.ended === "recording" &&
      "The program was still running when this page was made: the figures are from that moment.",
    ...summary.problems.map((problem) => `The capture contradicts itself: ${printable(problem)}`),
  ];
  const notes = [
    ...(compared?.notes.map(printable) ?? own), // those of a comparison are about both
    refused && `Memory was refused to the program ${refused === 1 ? "once" : `${count(refused)} times`}.`,
  ].filter((note): note is string => Boolean(note));
  if (!notes.length) return null;
  const [first, ...others] = notes.map((note) => shortened(note, 400));
  if (!others.length) return <p class="notes">{first}</p>;
  return (
    <details class="notes">
      <summary>
        {first} <b>and {count(others.length)} more</b>
      </summary>
      <ul>
        {others.map((note) => (
          <li key={note}>{note}</li>
        ))}
      </ul>
    </details>
  );
}
