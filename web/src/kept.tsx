// What is live at the end, by the line of one's own code that it came through: how it grew, when it was allocated, and what holds it.
import { useMemo } from "preact/hooks";
import type { Capture } from "./capture";
import { sourceLine } from "./panel";
import { ownLines } from "./ranking";
import { type Choice, chosen, type Key, nameOf, placeOf } from "./shape";
import { Spark } from "./spark";
import { type Column, Table } from "./table";
import { BEFORE, type Group, rankUserLines } from "./user_lines";
import { blocks, count, printable, share, shortened, size } from "./words";

const MOST_CURVES = 100;
const QUARTERS = ["1st", "2nd", "3rd", "4th"];

interface Kept {
  group: Group;
  key: Key;
  bytes: number;
  blocks: number;
  runBytes: number;
  series: Float64Array;
  grewBytes: number;
  /** The bytes by the quarter of the time that allocated them; empty where the capture has no snapshots. */
  byAge: number[];
  types: string[];
  heldBy: string;
}

/** The rows of the common ranking. A page that compares two captures does not have it: its rows are lines. */
function rowsOf(capture: Capture, counts: Uint8Array) {
  if (!capture.described.user_lines)
    return ownLines(capture, capture.end, counts).map(({ key, holders }) => ({
      group: "line" as const,
      key,
      holders,
      number: -1,
    }));
  return rankUserLines(capture, capture.end, counts);
}

/** Lines with what they held in each slice; growth is from the middle of the recording to its end. */
function keptLines(capture: Capture, choice: Choice): Kept[] {
  const { end, totalBytes, endByAge, slices, described } = capture;
  const rows = rowsOf(capture, chosen(capture, choice));
  const sum = (holders: number[], of: Float64Array) => holders.reduce((bytes, holder) => bytes + of[holder], 0);
  const lines = rows
    .map((row) => ({ ...row, bytes: sum(row.holders, end.bytes) }))
    .filter((row) => row.bytes > 0)
    .sort((one, other) => other.bytes - one.bytes);
  const drawn = lines.slice(0, MOST_CURVES);
  const group = new Int32Array(capture.holderNode.length).fill(-1);
  drawn.forEach((line, index) => line.holders.forEach((holder) => (group[holder] = index)));
  const series = capture.overTime(group, drawn.length);
  let middle = 0;
  while (middle + 1 < slices.startNs.length && slices.endNs[middle] < capture.durationNs / 2) middle += 1;
  return drawn.map((line, index) => {
    const said = described.user_lines?.rows[line.number];
    return {
      group: line.group,
      key: line.key,
      bytes: line.bytes,
      blocks: sum(line.holders, end.blocks),
      runBytes: sum(line.holders, totalBytes),
      series: series[index],
      grewBytes: line.bytes - series[index][middle],
      byAge: endByAge.map((bytes) => sum(line.holders, bytes)),
      types: (said?.types ?? []).map(printable),
      heldBy: printable(said?.held_by ?? ""),
    };
  });
}

interface Props {
  capture: Capture;
  choice: Choice;
  onSource: (file: number, line: number) => void;
}

export function KeptView({ capture, choice, onSource }: Props) {
  const lines = useMemo(() => keptLines(capture, choice), [capture, choice]);
  const counts = useMemo(() => chosen(capture, choice), [capture, choice]);
  let [whole, number] = [0, 0];
  for (let holder = 0; holder < counts.length; holder += 1)
    if (counts[holder]) [whole, number] = [whole + capture.end.bytes[holder], number + capture.end.blocks[holder]];
  const { ages } = capture.described;
  const columns: Column<Kept>[] = [
    { id: "bytes", title: "Kept", value: (line) => line.bytes, cell: (line) => size(line.bytes) },
    {
      id: "share",
      title: "Share",
      value: (line) => line.bytes / Math.max(1, whole),
      cell: (line) => share(line.bytes, whole),
    },
    {
      id: "name",
      title: "Line",
      value: (line) => nameOf(capture, line.key),
      cell: (line) => <Where capture={capture} line={line} onSource={onSource} />,
      wide: true,
    },
    {
      id: "over",
      title: "Over time",
      value: (line) => line.grewBytes,
      cell: (line) => <Spark capture={capture} values={line.series} height={22} />,
    },
    {
      id: "grew",
      title: "Since half-time",
      value: (line) => line.grewBytes,
      cell: (line) => `${line.grewBytes > 0 ? "+" : ""}${size(line.grewBytes)}`,
    },
    ...(ages ? QUARTERS.map((name, quarter) => ageColumn(name, quarter)) : []),
    { id: "blocks", title: "Blocks", value: (line) => line.blocks, cell: (line) => count(line.blocks) },
    {
      id: "of",
      title: "Share of its allocations",
      value: (line) => line.bytes / Math.max(1, line.runBytes),
      cell: (line) => share(line.bytes, line.runBytes),
    },
  ];
  return (
    <section class="my-lines">
      <p class="controls muted">
        {size(whole)} in {blocks(number)} were never freed. Each block stands at the innermost line of your own code
        that it came through; modules and what they define are among them.{" "}
        {ages
          ? `When it was allocated is known from ${count(ages.snapshots)} ${ages.snapshots === 1 ? "snapshot" : "snapshots"}: the columns 1st to 4th have each line’s share by quarter of the recording’s time; of what is missing to 100 % it is not known.`
          : "When it was allocated is not known: that needs a marker (`hiwater.mark()`) or a phase that the program reaches three times, or `hiwater run --snapshot-every 10s`."}
        {!capture.described.object_holders &&
          !capture.isBeside &&
          " What holds it is not known: that needs `hiwater run --holders`."}
      </p>
      <Table caption="Never freed, by line of your own code" columns={columns} items={lines} first="bytes" />
    </section>
  );
}

/** The share of a line's memory that was allocated in a quarter of the time. */
function ageColumn(name: string, quarter: number): Column<Kept> {
  return {
    id: name,
    title: name,
    value: (line) => line.byAge[quarter] / line.bytes,
    cell: (line) => (line.byAge[quarter] ? share(line.byAge[quarter], line.bytes) : ""),
  };
}

function Where({ capture, line, onSource }: { capture: Capture; line: Kept; onSource: Props["onSource"] }) {
  const { name, file, line: at } = line.key;
  const text = file < 0 ? null : sourceLine(capture, file, at);
  const place = placeOf(capture, line.key);
  return (
    <span class="name">
      {BEFORE[line.group] && <small>{BEFORE[line.group]} </small>}
      <code>{name}</code>{" "}
      {text !== null ? (
        <button class="link" onClick={() => onSource(file, at)}>
          {place}
        </button>
      ) : (
        <small>{place}</small>
      )}
      {text && <code class="quote">{shortened(text.trim(), 140)}</code>}
      {line.heldBy && <small class="quote">held by {shortened(line.heldBy, 200)}</small>}
      {line.types.length > 0 && <small class="quote">types: {shortened(line.types.join(", "), 200)}</small>}
    </span>
  );
}
