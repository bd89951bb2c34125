// What is known of the frame that is looked at.
import { useMemo } from "preact/hooks";
import { type Capture, COUNTED_KINDS, type Held, KIND_WORDS } from "./capture";
import { signedWithin, stateOf } from "./change";
import { KIND_HUES } from "./colour";
import { nameOf } from "./flame";
import type { Line } from "./holders";
import { Spark } from "./spark";
import type { Tree } from "./tree";
import { count, share, size, sizeWithin } from "./words";

interface Props {
  capture: Capture;
  tree: Tree;
  node: number;
  held: Held;
  counts: Uint8Array;
  momentWords: string;
  onSource: (file: number, line: number) => void;
  /** Only where the capture has a search for holders. */
  onHolders?: (stack: Line[]) => void;
  onClose: () => void;
}

interface Sums {
  runBytes: number;
  runBlocks: number;
  endBytes: number;
  endBlocks: number;
  temporaries: number;
  series: Float64Array;
}

/** What the holders of a node come to over the whole run. */
function sumsOf(capture: Capture, tree: Tree, node: number, counts: Uint8Array): Sums {
  const part = tree.part(node);
  const group = new Int32Array(counts.length).fill(-1);
  const sums = { runBytes: 0, runBlocks: 0, endBytes: 0, endBlocks: 0, temporaries: 0 };
  for (let holder = 0; holder < counts.length; holder += 1) {
    if (!counts[holder] || !part[tree.shape.place[capture.holderNode[holder]]]) continue;
    group[holder] = 0;
    sums.runBytes += capture.totalBytes[holder];
    sums.runBlocks += capture.totalBlocks[holder];
    sums.endBytes += capture.end.bytes[holder];
    sums.endBlocks += capture.end.blocks[holder];
    sums.temporaries += capture.temporaries[holder];
  }
  return { ...sums, series: capture.overTime(group, 1)[0] };
}

export function Panel({ capture, tree, node, held, counts, momentWords, onSource, onHolders, onClose }: Props) {
  const sums = useMemo(() => sumsOf(capture, tree, node, counts), [capture, tree, node, counts]);
  const key = tree.key(node) < 0 ? null : tree.shape.keys.list[tree.key(node)];
  const file = key && key.file >= 0 ? capture.files[key.file] : null;
  const source = key && file && !key.gone ? sourceLine(capture, key.file, key.line) : null;
  const isSampled = capture.described.summary.process.mode === "sampled"; // which does not count temporary allocations
  const [bytes, own, peak] = [tree.bytes(node), tree.own(node), capture.described.summary.peak.allocated_bytes];
  return (
    <aside class="panel" aria-label="selected frame">
      <button class="quiet close" aria-label="close the details" onClick={onClose}>
        ×
      </button>
      <h2 title={nameOf(tree, node)}>{key ? nameOf(tree, node) : "Everything shown"}</h2>
      {file && (
        <p class="where">
          {source !== null ? (
            <button class="link" onClick={() => onSource(key!.file, key!.line)}>
              {file.name}
              {key!.line ? `:${key!.line}` : ""}
            </button>
          ) : (
            <span>
              {file.name}
              {key!.line ? `:${key!.line}` : ""}
              {key!.gone && " before"}
            </span>
          )}
        </p>
      )}
      {source && <pre class="source-line">{source.trim()}</pre>}
      <p class="big">
        {sizeWithin(bytes, capture.errorOf(tree.sampled(node)))} <span>{momentWords}</span>
      </p>
      {capture.isBeside && <Change capture={capture} tree={tree} node={node} />}
      <KindBar tree={tree} node={node} />
      <dl>
        <dt>{tree.ownWords}</dt>
        <dd>{size(own)}</dd>
        <dt>blocks</dt>
        <dd>{count(tree.blocks(node))}</dd>
        <dt>of the peak</dt>
        <dd>{share(bytes, peak)}</dd>
        <dt>over the run</dt>
        <dd>{size(sums.runBytes)}</dd>
        <dt>allocations</dt>
        <dd>{count(sums.runBlocks)}</dd>
        {!isSampled && <dt title="before the thread's next allocation">temporary</dt>}
        {!isSampled && <dd>{count(sums.temporaries)}</dd>}
        <dt>kept at the end</dt>
        <dd>{size(sums.endBytes)}</dd>
        {held.errorBytes > 0 && <dt>each stack within</dt>}
        {held.errorBytes > 0 && <dd>{size(held.errorBytes)}</dd>}
      </dl>
      {onHolders && key && (
        <p>
          <button class="quiet" onClick={() => onHolders(stackOf(tree, node))}>
            What holds it
          </button>
        </p>
      )}
      <p class="caption">over time</p>
      <Spark capture={capture} values={sums.series} atNs={held.atNs} />
    </aside>
  );
}

/** The lines of a frame and its callers, the innermost first. */
function stackOf(tree: Tree, node: number): Line[] {
  const lines = [];
  for (let at = node; at !== 0; at = tree.parent(at)) {
    const key = tree.key(at);
    if (key >= 0) lines.push(tree.shape.keys.list[key]);
  }
  return lines.filter((key) => key.file >= 0 && key.line > 0);
}

function Change({ capture, tree, node }: { capture: Capture; tree: Tree; node: number }) {
  const [before, after] = [tree.before(node), tree.bytes(node)];
  const error = capture.changeErrorOf(tree.sampled(node), tree.beforeSampled(node));
  const state = stateOf(before, after, error);
  return (
    <p>
      <b class={`state ${state}`}>{signedWithin(after - before, error)}</b> {state}: {size(before)} before
    </p>
  );
}

function KindBar({ tree, node }: { tree: Tree; node: number }) {
  const whole = Math.max(1, tree.bytes(node));
  const parts = [];
  for (let kind = 0; kind < COUNTED_KINDS; kind += 1)
    if (tree.kindBytes(node, kind) > 0) parts.push({ kind, bytes: tree.kindBytes(node, kind) });
  return (
    <div>
      <div class="stack-bar" aria-hidden="true">
        {parts.map(({ kind, bytes }) => (
          <i key={kind} class={`kind${kind}`} style={{ width: `${(100 * bytes) / whole}%` }} />
        ))}
      </div>
      <ul class="kinds">
        {parts.map(({ kind, bytes }) => (
          <li key={kind}>
            <i class={`dot kind${kind}`} data-hue={KIND_HUES[kind]} />
            {KIND_WORDS[kind]} {share(bytes, whole)}
          </li>
        ))}
      </ul>
    </div>
  );
}

const knownLines = new WeakMap<Capture, Map<number, Map<number, string>>>();

/** The text of a line, "" for one that is blank, null where the page has none. */
export function sourceLine(capture: Capture, file: number, line: number): string | null {
  let files = knownLines.get(capture);
  if (!files) {
    files = new Map(capture.described.source.files.map((one) => [one.file, linesOf(one.pieces)]));
    knownLines.set(capture, files);
  }
  return files.get(file)?.get(line) ?? null;
}

function linesOf(pieces: { line: number; text: string }[]): Map<number, string> {
  return new Map(pieces.flatMap((piece) => piece.text.split("\n").map((text, at) => [piece.line + at, text] as const)));
}
