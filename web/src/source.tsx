// Files with what each line held, hottest first.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Capture, Held } from "./capture";
import { highlighted } from "./highlight";
import { type LineUse, linesByFile, lineSeries, ownLines } from "./ranking";
import { type Choice, chosen as holdersOf } from "./shape";
import { Spark } from "./spark";
import { count, size } from "./words";

interface Props {
  capture: Capture;
  held: Held;
  choice: Choice;
  momentWords: string;
  /** The line that was asked for by a click elsewhere. */
  asked: { file: number; line: number } | null;
}

export function SourceView({ capture, held, choice, momentWords, asked }: Props) {
  const uses = useMemo(() => linesByFile(capture, held, choice), [capture, held, choice]);
  const { files, which, left_out: leftOut } = capture.described.source;
  const ordered = useMemo(
    () =>
      [...files].sort(
        (one, other) =>
          (uses.get(other.file)?.bytes ?? 0) - (uses.get(one.file)?.bytes ?? 0) ||
          (uses.get(other.file)?.runBytes ?? 0) - (uses.get(one.file)?.runBytes ?? 0),
      ),
    [files, uses],
  );
  const hottest = useMemo(() => ownLines(capture, held, holdersOf(capture, choice)), [capture, held, choice]);
  const [chosen, setChosen] = useState(asked?.file ?? ordered[0]?.file ?? -1);
  useEffect(() => {
    if (asked) setChosen(asked.file);
  }, [asked]);
  if (!ordered.length) {
    const why =
      which === "none" ? "it was made with --source none" : "the files were not found, or hold nothing of your own";
    return <p class="empty">This page carries no source text: {why}. The table has every line.</p>;
  }
  const file = ordered.find((one) => one.file === chosen) ?? ordered[0];
  return (
    <section>
      <div class="controls">
        <label>
          File{" "}
          <select value={file.file} onChange={(event) => setChosen(Number(event.currentTarget.value))}>
            {ordered.map((one) => (
              <option key={one.file} value={one.file}>
                {capture.files[one.file].short} — {size(uses.get(one.file)?.bytes ?? 0)}
              </option>
            ))}
          </select>
        </label>
        <span class="muted">
          {capture.files[file.file].name} · with what each line called, {momentWords}
          {file.changed && " · the file changed since the recording"}
          {leftOut > 0 && ` · ${count(leftOut)} files did not fit`}
        </span>
      </div>
      <Listing
        key={file.file}
        capture={capture}
        choice={choice}
        file={file}
        lines={uses.get(file.file)?.lines ?? new Map()}
        whole={uses.get(file.file)?.bytes ?? 0}
        asked={asked?.file === file.file ? asked.line : 0}
        first={hottest.find((line) => line.key.file === file.file)?.key.line ?? 0}
      />
    </section>
  );
}

type SourceFile = Capture["described"]["source"]["files"][number];

interface ListingProps {
  capture: Capture;
  choice: Choice;
  file: SourceFile;
  lines: Map<number, LineUse>;
  whole: number;
  /** The line to show first: one that was asked for, else the hottest of one's own. */
  asked: number;
  first: number;
}

function Listing({ capture, choice, file, lines, whole, asked, first }: ListingProps) {
  const element = useRef<HTMLDivElement>(null);
  const series = useMemo(() => lineSeries(capture, holdersOf(capture, choice), file.file), [capture, choice, file]);
  useEffect(() => {
    const row = element.current?.querySelector<HTMLElement>(`[data-line="${asked || first}"]`);
    if (row && element.current) element.current.scrollTop = row.offsetTop - element.current.clientHeight / 3;
  }, [file, asked]);
  return (
    <div class="listing" ref={element} role="region" aria-label="annotated source" tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th scope="col">Total</th>
            <th scope="col">Self</th>
            <th scope="col">Over the run</th>
            <th scope="col">Over time</th>
            <th scope="col">Line</th>
            <th scope="col">Source</th>
          </tr>
        </thead>
        <tbody>
          {file.pieces.map((piece, index) => [
            index > 0 && (
              <tr key={`gap${piece.line}`} class="gap">
                <td colSpan={6}>…</td>
              </tr>
            ),
            ...highlighted(piece.text.split("\n")).map((pieces, offset) => {
              const number = piece.line + offset;
              const use = lines.get(number);
              const heat = use && use.bytes > whole / 200 ? Math.min(5, Math.ceil((5 * use.bytes) / whole)) : 0;
              return (
                <tr key={number} data-line={number} class={`heat${heat}${number === (asked || first) ? " asked" : ""}`}>
                  <td>{use?.bytes ? size(use.bytes) : ""}</td>
                  <td>{use?.ownBytes ? size(use.ownBytes) : ""}</td>
                  <td>{use?.runBytes ? size(use.runBytes) : ""}</td>
                  <td>{series.has(number) && <Spark capture={capture} values={series.get(number)!} height={16} />}</td>
                  <td>{number}</td>
                  <td>
                    <code>
                      {pieces.map(([kind, text], index) =>
                        kind ? (
                          <i key={index} class={`py-${kind}`}>
                            {text}
                          </i>
                        ) : (
                          text
                        ),
                      )}
                      {!pieces.length && " "}
                    </code>
                  </td>
                </tr>
              );
            }),
          ])}
        </tbody>
      </table>
    </div>
  );
}
