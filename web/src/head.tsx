// What was recorded, the peaks side by side with how exact each is, where resident memory is, and what limits trust.
import { useMemo } from "preact/hooks";
import type { Capture } from "./capture";
import { isWithinError, signedSize, signedWithin } from "./change";
import { sourceLine } from "./panel";
import { type OwnLine, ownLines } from "./ranking";
import { DeviceBreakdowns } from "./devices";
import { Breakdown } from "./residency";
import { chosen, placeOf } from "./shape";
import { blocks, count, printable, seconds, share, shortened, size } from "./words";

interface Props {
  capture: Capture;
  onSource: (file: number, line: number) => void;
}

export function Head({ capture, onSource }: Props) {
  const { summary, title, compared } = capture.described;
  const { process } = summary;
  const ended = { exit: "ended", killed: "was killed", recording: "is still running" }[process.ended];
  const code = process.exit_code ? ` with exit code ${process.exit_code}` : "";
  const mode =
    process.mode === "exact"
      ? "every block recorded"
      : process.mode === "timeline"
        ? "watched from outside"
        : capture.isHistory
          ? `history of ${printable(summary.devices[0]?.name ?? "a device")}`
          : `blocks below ${size(process.sample_bytes)} sampled`;
  const python = process.python ? `Python ${printable(process.python)}` : "";
  return (
    <header class="head">
      <h1 title={printable(process.argv.join(" "))}>
        {compared && "What grew in "}
        {shortened(title, 120)}
      </h1>
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
      <p class="muted">
        {[
          python,
          capture.isHistory
            ? `over ${seconds(process.duration_ns)}`
            : `process ${process.pid} ${ended}${code} after ${seconds(process.duration_ns)}`,
          mode,
          day(process.started_at),
        ]
          .filter(Boolean)
          .join(" · ")}
      </p>
      {compared ? <Changes capture={capture} /> : <Figures capture={capture} />}
      {!capture.isTimeline && <Answer capture={capture} onSource={onSource} />}
      <Breakdown capture={capture} />
      <DeviceBreakdowns capture={capture} />
      <Notes capture={capture} />
    </header>
  );
}

/** The line of one's own code that held most at the peak, or grew most: what one opens a report for. */
function Answer({ capture, onSource }: Props) {
  const line = useMemo(() => answer(capture), [capture]);
  if (!line) return null;
  const { name, file, line: at, gone } = line.key;
  const source = file < 0 || gone ? null : sourceLine(capture, file, at);
  const place = placeOf(capture, line.key);
  return (
    <p class="answer">
      {capture.isBeside ? (
        <>
          Grew most: <b>{signedSize(line.bytes - line.before)}</b>, from {size(line.before)} to {size(line.bytes)},
        </>
      ) : (
        <>
          Most at the peak: <b>{size(line.bytes)}</b>,{" "}
          {share(line.bytes, capture.described.summary.peak.allocated_bytes)},
        </>
      )}{" "}
      in <code>{shortened(name, 80)}</code>{" "}
      {source !== null ? (
        <button class="link" onClick={() => onSource(file, at)}>
          {place}
        </button>
      ) : (
        <span class="muted">{place}</span>
      )}
      {source && <code class="quote">{shortened(source.trim(), 140)}</code>}
    </p>
  );
}

function answer(capture: Capture): OwnLine | null {
  const counts = chosen(capture, { thread: -1, kind: -1 });
  if (!capture.isBeside) return ownLines(capture, capture.peak, counts)[0] ?? null;
  let most: OwnLine | null = null;
  for (const line of ownLines(capture, capture.held(capture.asked), counts)) {
    const change = line.bytes - line.before;
    if (change <= 0 || isWithinError(change, capture.changeErrorOf(line.sampled, line.beforeSampled))) continue;
    if (!most || change > most.bytes - most.before) most = line;
  }
  return most;
}

/** Both peaks before and after, allocated beside resident, and what was kept. */
function Changes({ capture }: { capture: Capture }) {
  const { before, peak, resident, end } = capture.compared!;
  const { exactness, summary } = capture.described;
  const how = summary.resident.exact
    ? `${summary.resident.error_bytes ? `within ${size(summary.resident.error_bytes)}` : "exact"}`
    : "at least: highest sample";
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

function day(started: string | null): string {
  return started ? `${started.slice(0, 10)} ${started.slice(11, 16)} UTC` : "";
}

function Figures({ capture }: { capture: Capture }) {
  const { summary, exactness } = capture.described;
  const { peak, resident, end, totals, devices } = summary;
  const how = resident.exact
    ? `${resident.error_bytes ? `within ${size(resident.error_bytes)}` : "exact"}, kernel's high-water mark`
    : "at least: highest sample";
  return (
    <dl class="figures">
      {!capture.isTimeline && (
        <Figure
          label="allocated at its peak"
          value={size(peak.allocated_bytes)}
          note={`${exactness} · requested bytes · ${blocks(peak.blocks)}`}
          isMain
        />
      )}
      {!capture.isHistory && (
        <Figure label="resident at its peak" value={size(resident.peak_bytes)} note={how} isMain />
      )}
      {devices.map((device, index) => (
        <Device key={index} device={device} index={index} />
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
function Device({ device, index }: { device: Record<string, unknown>; index: number }) {
  const peaks = (["allocated", "reserved", "used"] as const)
    .map((word) => ({ word, bytes: device[`peak_${word}_bytes`] }))
    .filter((one): one is { word: "allocated" | "reserved" | "used"; bytes: number } => typeof one.bytes === "number");
  if (!peaks.length) return null;
  const name = printable(String(device.name ?? `device ${index}`));
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
  const { summary, merged, markers, compared } = capture.described;
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
    merged.stacks &&
      `The ${count(merged.stacks)} smallest stacks, none of which ever had more than ${size(merged.most_bytes)}, are merged into [smaller stacks] under their nearest callers. All sums include them.`,
  ].filter((note): note is string => Boolean(note));
  if (!notes.length) return null;
  return (
    <ul class="notes">
      {notes.map((note) => (
        <li key={note}>{shortened(note, 400)}</li>
      ))}
    </ul>
  );
}
