// The flame graph with what belongs to it: how to look, what to hide or collapse, search, and the details of a frame.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Capture, Held } from "./capture";
import { signedSize } from "./change";
import { type Colouring, Painter } from "./colour";
import { Flame, isCollapsed, nameOf } from "./flame";
import type { Line } from "./holders";
import { Panel } from "./panel";
import { search } from "./search";
import { ALL_FRAMES, figuresOf, type Frames, type Grouping, type Libraries, type Look, Shape } from "./shape";
import { Inverted, MOST_CALLERS, type Tree, Upright } from "./tree";
import { count, share, size } from "./words";

interface Props {
  capture: Capture;
  frames: Frames;
  held: Held;
  counts: Uint8Array;
  momentWords: string;
  isDark: boolean;
  colouring: Colouring;
  onColouring: (colouring: Colouring) => void;
  onSource: (file: number, line: number) => void;
  onHolders?: (stack: Line[]) => void;
}

/** Where the reader stands in the graph, and in which one: nodes of another one are other frames. */
interface Standing {
  zoom: number;
  selected: number;
  look: Look;
  tree: Tree | null;
}

const TOP = { zoom: 0, selected: 0 };

const FINENESSES: [Grouping, string][] = [
  ["line", "lines"],
  ["function", "functions"],
  ["file", "files"],
  ["module", "modules"],
  ["thread", "threads"],
];

export function FlameView({
  capture,
  frames,
  held,
  counts,
  momentWords,
  isDark,
  colouring,
  onColouring,
  onSource,
  onHolders,
}: Props) {
  const { asked } = capture.described;
  const [chosen, setLook] = useState<Look>({
    ...ALL_FRAMES,
    by: asked.by === "stack" ? "line" : (asked.by as Grouping),
    frames: "python",
    hideImports: true,
    libraries: "collapsed",
  });
  // Native code is almost all of libraries: collapsed, nothing of it would be seen.
  const look = useMemo<Look>(
    () =>
      chosen.frames === frames
        ? chosen
        : { ...chosen, frames, ...(frames !== "python" && chosen.libraries === "collapsed" && { libraries: "shown" }) },
    [chosen, frames],
  );
  const [inverted, setInverted] = useState(asked.inverted);
  const [rootBelow, setRootBelow] = useState(false);
  const [hasSource, setHasSource] = useState(false);
  const [isPanelOpen, setPanelOpen] = useState(false);
  const [wanted, setWanted] = useState("");
  const [at, setAt] = useState<Standing>({ zoom: 0, selected: 0, look, tree: null });
  const [hovered, setHovered] = useState<{ node: number; tree: Tree } | null>(null);
  const box = useRef<HTMLInputElement>(null);

  const isSearched = wanted.trim() !== "" && look.libraries === "collapsed";
  // A search is for every frame, so nothing is collapsed while there is one.
  const shown = useMemo<Look>(() => (isSearched ? { ...look, libraries: "shown" } : look), [look, isSearched]);
  const shape = useMemo(() => new Shape(capture, shown), [capture, shown]);
  const tree: Tree = useMemo(() => {
    const figures = figuresOf(shape, held, counts);
    return inverted ? new Inverted(shape, figures) : new Upright(shape, figures);
  }, [shape, held, counts, inverted]);
  // A node is the same as long as the options are; inverted, nodes are numbered as they are unfolded.
  const place = { look: shown, tree: inverted ? tree : null };
  const isHere = (one: Standing) => one.look === place.look && one.tree === place.tree;
  const { zoom, selected } = isHere(at) && tree.width(at.zoom) > 0 ? at : TOP;
  const go = (to: { zoom?: number; selected?: number }) =>
    setAt((now) => ({ ...(isHere(now) ? now : TOP), ...to, ...place }));
  const open = (node: number) => {
    const opened = new Set([...look.opened, ...Array.from(tree.places(node), (place) => shape.first[place])]);
    const above = tree.parent(node); // it comes before what is opened, so it keeps its number
    const next = { ...look, opened };
    setLook(next);
    if (!inverted) setAt({ zoom: above, selected: above, look: next, tree: null });
  };
  const found = useMemo(() => search(shape, held, counts, wanted), [shape, held, counts, wanted]);
  const painter = useMemo(() => new Painter(tree, colouring, isDark), [tree, colouring, isDark]);

  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      const isTyping = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
      if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "/") box.current?.focus();
      else if (event.key === "i") setInverted((value) => !value);
      else if (event.key === "f") setRootBelow((value) => !value);
      else if (event.key === "d") setPanelOpen((value) => !value);
      else if (event.key === "Escape") setAt({ ...TOP, look, tree: null });
      else return;
      event.preventDefault();
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, []);

  const whole = tree.bytes(0);
  const looked = hovered?.tree === tree ? hovered.node : selected;
  const label = `${inverted ? "from the allocating frame to its callers" : "from callers to callees"}: ${size(whole)} ${momentWords}`;
  return (
    <section class="flame-view">
      <div class="controls">
        <Toggle
          on={inverted}
          words="Invert"
          title="invert: from the allocating frame to its callers (i)"
          onToggle={() => setInverted(!inverted)}
        />
        <Toggle
          on={rootBelow}
          words="Flip"
          title="flip: root at the bottom (f)"
          onToggle={() => setRootBelow(!rootBelow)}
        />
        <Toggle
          on={look.hideImports}
          words="Hide import system"
          title="hide the import system: its memory counts for the importing line"
          onToggle={() => setLook({ ...look, hideImports: !look.hideImports })}
        />
        <label>
          Libraries{" "}
          <select
            value={look.libraries}
            onChange={(event) =>
              setLook({ ...look, libraries: event.currentTarget.value as Libraries, opened: ALL_FRAMES.opened })
            }
          >
            {frames === "python" && <option value="collapsed">collapsed</option>}
            <option value="shown">shown</option>
            <option value="hidden">hidden</option>
          </select>
        </label>
        <label>
          Frames as{" "}
          <select value={look.by} onChange={(event) => setLook({ ...look, by: event.currentTarget.value as Grouping })}>
            {FINENESSES.map(([by, words]) => (
              <option key={by} value={by}>
                {words}
              </option>
            ))}
          </select>
        </label>
        <label>
          Colour by{" "}
          <select value={colouring} onChange={(event) => onColouring(event.currentTarget.value as Colouring)}>
            <option value="kind">kind</option>
            <option value="module">module</option>
            {capture.isBeside && <option value="delta">growth</option>}
          </select>
        </label>
        <Toggle
          on={hasSource}
          words="Source text"
          title="label frames with the text of their line, where the page has it"
          onToggle={() => setHasSource(!hasSource)}
        />
        <input
          type="search"
          class="hide"
          placeholder="Hide…"
          aria-label="hide frames that contain"
          value={look.hide}
          onChange={(event) => setLook({ ...look, hide: event.currentTarget.value })}
        />
        <input
          type="search"
          id="search"
          ref={box}
          placeholder="Search  /"
          aria-label="search frames; between slashes, a regular expression"
          value={wanted}
          onInput={(event) => setWanted(event.currentTarget.value)}
          onKeyDown={(event) => event.key === "Escape" && (setWanted(""), event.currentTarget.blur())}
        />
        <span role="status" id="found" class="muted">
          {found &&
            `${size(found.bytes)}, ${share(found.bytes, whole)}, in ${count(found.frames)} ${found.frames === 1 ? "match" : "matches"}`}
          {wanted.trim() && !found && "not a regular expression"}
        </span>
        {zoom !== 0 && (
          <button class="quiet" onClick={() => go({ zoom: 0 })}>
            Show all (Esc)
          </button>
        )}
        <Toggle
          on={isPanelOpen}
          words="Details"
          title="the figures of the frame under the pointer or of the selected one (d)"
          onToggle={() => setPanelOpen(!isPanelOpen)}
        />
      </div>
      <div class="flame-and-panel">
        <Flame
          tree={tree}
          zoom={zoom}
          selected={selected}
          found={found}
          painter={painter}
          rootBelow={rootBelow}
          hasSource={hasSource}
          label={label}
          onHover={(node) => setHovered(node === null ? null : { node, tree })}
          onSelect={(node) => go({ selected: node })}
          onZoom={(node) => (isCollapsed(tree, node) ? open(node) : go({ zoom: node }))}
        />
        {isPanelOpen && (
          <Panel
            capture={capture}
            tree={tree}
            node={looked}
            held={held}
            counts={counts}
            momentWords={momentWords}
            onSource={onSource}
            onHolders={onHolders}
            onClose={() => setPanelOpen(false)}
          />
        )}
      </div>
      <p class="sr" role="status" id="told">
        {nameOf(tree, selected)}, {size(tree.bytes(selected))}, {share(tree.bytes(selected), whole)}
        {capture.isBeside && `, ${signedSize(tree.bytes(selected) - tree.before(selected))}`}
      </p>
      <p class="muted hint" id="flame-keys">
        {capture.isBeside ? "Width is the larger of what each stack held before and after; " : "Width is bytes; "}
        {inverted ? "callers lie below the allocating frame" : "callees lie below their caller"};{" "}
        {colouring === "delta"
          ? "red grew, teal shrank, the stronger the larger part of it; grey did neither, or is within error"
          : "paler is not your own code"}
        . {inverted && `Of more than ${MOST_CALLERS} callers, a zoom shows further ones. `}Click or Enter zooms or opens
        “in …”, arrows move, d shows details, Esc shows all, / searches.
      </p>
    </section>
  );
}

function Toggle({ on, words, title, onToggle }: { on: boolean; words: string; title: string; onToggle: () => void }) {
  return (
    <button class="toggle" aria-pressed={on} title={title} onClick={onToggle}>
      {words}
    </button>
  );
}
