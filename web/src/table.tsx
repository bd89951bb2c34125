// Tables that sort, filter and copy. The first one is the flame graph's twin for reading, searching and pasting.
import { useMemo, useState } from "preact/hooks";
import type { Capture, Held } from "./capture";
import { rank, rankKinds, type Row } from "./ranking";
import { type Choice, type Grouping, Shape } from "./shape";
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
  first: string; // what it is sorted by at first
  perPage?: number;
}

export function Table<Item>({ caption, columns, items, first, perPage = 100 }: TableProps<Item>) {
  const [sort, setSort] = useState({ id: first, down: true });
  const [most, setMost] = useState(perPage);
  const [said, setSaid] = useState("");
  const sorted = useMemo(() => {
    const column = columns.find((one) => one.id === sort.id) ?? columns[0];
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
                  <td key={column.id} class={column.wide ? "wide" : ""}>
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

const GROUPINGS: { by: Grouping | "kind"; title: string }[] = [
  { by: "function", title: "Function" },
  { by: "line", title: "Line" },
  { by: "file", title: "File" },
  { by: "module", title: "Module" },
  { by: "kind", title: "Kind" },
  { by: "thread", title: "Thread" },
];

interface Props {
  capture: Capture;
  held: Held;
  choice: Choice;
  by: string;
  momentWords: string;
  onSource: (file: number, line: number) => void;
}

export function TableView({ capture, held, choice, by: asked, momentWords, onSource }: Props) {
  const [by, setBy] = useState<Grouping | "kind">(GROUPINGS.find((one) => one.by === asked)?.by ?? "function");
  const [filter, setFilter] = useState("");
  const rows = useMemo(() => {
    if (by === "kind") return rankKinds(capture, held, choice.thread);
    return rank(new Shape(capture, { by, hideImports: false, hideLibraries: false, hide: "" }), held, choice);
  }, [capture, held, choice, by]);
  const whole = rows.reduce((sum, row) => sum + row.ownBytes, 0);
  const title = GROUPINGS.find((one) => one.by === by)!.title;
  const wanted = filter.toLowerCase();
  const place = (row: Row) =>
    row.key.file < 0 || by === "file" || by === "module"
      ? ""
      : `${capture.files[row.key.file].short}${row.key.line ? `:${row.key.line}` : ""}`;
  const shown = useMemo(
    () =>
      rows.filter((row) =>
        `${row.key.name} ${row.key.file < 0 ? "" : capture.files[row.key.file].name}`.toLowerCase().includes(wanted),
      ),
    [rows, wanted],
  );
  const columns: Column<Row>[] = [
    {
      id: "own",
      title: "Own",
      value: (row) => row.ownBytes,
      cell: (row) => <Bar bytes={row.ownBytes} error={capture.errorOf(row.ownDrawn)} whole={whole} />,
    },
    {
      id: "total",
      title: "With callees",
      value: (row) => row.totalBytes,
      cell: (row) => sizeWithin(row.totalBytes, capture.errorOf(row.totalDrawn)),
    },
    {
      id: "share",
      title: "Share",
      value: (row) => row.totalBytes / Math.max(1, whole),
      cell: (row) => share(row.totalBytes, whole),
    },
    {
      id: "name",
      title,
      value: (row) => (place(row) ? `${row.key.name} (${place(row)})` : row.key.name),
      cell: (row) => <Name capture={capture} row={row} place={place(row)} onSource={onSource} />,
      wide: true,
    },
    { id: "blocks", title: "Blocks", value: (row) => row.ownBlocks, cell: (row) => count(row.ownBlocks) },
    { id: "end", title: "Kept at end", value: (row) => row.endBytes, cell: (row) => size(row.endBytes) },
    { id: "run", title: "Over the run", value: (row) => row.runBytes, cell: (row) => size(row.runBytes) },
    { id: "times", title: "Allocations", value: (row) => row.runBlocks, cell: (row) => count(row.runBlocks) },
  ];
  return (
    <section>
      <div class="controls">
        <span class="segmented" role="group" aria-label="rows by">
          {GROUPINGS.map((one) => (
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
          {count(shown.length)} rows · {size(whole)} {momentWords}
        </span>
      </div>
      <Table
        key={by}
        caption={`By ${title.toLowerCase()}, ${momentWords}`}
        columns={columns}
        items={shown}
        first="own"
      />
    </section>
  );
}

function Bar({ bytes, error, whole }: { bytes: number; error: number; whole: number }) {
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
  const { file, line } = row.key;
  const hasSource = file >= 0 && line > 0 && capture.described.source.files.some((one) => one.file === file);
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
