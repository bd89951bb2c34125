// The processes of a recording: those that were watched from outside, and those with captures of their own.
import type { Capture } from "./capture";
import type { Watched } from "./page";
import { type Column, Table } from "./table";
import { printable, seconds, shortened, size } from "./words";

export function ProcessesView({ captures, onCapture }: { captures: Capture[]; onCapture: (index: number) => void }) {
  const watched = captures.flatMap((capture) => capture.described.summary.processes);
  return (
    <section>
      {captures.length > 1 && <Recorded captures={captures} onCapture={onCapture} />}
      {watched.length > 0 && (
        <Table caption="Processes watched from outside" columns={WATCHED} items={watched} first="peak" />
      )}
    </section>
  );
}

const WATCHED: Column<Watched>[] = [
  {
    id: "peak",
    title: "Peak",
    value: (one) => one.peak_bytes,
    cell: (one) => (one.peak_bytes ? `${one.exact ? "" : "≥ "}${size(one.peak_bytes)}` : "too short"),
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
      value: (index) => captures[index].described.summary.resident.peak_bytes,
      cell: (index) => size(captures[index].described.summary.resident.peak_bytes),
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
