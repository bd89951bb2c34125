// The processes of a recording: those that were watched from outside, those of a run, and several captures.
import type { Capture } from "./capture";
import { JobView } from "./job";
import type { RunProcess, RunTable, WatchedData } from "./page";
import { type Column, Table } from "./table";
import { printable, seconds, shortened, size } from "./words";

interface Props {
  captures: Capture[];
  run: RunTable | undefined;
  onCapture: (index: number) => void;
}

export function ProcessesView({ captures, run, onCapture }: Props) {
  const watched = captures.flatMap((capture) => capture.described.summary.processes);
  return (
    <section>
      {run && <OfRun run={run} onCapture={onCapture} />}
      {!run && captures.length > 1 && <Recorded captures={captures} onCapture={onCapture} />}
      {watched.length > 0 && (
        <Table caption="Processes watched from outside" columns={WATCHED} items={watched} first="peak" />
      )}
    </section>
  );
}

/** All processes of a run. Only those with a capture in the page can be shown. */
function OfRun({ run, onCapture }: { run: RunTable; onCapture: (index: number) => void }) {
  const bytes = (id: keyof RunProcess, title: string): Column<RunProcess> => ({
    id,
    title,
    value: (one) => one[id] as number,
    cell: (one) => size(one[id] as number),
  });
  const columns: Column<RunProcess>[] = [
    bytes("peak_bytes", "Allocated peak"),
    bytes("kept_bytes", "Kept"),
    {
      ...bytes("resident_peak_bytes", "Resident peak"),
      cell: (one) => atLeast(one.resident_at_least, one.resident_peak_bytes),
    },
    ...(run.processes.some((one) => one.inherited_bytes) ? [bytes("inherited_bytes", "Inherited")] : []),
    ...(run.job ? OF_JOB.filter((column) => run.processes.some((one) => column.value(one))) : []),
    { id: "pid", title: "Process", value: (one) => one.pid },
    {
      id: "ended",
      title: "Ended",
      value: (one) => one.ended,
      cell: (one) =>
        one.is_dead ? (
          <b>
            {printable(one.ended)}
            {lastWords(one)}
          </b>
        ) : (
          printable(one.ended)
        ),
    },
    {
      id: "program",
      title: "Program",
      value: (one) => one.program,
      cell: ({ capture, program, started_by }) => {
        const words = `${shortened(program, 100)}${started_by && ` (${started_by})`}`;
        return capture === null ? (
          <span title="not in this page: hiwater report --pid shows it">{words}</span>
        ) : (
          <button class="link" onClick={() => onCapture(capture)}>
            {words}
          </button>
        );
      },
      wide: true,
    },
  ];
  return (
    <>
      {run.job && <JobView job={run.job} />}
      <Table
        caption="Processes: each peak is at its own time, and they do not add up"
        columns={columns}
        items={run.processes}
        first=""
      />
      {run.notes.map((note) => (
        <p key={note}>{printable(note)}</p>
      ))}
    </>
  );
}

/** A peak; ≥ stands before a lower bound. */
function atLeast(isLowerBound: boolean, bytes: number): string {
  return `${isLowerBound ? "≥ " : ""}${size(bytes)}`;
}

/** What a killed process of a job held at its end. */
function lastWords({ role }: RunProcess): string {
  const last = role?.last_line;
  return last ? printable(`; at its end most at ${last.file}:${last.line}: ${size(last.bytes)}`) : "";
}

/** What a process is in its job; a column that is empty for all is not shown. */
const OF_JOB: Column<RunProcess>[] = [
  {
    id: "limit",
    title: "Of its limit",
    value: (one) => one.role?.limit_share ?? 0,
    cell: (one) => (one.role?.limit_share == null ? "" : `${Math.round(100 * one.role.limit_share)} %`),
  },
  ...(["managed_bytes", "unmanaged_bytes", "spilled_bytes"] as const).map((id) => ({
    id,
    title: { managed_bytes: "Managed", unmanaged_bytes: "Unmanaged", spilled_bytes: "Spilled" }[id],
    value: (one: RunProcess) => one.role?.engine_memory?.[id] ?? 0,
    cell: (one: RunProcess) => (one.role?.engine_memory ? size(one.role.engine_memory[id]) : ""),
  })),
  { id: "host", title: "Host", value: (one) => printable(one.role?.host ?? "") },
  { id: "rank", title: "Rank", value: (one) => printable(one.role?.rank ?? "") },
  { id: "worker", title: "Worker", value: (one) => printable(one.role?.worker ?? "") },
];

const WATCHED: Column<WatchedData>[] = [
  {
    id: "peak",
    title: "Peak",
    value: (one) => one.peak_bytes,
    cell: (one) => (one.peak_bytes ? atLeast(!one.exact, one.peak_bytes) : "too short"),
  },
  { id: "pid", title: "Process", value: (one) => one.pid },
  { id: "parent", title: "Parent", value: (one) => one.parent_pid },
  { id: "start", title: "From", value: (one) => one.start_ns, cell: (one) => seconds(one.start_ns) },
  {
    id: "end",
    title: "To",
    value: (one) => one.end_ns ?? Infinity,
    cell: (one) => (one.end_ns === null ? "runs" : seconds(one.end_ns)),
  },
  { id: "status", title: "Ended", value: (one) => one.exit_status ?? 0, cell: (one) => status(one.exit_status) },
  {
    id: "command",
    title: "Command",
    value: (one) => printable(one.command.join(" ") || one.name),
    cell: (one) => <code>{shortened(printable(one.command.join(" ") || one.name), 120)}</code>,
    wide: true,
  },
];

function status(code: number | null): string {
  return code === null ? "" : code < 0 ? `signal ${-code}` : `exit code ${code}`;
}

function Recorded({ captures, onCapture }: { captures: Capture[]; onCapture: (index: number) => void }) {
  const columns: Column<number>[] = [
    {
      id: "peak",
      title: "Allocated peak",
      value: (index) => captures[index].described.summary.peak.allocated_bytes,
      cell: (index) => size(captures[index].described.summary.peak.allocated_bytes),
    },
    {
      id: "resident",
      title: "Resident peak",
      value: (index) => captures[index].described.summary.resident.program_peak_bytes,
      cell: (index) => {
        const { exact, peak_bytes, program_peak_bytes } = captures[index].described.summary.resident;
        return atLeast(!exact && peak_bytes > 0, program_peak_bytes);
      },
    },
    { id: "pid", title: "Process", value: (index) => captures[index].described.summary.process.pid },
    {
      id: "title",
      title: "Program",
      value: (index) => captures[index].described.title,
      cell: (index) => (
        <button class="link" onClick={() => onCapture(index)}>
          {shortened(captures[index].described.title, 100)}
        </button>
      ),
      wide: true,
    },
  ];
  return (
    <Table
      caption="Processes with a capture of their own"
      columns={columns}
      items={captures.map((_, index) => index)}
      first="peak"
    />
  );
}
