// Tables that sort, filter and copy. The first one is the flame graph's twin for reading, searching and pasting.
import { useMemo, useState } from "preact/hooks";
import type { Capture, Held } from "./capture";
import { signedSize, signedWithin, stateOf } from "./change";
import { rank, rankKinds, rankOwnLines, rankSizes, type Row } from "./ranking";
import { ALL_FRAMES, type Choice, type Frames, type Grouping, placeOf, Shape } from "./shape";
import { count, share, size, sizeWithin } from "./words";

export interface Column<Item> {
  id: string;
  title: string;
  /** What is sorted by and copied. */
  value: (item: Item) => number | string;
  /** What is shown; the value when there is none. */
  cell?: (item: Item) => preact.ComponentChildren;
  wide?: boolean;
}

interface TableProps<Item> {
  caption: string;
  columns: Column<Item>[];
  items: Item[];
  first: string; // what it is sorted by at first; "" for the order that the items come in
  perPage?: number;
}

export function Table<Item>({ caption, columns, items, first, perPage = 100 }: TableProps<Item>) {
  const [sort, setSort] = useState({ id: first, down: true });
  const [most, setMost] = useState(perPage);
  const [said, setSaid] = useState("");
  const sorted = useMemo(() => {
    const column = columns.find((one) => one.id === sort.id);
    if (!column) return items;
    const sign = sort.down ? -1 : 1;
    const compare = (one: number | string, other: number | string) => (one < other ? -sign : one > other ? sign : 0);
    return [...items].sort((one, other) => compare(column.value(one), column.value(other)));
  }, [items, sort.id, sort.down]);
  const order = (column: Column<Item>) => {
    const isText = items.length > 0 && typeof column.value(items[0]) === "string";
    setSort((now) => ({ id: column.id, down: now.id === column.id ? !now.down : !isText }));
  };
  const copy = async () => {
    const lines = [
      columns.map((column) => column.title),
      ...sorted.map((item) => columns.map((column) => column.value(item))),
    ];
    setSaid(
      (await copied(lines.map((line) => line.join("\t")).join("\n")))
        ? `${count(sorted.length)} rows copied`
        : "the browser does not let a page copy",
    );
  };
  return (
    <div class="table-view">
      <div class="scroll-x" role="region" aria-label={caption} tabIndex={0}>
        <table>
          <caption>{caption}</caption>
          <thead>
            <tr>
              {columns.map((column) => (
                <th
                  key={column.id}
                  scope="col"
                  class={column.wide ? "wide" : ""}
                  aria-sort={sort.id !== column.id ? "none" : sort.down ? "descending" : "ascending"}
                >
                  <button onClick={() => order(column)}>
                    {column.title}
                    <span aria-hidden="true">{sort.id !== column.id ? "" : sort.down ? " ▾" : " ▴"}</span>
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {sorted.slice(0, most).map((item, index) => (
              <tr key={index}>
                {columns.map((column) => (
                  <td
                    key={column.id}
                    class={column.wide ? "wide" : ""}
                    data-title={column.wide ? undefined : column.title}
                  >
                    {column.cell ? column.cell(item) : column.value(item)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="table-foot">
        {sorted.length > most && (
          <button class="quiet" onClick={() => setMost(most * 5)}>
            {count(sorted.length - most)} more
          </button>
        )}
        <button class="quiet" onClick={copy}>
          Copy as tab-separated text
        </button>
        <span role="status">{said}</span>
      </p>
    </div>
  );
}

/** Put text on the clipboard: the old way where the new one is not allowed, as in a sandbox. */
async function copied(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.setAttribute("aria-hidden", "true");
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

type RowsBy = Grouping | "kind" | "size" | "own";

const OWN_LINES: { by: RowsBy; title: string } = { by: "own", title: "Your lines" };
const GROUPINGS: { by: RowsBy; title: string }[] = [
  { by: "function", title: "Function" },
  { by: "line", title: "Line" },
  { by: "file", title: "File" },
  { by: "module", title: "Module" },
  { by: "kind", title: "Kind" },
  { by: "size", title: "Size of allocations" },
  { by: "thread", title: "Thread" },
];

interface Props {
  capture: Capture;
  frames: Frames;
  held: Held;
  choice: Choice;
  by: string;
  momentWords: string;
  onSource: (file: number, line: number) => void;
}

export function TableView({ capture, frames, held, choice, by: asked, momentWords, onSource }: Props) {
  const { isBeside } = capture;
  const groupings = isBeside ? [OWN_LINES, ...GROUPINGS] : GROUPINGS;
  const [by, setBy] = useState<RowsBy>(
    GROUPINGS.find((one) => one.by === asked)?.by ?? (isBeside ? "own" : "function"),
  );
  const [filter, setFilter] = useState("");
  const rows = useMemo(() => {
    if (by === "kind") return rankKinds(capture, held, choice.thread);
    if (by === "size") return rankSizes(capture, held, choice);
    if (by === "own") return rankOwnLines(capture, held, choice).filter(isChanged);
    // Two captures are compared without the import system's frames, as `hiwater diff` does.
    const shape = new Shape(capture, { ...ALL_FRAMES, by, frames, hideImports: isBeside });
    return isBeside ? rank(shape, held, choice).filter(isChanged) : rank(shape, held, choice);
  }, [capture, frames, held, choice, by]);
  const whole = rows.reduce((sum, row) => sum + row.ownBytes, 0);
  const title = groupings.find((one) => one.by === by)!.title;
  const wanted = filter.toLowerCase();
  const place = (row: Row) => (by === "file" || by === "module" ? "" : placeOf(capture, row.key));
  const shown = useMemo(
    () =>
      rows.filter((row) =>
        `${row.key.name} ${row.key.file < 0 ? "" : capture.files[row.key.file].name}`.toLowerCase().includes(wanted),
      ),
    [rows, wanted],
  );
  const name: Column<Row> = {
    id: "name",
    title,
    value: (row) => (place(row) ? `${row.key.name} (${place(row)})` : row.key.name),
    cell: (row) => <Name capture={capture} row={row} place={place(row)} onSource={onSource} />,
    wide: true,
  };
  const columns: Column<Row>[] = isBeside
    ? changeColumns(capture, rows, name, by)
    : [
        {
          id: "own",
          title: "Self",
          value: (row) => row.ownBytes,
          cell: (row) => <Bar bytes={row.ownBytes} error={capture.errorOf(row.ownSampled)} whole={whole} />,
        },
        {
          id: "total",
          title: "Total",
          value: (row) => row.totalBytes,
          cell: (row) => sizeWithin(row.totalBytes, capture.errorOf(row.totalSampled)),
        },
        {
          id: "share",
          title: "Share",
          value: (row) => row.totalBytes / Math.max(1, whole),
          cell: (row) => share(row.totalBytes, whole),
        },
        name,
        { id: "blocks", title: "Blocks", value: (row) => row.ownBlocks, cell: (row) => count(row.ownBlocks) },
        { id: "end", title: "Kept at end", value: (row) => row.endBytes, cell: (row) => size(row.endBytes) },
        { id: "run", title: "Over the run", value: (row) => row.runBytes, cell: (row) => size(row.runBytes) },
        { id: "times", title: "Allocations", value: (row) => row.runBlocks, cell: (row) => count(row.runBlocks) },
        ...(capture.described.summary.process.mode === "exact"
          ? [
              {
                id: "temporary",
                title: "Temporary",
                value: (row: Row) => row.temporaries,
                cell: (row: Row) => count(row.temporaries),
              },
            ]
          : []),
      ];
  return (
    <section>
      <div class="controls">
        <span class="segmented" role="group" aria-label="rows by">
          {groupings.map((one) => (
            <button key={one.by} aria-pressed={one.by === by} onClick={() => setBy(one.by)}>
              {one.title}
            </button>
          ))}
        </span>
        <input
          type="search"
          placeholder="Filter rows"
          aria-label="filter rows"
          value={filter}
          onInput={(event) => setFilter(event.currentTarget.value)}
        />
        <span class="muted">
          {count(shown.length)} rows{isBeside && " that changed"} ·{" "}
          {isBeside ? signedSize(rows.reduce((sum, row) => sum + row.ownBytes - row.ownBefore, 0)) : size(whole)}{" "}
          {momentWords}
        </span>
      </div>
      <Table
        key={by}
        caption={
          by === "own"
            ? `Lines of your own code with everything they called, ${momentWords}`
            : `By ${title.toLowerCase()}, ${momentWords}`
        }
        columns={columns}
        items={shown}
        first={isBeside ? "change" : "own"}
      />
    </section>
  );
}

function isChanged(row: Row): boolean {
  return row.ownBytes !== row.ownBefore || row.totalBytes !== row.totalBefore;
}

/** What grew, from what to what: what rows hold by themselves, and with what they called where that is not the same. */
function changeColumns(capture: Capture, rows: Row[], name: Column<Row>, by: RowsBy): Column<Row>[] {
  const most = rows.reduce((most, row) => Math.max(most, Math.abs(row.ownBytes - row.ownBefore)), 1);
  const error = (row: Row) => capture.changeErrorOf(row.ownSampled, row.ownBeforeSampled);
  const change = (row: Row) => row.ownBytes - row.ownBefore;
  const withCallees = (row: Row) => row.totalBytes - row.totalBefore;
  const state = (row: Row) => stateOf(row.totalBefore, row.totalBytes, error(row), change(row));
  return [
    {
      id: "change",
      title: "Change",
      value: change,
      cell: (row) => (
        <span class="cell-bar">
          <i class={`state ${state(row)}`} style={{ width: `${(100 * Math.abs(change(row))) / most}%` }} />
          <b>{signedWithin(change(row), error(row))}</b>
        </span>
      ),
    },
    { id: "before", title: "Before", value: (row) => row.ownBefore, cell: (row) => size(row.ownBefore) },
    { id: "after", title: "After", value: (row) => row.ownBytes, cell: (row) => size(row.ownBytes) },
    { id: "state", title: "State", value: state, cell: (row) => <b class={`state ${state(row)}`}>{state(row)}</b> },
    ...(by === "own" || by === "kind" || by === "size" || by === "thread"
      ? []
      : [
          {
            id: "total",
            title: "Total",
            value: withCallees,
            cell: (row: Row) =>
              signedWithin(withCallees(row), capture.changeErrorOf(row.totalSampled, row.totalBeforeSampled)),
          },
        ]),
    name,
    { id: "blocks", title: "Blocks after", value: (row) => row.ownBlocks, cell: (row) => count(row.ownBlocks) },
  ];
}

export function Bar({ bytes, error, whole }: { bytes: number; error: number; whole: number }) {
  return (
    <span class="cell-bar">
      <i style={{ width: `${Math.min(100, (100 * bytes) / Math.max(1, whole))}%` }} />
      <b>{sizeWithin(bytes, error)}</b>
    </span>
  );
}

function Name({
  capture,
  row,
  place,
  onSource,
}: {
  capture: Capture;
  row: Row;
  place: string;
  onSource: (file: number, line: number) => void;
}) {
  const { file, line, gone } = row.key;
  const hasSource = file >= 0 && line > 0 && !gone && capture.described.source.files.some((one) => one.file === file);
  return (
    <span class="name" title={file < 0 ? row.key.name : `${row.key.name} — ${capture.files[file].name}`}>
      <code>{row.key.name}</code>{" "}
      {hasSource ? (
        <button class="link" onClick={() => onSource(file, line)}>
          {place}
        </button>
      ) : (
        <small>{place}</small>
      )}
    </span>
  );
}
