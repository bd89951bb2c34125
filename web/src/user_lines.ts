// The ranking that every report leads with, at any moment: the twin of `rank_lines` in src/hiwater/analysis/user_lines.py.
import type { Capture, Held } from "./capture";
import type { UserLineData as Described } from "./page";
import type { Key } from "./shape";
import { printable } from "./words";

export type Group = Described["group"];

/** What every report calls the group "other". */
export const OTHER_CODE = "code that none of your lines called";

/** What stands before the place of a row of each group. */
export const BEFORE: Record<Group, string> = {
  line: "",
  waited: "waited for at",
  import: "import at",
  other: `${OTHER_CODE}:`,
};

/** A line with all that it called. `bytes` are without `untouched`; `series` is what it held at the high of each slice. */
export interface UserLine {
  group: Group;
  key: Key;
  bytes: number;
  untouched: number;
  blocks: number;
  error: number;
  library: string;
  libraryBytes: number;
  holders: number[];
  /** Its place among the rows of `user_lines`, -1 where it has none. */
  number: number;
}

const ORDER: Record<Group, number> = { line: 0, waited: 0, import: 1, other: 2 };

/** Where a line of the ranking stands, for the page's other tables. */
export function keyOf(
  capture: Capture,
  { function: name, file, line }: Pick<Described, "function" | "file" | "line">,
): Key {
  const known = file ? capture.described.files.findIndex((one) => one.name === file) : -1;
  return { name: printable(name), file: known, line };
}

/** For each holder with bytes that no residency snapshot saw touched: how many, and the row that they belong to. */
function untouchedOf(capture: Capture, held: Held, counts: Uint8Array): Map<number, { bytes: number; row: number }> {
  const { untouched_node: nodes, untouched_bytes: bytes, untouched_row: rows } = capture.described.user_lines!;
  const [number, row] = [capture.unpacked.numbers(bytes), capture.unpacked.ints(rows)];
  const left = new Map(
    Array.from(capture.unpacked.ints(nodes), (node, index) => [node, { bytes: number[index], row: row[index] }]),
  );
  const found = new Map<number, { bytes: number; row: number }>();
  for (let holder = 0; holder < counts.length && left.size; holder += 1) {
    const rest = left.get(capture.holderNode[holder]);
    if (!counts[holder] || capture.holderKind[holder] === DEVICE || !rest?.bytes) continue;
    const never = Math.max(0, Math.min(rest.bytes, held.bytes[holder]));
    found.set(holder, { bytes: never, row: rest.row });
    rest.bytes -= never;
  }
  return found;
}

const DEVICE = 3;

/** The rows of the holders that count: the user's own lines, then imports, then other code; most bytes first in each group. */
export function rankUserLines(capture: Capture, held: Held, counts: Uint8Array): UserLine[] {
  const { rows, row, libraries, library } = capture.described.user_lines!;
  const [rowOf, libraryOf] = [capture.unpacked.ints(row), capture.unpacked.ints(library)];
  const untouched = untouchedOf(capture, held, counts);
  const lines = new Map<number, UserLine & { sampled: number; libraries: Map<number, number> }>();
  const lineOf = (number: number) => {
    const known = lines.get(number);
    if (known) return known;
    const line = {
      ...{ group: rows[number].group, key: keyOf(capture, rows[number]) },
      ...{ bytes: 0, untouched: 0, blocks: 0, error: 0, library: "", libraryBytes: 0, holders: [] as number[], number },
      ...{ sampled: 0, libraries: new Map<number, number>() },
    };
    lines.set(number, line);
    return line;
  };
  for (let holder = 0; holder < counts.length; holder += 1) {
    if (!counts[holder] || !(held.bytes[holder] || held.blocks[holder])) continue;
    const line = lineOf(rowOf[holder]);
    const never = untouched.get(holder);
    if (never) lineOf(never.row).untouched += never.bytes;
    const bytes = held.bytes[holder] - (never?.bytes ?? 0);
    line.bytes += bytes;
    line.blocks += held.blocks[holder];
    line.sampled += capture.holderSampled[holder] ? held.bytes[holder] : 0;
    line.holders.push(holder);
    const name = libraryOf[holder];
    if (libraries[name]) line.libraries.set(name, (line.libraries.get(name) ?? 0) + bytes);
  }
  for (const line of lines.values()) {
    line.error = capture.errorOf(line.sampled);
    for (const [name, bytes] of line.libraries)
      if (bytes > line.libraryBytes) [line.library, line.libraryBytes] = [libraries[name], bytes];
  }
  return Array.from(lines.values()).sort(
    (one, other) => ORDER[one.group] - ORDER[other.group] || other.bytes - one.bytes || other.untouched - one.untouched,
  );
}

/** The same rows with the figures that the other reports have, for the moment that they were asked for. */
export function withReported(capture: Capture, lines: UserLine[]): UserLine[] {
  const id = (group: Group, { file, line, name }: Key) => `${ORDER[group]}:${file}:${line || name}`;
  const known = new Map(lines.map((line) => [id(line.group, line.key), line]));
  return capture.described.summary.lines.rows.map((row) => {
    const key = keyOf(capture, row);
    return {
      group: row.group,
      key,
      bytes: row.bytes,
      untouched: row.untouched_bytes,
      blocks: row.blocks,
      error: row.standard_error_bytes,
      library: row.library,
      libraryBytes: row.library_bytes,
      holders: known.get(id(row.group, key))?.holders ?? [],
      number: known.get(id(row.group, key))?.number ?? -1,
    };
  });
}
