// A job: how uneven the peaks of its processes are and why, and what phases of each name cost over all processes.
import { signedSize } from "./change";
import type { JobData } from "./page";
import { type Column, Table } from "./table";
import { printable, shortened, size } from "./words";

type Outlier = JobData["outliers"][number];
type Phase = JobData["phases"][number];

export function JobView({ job }: { job: JobData }) {
  return (
    <>
      {job.skew !== null && (
        <p>
          Highest peak {size(job.highest_peak_bytes)}: <b>{job.skew.toFixed(1)} times</b> the median of {job.processes}{" "}
          processes ({size(job.median_peak_bytes)})
          {job.highest_untouched_bytes > 0 &&
            `, without memory that was never touched, at most ${size(job.highest_untouched_bytes)} of a process`}
          .
        </p>
      )}
      {job.outliers.map((one) => (
        <OutlierLine key={one.pid} outlier={one} />
      ))}
      {job.phases.length > 0 && (
        <Table
          caption={
            "Phases of all processes: figures of the whole process while a phase ran" +
            (job.phases_not_kept ? `; ${job.phases_not_kept} earlier phases were not kept` : "")
          }
          columns={PHASES}
          items={job.phases}
          first=""
        />
      )}
    </>
  );
}

/** One process far above the median, and the lines that hold more in it than in the median process. */
function OutlierLine({ outlier }: { outlier: Outlier }) {
  return (
    <p>
      <b>{printable(who(outlier.worker, outlier.pid, outlier.host))}</b>: peak {size(outlier.peak_bytes)},{" "}
      {outlier.times_median.toFixed(1)} times the median
      {outlier.phase && `, during ${printable(outlier.phase)}`}. More than in process {outlier.median_pid}:{" "}
      {outlier.causes.map((cause, index) => (
        <span key={index}>
          {index > 0 && ", "}
          {signedSize(cause.more_bytes)} at <code>{shortened(place(cause), 100)}</code>
        </span>
      ))}
    </p>
  );
}

const who = (worker: string, pid: number, host: string) =>
  `${worker ? `${worker}, ` : ""}process ${pid}${host ? ` on ${host}` : ""}`;

const place = (line: { file: string; line: number; function: string }) =>
  printable(line.file ? `${line.file}:${line.line} ${line.function}` : line.function);

const bytes = (
  id: "highest_rise_bytes" | "median_rise_bytes" | "kept_bytes" | "highest_peak_bytes",
  title: string,
): Column<Phase> => ({ id, title, value: (one) => one[id], cell: (one) => size(one[id]) });

const PHASES: Column<Phase>[] = [
  bytes("highest_rise_bytes", "Highest rise"),
  bytes("median_rise_bytes", "Median rise"),
  bytes("kept_bytes", "Kept by one process"),
  bytes("highest_peak_bytes", "Highest peak"),
  {
    id: "count",
    title: "Count",
    value: (one) => one.ended + one.unfinished,
    cell: (one) => (one.unfinished ? `${one.ended} + ${one.unfinished} unfinished` : `${one.ended}`),
  },
  { id: "processes", title: "Processes", value: (one) => one.processes },
  { id: "name", title: "Phase", value: (one) => printable(one.name) },
  {
    id: "where",
    title: "Worst",
    value: (one) => printable(who(one.worst_worker, one.worst_pid, one.worst_host)),
    cell: (one) => (
      <>
        {printable(who(one.worst_worker, one.worst_pid, one.worst_host))}
        {one.line && (
          <>
            , most at <code>{shortened(place(one.line), 100)}</code>
          </>
        )}
      </>
    ),
    wide: true,
  },
];
