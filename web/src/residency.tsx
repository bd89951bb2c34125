// Where resident memory was, in the residency snapshot with most of it or in the last one; and how much of the largest blocks was resident.
import { useState } from "preact/hooks";
import type { Capture } from "./capture";
import { DeviceBreakdowns } from "./devices";
import type { ResidencyData } from "./page";
import { type Column, Table } from "./table";
import { printable, seconds, share, shortened, shortPath, size } from "./words";

type Part = ResidencyData["parts"][number];

const UNEXPLAINED = "unexplained";
const WORTH_TELLING = 2 ** 20; // bytes
/** The recorder's own tables and pages. */
const OVERHEAD = /hiwater/i;
/** Colours by what a part is, as its name begins: slack is paler than what it is the slack of. */
const SHADES: [RegExp, string][] = [
  [/^unexplained/, "unexplained"],
  [/^python.*slack/i, "part0 slack"],
  [/^python/i, "part0"],
  [/^malloc.*slack/i, "part1 slack"],
  [/^malloc/i, "part1"],
  [/^anonymous/i, "part2"],
  [OVERHEAD, "part6"],
  [/^files/i, "part4"],
];

const shadeOf = (part: Part) => SHADES.find(([pattern]) => pattern.test(part.name))?.[1] ?? "part5";

/** Whether anything is known of where resident memory, or a device's, was. */
export function hasResidency(capture: Capture): boolean {
  const { breakdown, devices } = capture.described.summary;
  return breakdown !== null || devices.some((device) => device.breakdown !== null);
}

export function ResidencyView({ capture }: { capture: Capture }) {
  return (
    <section>
      <Breakdown capture={capture} />
      <DeviceBreakdowns capture={capture} />
      <LargeBlocks capture={capture} />
    </section>
  );
}

/** The parts of a residency snapshot under its own total, with its distance from the resident peak. */
function Breakdown({ capture }: { capture: Capture }) {
  const { breakdown: highest, breakdown_at_end: last, resident } = capture.described.summary;
  const [isLast, setLast] = useState(false);
  const snapshot = isLast ? last : highest;
  if (!snapshot || !highest) return null;
  const told = snapshot.parts.filter((part) => part.resident_bytes || untouchedOf(part) >= WORTH_TELLING);
  const whole = snapshot.parts.reduce((sum, part) => sum + Math.max(0, part.resident_bytes), 0);
  const overhead = snapshot.parts.find((part) => part.name === "overhead of hiwater")?.resident_bytes ?? 0;
  const below = resident.program_peak_bytes - (snapshot.resident_bytes - overhead);
  return (
    <figure class="breakdown">
      <figcaption>
        <b class="total">{size(snapshot.resident_bytes)}</b> resident in the residency snapshot at{" "}
        {seconds(snapshot.at_ns)}
        {isLast ? ", the last one" : ", the highest one"}
        {below > 0 &&
          `: without the overhead of hiwater, ${size(below)} (${share(below, resident.program_peak_bytes)}) below the resident peak`}
        {last && last.at_ns !== highest.at_ns && (
          <span class="segmented" role="group" aria-label="residency snapshot">
            <button aria-pressed={!isLast} onClick={() => setLast(false)}>
              Highest
            </button>
            <button aria-pressed={isLast} onClick={() => setLast(true)}>
              Last
            </button>
          </span>
        )}
      </figcaption>
      <div class="stack-bar tall" aria-hidden="true">
        {told.map((part) => (
          <i
            key={part.name}
            class={shadeOf(part)}
            style={{ width: `${(100 * Math.max(0, part.resident_bytes)) / Math.max(1, whole)}%` }}
          />
        ))}
      </div>
      <table class="parts">
        <caption>Parts of resident memory</caption>
        <thead>
          <tr>
            <th scope="col">Resident</th>
            <th scope="col">Share</th>
            <th scope="col">Never touched</th>
            <th scope="col" class="wide">
              Part
            </th>
          </tr>
        </thead>
        <tbody>
          {told.map((part) => (
            <tr key={part.name}>
              <td>{size(part.resident_bytes)}</td>
              <td>{share(part.resident_bytes, snapshot.resident_bytes)}</td>
              <td>{untouchedOf(part) ? size(untouchedOf(part)) : ""}</td>
              <td class="wide">
                <i class={`dot ${shadeOf(part)}`} />
                {printable(part.name)}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </figure>
  );
}

/** What was requested and never written. The program requested none of the room in the recorder's sparse tables. */
function untouchedOf(part: Part): number {
  return OVERHEAD.test(part.name) || part.name === UNEXPLAINED ? 0 : part.untouched_bytes;
}

type Block = ResidencyData["large"][number];

const placeOf = (block: Block): string => {
  const leaf = block.frame;
  if (!leaf) return "allocated by no recorded stack";
  return printable(leaf.file ? `${leaf.function} (${shortPath(leaf.file)}:${leaf.line})` : leaf.function);
};

const COLUMNS: Column<Block>[] = [
  { id: "bytes", title: "Size", value: (block) => block.bytes, cell: (block) => size(block.bytes) },
  {
    id: "touched",
    title: "Resident",
    value: (block) => block.touched_bytes,
    cell: (block) => size(block.touched_bytes),
  },
  {
    id: "share",
    title: "Share",
    value: (block) => block.touched_bytes / Math.max(1, block.bytes),
    cell: (block) => share(block.touched_bytes, block.bytes),
  },
  { id: "from", title: "From", value: (block) => (block.from_malloc ? "malloc" : "mmap") },
  {
    id: "place",
    title: "Allocated at",
    value: placeOf,
    cell: (block) => <code>{shortened(placeOf(block), 160)}</code>,
    wide: true,
  },
];

/** The largest blocks in the residency snapshot with most resident memory, and how much of each was resident. */
function LargeBlocks({ capture }: { capture: Capture }) {
  const snapshot = capture.described.summary.breakdown;
  if (!snapshot?.large.length) return null;
  const caption = `Largest blocks and mappings, at ${seconds(snapshot.at_ns)}`;
  return (
    <>
      <h2>{caption}</h2>
      <Table caption={caption} columns={COLUMNS} items={snapshot.large} first="bytes" />
    </>
  );
}
