// What was never freed, by the line of one's own code that it came through, with how it grew; and memory beside the sum.
import { useMemo } from "preact/hooks";
import { type Capture, COUNTED_KINDS, type Held, KIND_WORDS } from "./capture";
import { type OwnLine, ownLines } from "./ranking";
import { type Choice, chosen } from "./shape";
import { Spark } from "./spark";
import { type Column, Table } from "./table";
import { blocks, count, share, shortened, size } from "./words";

const MOST_CURVES = 100;

interface Kept extends OwnLine {
  series: Float64Array;
  grewBytes: number;
}

/** Lines with what they held in each slice; growth is from the middle of the recording to its end. */
function keptLines(capture: Capture, choice: Choice): Kept[] {
  const lines = ownLines(capture, capture.end, chosen(capture, choice))
    .filter((line) => line.bytes > 0)
    .slice(0, MOST_CURVES);
  const group = new Int32Array(capture.holderNode.length).fill(-1);
  lines.forEach((line, index) => line.holders.forEach((holder) => (group[holder] = index)));
  const series = capture.overTime(group, lines.length);
  let middle = 0;
  while (middle + 1 < capture.slices.startNs.length && capture.slices.endNs[middle] < capture.durationNs / 2)
    middle += 1;
  return lines.map((line, index) => ({
    ...line,
    series: series[index],
    grewBytes: line.bytes - series[index][middle],
  }));
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
      value: (line) => lineName(capture, line),
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
    { id: "blocks", title: "Blocks", value: (line) => line.blocks, cell: (line) => count(line.blocks) },
    {
      id: "of",
      title: "Share of its allocations",
      value: (line) => line.bytes / Math.max(1, line.runBytes),
      cell: (line) => share(line.bytes, line.runBytes),
    },
  ];
  return (
    <section>
      <p class="controls muted">
        {size(whole)} in {blocks(number)} were never freed. Each block stands at the innermost line of your own code
        that it came through; modules and what they define are among them.
      </p>
      <Table caption="Never freed, by line of your own code" columns={columns} items={lines} first="bytes" />
    </section>
  );
}

function lineName(capture: Capture, line: OwnLine): string {
  const { name, file, line: at } = line.key;
  return file < 0 ? name : `${name} (${capture.files[file].short}${at ? `:${at}` : ""})`;
}

function Where({ capture, line, onSource }: { capture: Capture; line: OwnLine; onSource: Props["onSource"] }) {
  const { name, file, line: at } = line.key;
  const hasSource = file >= 0 && at > 0 && capture.described.source.files.some((one) => one.file === file);
  const place = file < 0 ? "" : `${capture.files[file].short}${at ? `:${at}` : ""}`;
  return (
    <span class="name">
      <code>{name}</code>{" "}
      {hasSource ? (
        <button class="link" onClick={() => onSource(file, at)}>
          {place}
        </button>
      ) : (
        <small>{place}</small>
      )}
    </span>
  );
}

interface Class {
  kind: number;
  bytes: number;
  blocks: number;
  endBytes: number;
  lines: OwnLine[];
}

const CLASS_WORDS: Record<number, string> = {
  2: "requested with mmap, part of the sum",
  4: "made by this process, each page once, part of the sum",
  5: "pages of files, which the system can drop at any time",
  6: "made by another process, or before the recording",
  7: "address space only, without memory",
  8: "arenas of pymalloc for small Python objects, which are counted one by one",
};

export function MappingsView({ capture, held, momentWords }: { capture: Capture; held: Held; momentWords: string }) {
  const classes = useMemo(() => {
    const found: Class[] = [];
    for (const kind of Object.keys(CLASS_WORDS).map(Number)) {
      const counts = new Uint8Array(capture.holderNode.length);
      const one: Class = { kind, bytes: 0, blocks: 0, endBytes: 0, lines: [] };
      for (let holder = 0; holder < counts.length; holder += 1) {
        if (capture.holderKind[holder] !== kind) continue;
        counts[holder] = 1;
        one.bytes += held.bytes[holder];
        one.blocks += held.blocks[holder];
        one.endBytes += capture.end.bytes[holder];
      }
      one.lines = ownLines(capture, held, counts).slice(0, 3);
      found.push(one);
    }
    return found;
  }, [capture, held]);
  const columns: Column<Class>[] = [
    { id: "bytes", title: "Size", value: (one) => one.bytes, cell: (one) => size(one.bytes) },
    {
      id: "class",
      title: "Class",
      value: (one) => KIND_WORDS[one.kind],
      cell: (one) => (
        <span class="name">
          {KIND_WORDS[one.kind]} <small>{CLASS_WORDS[one.kind]}</small>
        </span>
      ),
      wide: true,
    },
    { id: "blocks", title: "Mappings", value: (one) => one.blocks, cell: (one) => count(one.blocks) },
    { id: "end", title: "At the end", value: (one) => one.endBytes, cell: (one) => size(one.endBytes) },
    {
      id: "lines",
      title: "Largest at",
      value: (one) => one.lines.map((line) => lineName(capture, line)).join(", "),
      cell: (one) => (
        <small>
          {shortened(one.lines.map((line) => `${lineName(capture, line)} ${size(line.bytes)}`).join(" · "), 120)}
        </small>
      ),
      wide: true,
    },
  ];
  return (
    <section>
      <p class="controls muted">
        Of these, anonymous mappings and shared memory are part of what is called allocated (
        {KIND_WORDS.slice(0, COUNTED_KINDS).join(", ")}); {momentWords}.
      </p>
      <Table caption="Mappings by class" columns={columns} items={classes} first="bytes" />
    </section>
  );
}
