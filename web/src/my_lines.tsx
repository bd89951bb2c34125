// The lines of the user's own code, what imports hold, and what was never touched: the same rows as in every other report.
import { useMemo, useState } from "preact/hooks";
import type { Capture, Held, Moment } from "./capture";
import { sourceLine } from "./panel";
import { type Choice, chosen, nameOf, placeOf } from "./shape";
import { Spark } from "./spark";
import { Bar, type Column, Table } from "./table";
import { BEFORE, type Group, keyOf, OTHER_CODE, rankUserLines, type UserLine, withReported } from "./user_lines";
import { count, share, shortened, size, printable } from "./words";

interface Props {
  capture: Capture;
  held: Held;
  moment: Moment;
  choice: Choice;
  momentWords: string;
  onSource: (file: number, line: number) => void;
}

const MOST_CURVES = 100;
const MOST_FRAMES = 8;

/** The rows at a moment. At the one that the report was made for, they are the report's own. */
function useRows({ capture, held, moment, choice }: Props): UserLine[] {
  return useMemo(() => {
    const lines = rankUserLines(capture, held, chosen(capture, choice));
    const { asked } = capture;
    const isAsked = moment.at === asked.at && moment.slice === asked.slice && choice.thread < 0;
    const isKind = choice.kind < 0 ? capture.described.asked.kind === "all" : false;
    return isAsked && isKind ? withReported(capture, lines) : lines;
  }, [capture, held, moment, choice]);
}

export function MyLinesView(props: Props) {
  const { capture, momentWords, onSource } = props;
  const rows = useRows(props);
  const series = useMemo(() => seriesOf(capture, rows), [capture, rows]);
  const [open, setOpen] = useState<UserLine | null>(null);
  const sum = (of: (row: UserLine) => number, group?: Group) =>
    rows.reduce((bytes, row) => bytes + (!group || row.group === group ? of(row) : 0), 0);
  const untouched = sum((row) => row.untouched);
  const whole = sum((row) => row.bytes) + untouched;
  const parts = [
    ["your lines", sum((row) => row.bytes, "line")] as const,
    ...[
      ["imports", sum((row) => row.bytes, "import")] as const,
      [OTHER_CODE, sum((row) => row.bytes, "other")] as const,
      ["never touched", untouched] as const,
    ].filter(([, bytes]) => bytes > 0),
  ];
  const columns: Column<UserLine>[] = [
    {
      id: "bytes",
      title: "Size",
      value: (row) => row.bytes,
      cell: (row) => <Bar bytes={row.bytes} error={row.error} whole={whole} />,
    },
    {
      id: "share",
      title: "Share",
      value: (row) => row.bytes / Math.max(1, whole),
      cell: (row) => share(row.bytes, whole),
    },
    {
      id: "over",
      title: "Over time",
      value: (row) => row.bytes,
      cell: (row) => series.has(row) && <Spark capture={capture} values={series.get(row)!} height={22} />,
    },
    {
      id: "name",
      title: "Line of your code, with everything it called",
      value: (row) => nameOf(capture, row.key),
      cell: (row) => (
        <Line
          capture={capture}
          held={props.held}
          row={row}
          isOpen={row === open}
          onOpen={() => setOpen(row === open ? null : row)}
          onSource={onSource}
        />
      ),
      wide: true,
    },
    {
      id: "untouched",
      title: "Never touched",
      value: (row) => row.untouched,
      cell: (row) => (row.untouched ? size(row.untouched) : ""),
    },
    { id: "blocks", title: "Blocks", value: (row) => row.blocks, cell: (row) => count(row.blocks) },
  ];
  const { lines, process } = capture.described.summary;
  const leftOut = lines.rows_left_out;
  return (
    <section class="my-lines">
      <p class="controls">
        <span>
          <b>{size(whole)}</b> {momentWords}: {parts.map(([name, bytes]) => `${name} ${size(bytes)}`).join(" · ")}
          {leftOut > 0 && ` · ${count(leftOut)} smaller rows are not listed`}
        </span>
      </p>
      <Advice capture={capture} onSource={onSource} />
      <Table caption={`Lines of your own code, ${momentWords}`} columns={columns} items={rows} first="" />
      <Untouched capture={capture} rows={rows} />
      {process.own_code && <p class="muted">own code: {printable(process.own_code)}</p>}
    </section>
  );
}

/** What to change in which line, what it saves, and the figures that show it. */
function Advice({ capture, onSource }: Pick<Props, "capture" | "onSource">) {
  const findings = capture.described.summary.explain;
  if (!findings.length) return null;
  return (
    <section class="advice-list" aria-label="what to change">
      <h3>What to change</h3>
      <ul>
        {findings.map((finding) => {
          const key = keyOf(capture, finding);
          const place = placeOf(capture, key);
          return (
            <li key={`${finding.rule} ${place}`}>
              {sourceLine(capture, key.file, key.line) !== null ? (
                <button class="link" onClick={() => onSource(key.file, key.line)}>
                  {place}
                </button>
              ) : (
                place
              )}{" "}
              <b>{finding.rule}</b>: {finding.saving.words}. {finding.change} {finding.condition}
              <details>
                <summary>Evidence</summary>
                <ul>
                  {finding.evidence.map((figure) => (
                    <li key={figure.name}>
                      {figure.name}:{" "}
                      {figure.unit === "bytes"
                        ? size(figure.value)
                        : `${figure.value.toLocaleString("en")} ${figure.unit}`}{" "}
                      <span class="muted">({figure.measures})</span>
                    </li>
                  ))}
                </ul>
              </details>
            </li>
          );
        })}
      </ul>
    </section>
  );
}

function seriesOf(capture: Capture, rows: UserLine[]): Map<UserLine, Float64Array> {
  const group = new Int32Array(capture.holderNode.length).fill(-1);
  const drawn = rows.slice(0, MOST_CURVES);
  drawn.forEach((row, index) => row.holders.forEach((holder) => (group[holder] = index)));
  const series = capture.overTime(group, drawn.length);
  return new Map(drawn.map((row, index) => [row, series[index]]));
}

/** What was allocated and never written, as a row of its own below the others. */
function Untouched({ capture, rows }: { capture: Capture; rows: UserLine[] }) {
  const never = rows.filter((row) => row.untouched > 0).sort((one, other) => other.untouched - one.untouched);
  if (!never.length) return null;
  const places = never.slice(0, 3).map((row) => `${placeOf(capture, row.key) || row.key.name} ${size(row.untouched)}`);
  return (
    <p class="untouched">
      <b>{size(never.reduce((bytes, row) => bytes + row.untouched, 0))}</b> allocated and never touched: it is not
      resident. <span class="muted">{shortened(places.join(" · "), 200)}</span>
    </p>
  );
}

interface LineProps {
  capture: Capture;
  held: Held;
  row: UserLine;
  isOpen: boolean;
  onOpen: () => void;
  onSource: (file: number, line: number) => void;
}

function Line({ capture, held, row, isOpen, onOpen, onSource }: LineProps) {
  const { key, group } = row;
  const text = key.file < 0 ? null : sourceLine(capture, key.file, key.line);
  const place = placeOf(capture, key);
  return (
    <span class="name">
      {BEFORE[group] && <small>{BEFORE[group]} </small>}
      {text !== null ? (
        <button class="link" onClick={() => onSource(key.file, key.line)}>
          {place}
        </button>
      ) : (
        <span>{place}</span>
      )}{" "}
      <small>{key.name}</small>
      {row.library && (
        <>
          {" "}
          <button class="expand" aria-expanded={isOpen} onClick={onOpen}>
            in {row.library}: {size(row.libraryBytes)}
          </button>
        </>
      )}
      {text && <code class="quote">{shortened(text.trim(), 140)}</code>}
      {isOpen && <Inside capture={capture} held={held} row={row} />}
    </span>
  );
}

/** Where in the libraries a line's memory was allocated: the innermost frames, most bytes first. */
function Inside({ capture, held, row }: Pick<LineProps, "capture" | "held" | "row">) {
  const { frame, frameFunction, frameFile, frameLine, functions, files } = capture;
  const bytes = new Map<number, number>();
  for (const holder of row.holders) {
    const of = frame[capture.holderNode[holder]];
    bytes.set(of, (bytes.get(of) ?? 0) + held.bytes[holder]);
  }
  const most = Array.from(bytes).sort((one, other) => other[1] - one[1]);
  return (
    <ul class="inside">
      {most.slice(0, MOST_FRAMES).map(([of, count]) => {
        const key = {
          name: functions[frameFunction[of]],
          file: files[frameFile[of]].name ? frameFile[of] : -1,
          line: frameLine[of],
        };
        return (
          <li key={of}>
            <b>{size(count)}</b> <code>{key.name}</code> <small>{placeOf(capture, key)}</small>
          </li>
        );
      })}
      {most.length > MOST_FRAMES && <li class="muted">{count(most.length - MOST_FRAMES)} more in the flame graph</li>}
    </ul>
  );
}
