// Where resident memory was, at the look that saw most of it or at the last one; and how much of the largest blocks was in RAM.
import { useState } from "preact/hooks";
import type { Capture } from "./capture";
import type { ResidencySnapshot } from "./page";
import { type Column, Table } from "./table";
import { printable, seconds, share, shortened, shortPath, size } from "./words";

type Part = ResidencySnapshot["parts"][number];

const UNEXPLAINED = "unexplained";
const OWN = "hiwater's own";
const WORTH_TELLING = 2 ** 20; // bytes
/** Colours by what a part is, as its name begins: slack is paler than what it is the slack of. */
const SHADES: [RegExp, string][] = [
  [/^unexplained/, "unexplained"],
  [/^python.*slack/i, "part0 slack"],
  [/^python/i, "part0"],
  [/^malloc.*slack/i, "part1 slack"],
  [/^malloc/i, "part1"],
  [/^anonymous/i, "part2"],
  [/^hiwater/i, "part3 slack"],
  [/^files/i, "part4"],
];

const shadeOf = (part: Part) => SHADES.find(([pattern]) => pattern.test(part.name))?.[1] ?? "part5";

export function Breakdown({ capture }: { capture: Capture }) {
  const { breakdown: highest, breakdown_at_end: last } = capture.described.summary;
  const [isLast, setLast] = useState(false);
  const look = isLast ? last : highest;
  if (!look || !highest) return null;
  const told = look.parts.filter((part) => part.resident_bytes || untouchedOf(part) >= WORTH_TELLING);
  const whole = look.parts.reduce((sum, part) => sum + Math.max(0, part.resident_bytes), 0);
  return (
    <figure class="breakdown">
      <figcaption>
        Where resident memory was, at {seconds(look.at_ns)}
        {isLast ? ", the last residency snapshot" : ", the residency snapshot with the most"}:{" "}
        <b>{size(look.resident_bytes)}</b>
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
      <ul class="kinds">
        {told.map((part) => (
          <li key={part.name} title={share(part.resident_bytes, look.resident_bytes)}>
            <i class={`dot ${shadeOf(part)}`} />
            {printable(part.name)} <b>{size(part.resident_bytes)}</b>
            {untouchedOf(part) >= WORTH_TELLING && `, and ${size(untouchedOf(part))} never touched`}
          </li>
        ))}
      </ul>
    </figure>
  );
}

/** What was asked for and never written. Nobody asked for the room in the recorder's own sparse tables. */
function untouchedOf(part: Part): number {
  return part.name === OWN || part.name === UNEXPLAINED ? 0 : part.untouched_bytes;
}

type Block = ResidencySnapshot["large"][number];

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

/** The largest blocks at the look that saw most, with how much of each was in RAM. */
export function LargeBlocks({ capture }: { capture: Capture }) {
  const look = capture.described.summary.breakdown;
  if (!look?.large.length) return null;
  const caption = `Largest blocks and mappings, at ${seconds(look.at_ns)}`;
  return (
    <>
      <h2>{caption}</h2>
      <Table caption={caption} columns={COLUMNS} items={look.large} first="bytes" />
    </>
  );
}
