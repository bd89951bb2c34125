// The flame graph with what belongs to it: how to look, what to leave out, search, and the panel.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Capture, Held } from "./capture";
import { signedSize } from "./change";
import { type Colouring, Painter } from "./colour";
import { Flame, nameOf } from "./flame";
import { Panel } from "./panel";
import { search } from "./search";
import { figuresOf, type Grouping, type Look, Shape } from "./shape";
import { Inverted, MOST_CALLERS, type Tree, Upright } from "./tree";
import { count, share, size } from "./words";

interface Props {
  capture: Capture;
  held: Held;
  counts: Uint8Array;
  momentWords: string;
  isDark: boolean;
  colouring: Colouring;
  onColouring: (colouring: Colouring) => void;
  onSource: (file: number, line: number) => void;
}

const FINENESSES: [Grouping, string][] = [
  ["line", "lines"],
  ["function", "functions"],
  ["file", "files"],
  ["module", "modules"],
  ["thread", "threads"],
];

export function FlameView({ capture, held, counts, momentWords, isDark, colouring, onColouring, onSource }: Props) {
  const { asked } = capture.described;
  const [look, setLook] = useState<Look>({
    by: asked.by === "stack" ? "line" : (asked.by as Grouping),
    hideImports: true,
    hideLibraries: false,
    hide: "",
  });
  const [inverted, setInverted] = useState(asked.inverted);
  const [rootBelow, setRootBelow] = useState(false);
  const [wanted, setWanted] = useState("");
  const [at, setAt] = useState({ zoom: 0, selected: 0 });
  const [hovered, setHovered] = useState<number | null>(null);
  const box = useRef<HTMLInputElement>(null);

  const shape = useMemo(() => new Shape(capture, look), [capture, look]);
  const tree: Tree = useMemo(() => {
    const figures = figuresOf(shape, held, counts);
    return inverted ? new Inverted(shape, figures) : new Upright(shape, figures);
  }, [shape, held, counts, inverted]);
  // A node is the same as long as the shape is; inverted, nodes are numbered as they are unfolded.
  const known = useRef({ shape, tree, inverted });
  const isSame =
    known.current.shape === shape && known.current.inverted === inverted && (!inverted || known.current.tree === tree);
  const { zoom, selected } = isSame && tree.width(at.zoom) > 0 ? at : { zoom: 0, selected: 0 };
  useEffect(() => {
    known.current = { shape, tree, inverted };
    if (at.zoom !== zoom || at.selected !== selected) setAt({ zoom, selected });
    setHovered(null);
  }, [shape, tree, inverted]);
  const found = useMemo(() => search(shape, held, counts, wanted), [shape, held, counts, wanted]);
  const painter = useMemo(() => new Painter(tree, colouring, isDark), [tree, colouring, isDark]);

  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      const isTyping = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
      if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "/") box.current?.focus();
      else if (event.key === "i") setInverted((value) => !value);
      else if (event.key === "f") setRootBelow((value) => !value);
      else if (event.key === "Escape") setAt({ zoom: 0, selected: 0 });
      else return;
      event.preventDefault();
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, []);

  const whole = tree.bytes(0);
  const looked = isSame && hovered !== null ? hovered : selected;
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
          words="Hide imports"
          title="hide the import system: its memory counts for the importing line"
          onToggle={() => setLook({ ...look, hideImports: !look.hideImports })}
        />
        <Toggle
          on={look.hideLibraries}
          words="Hide libraries"
          title="only your own code: memory of libraries counts for the line that called them"
          onToggle={() => setLook({ ...look, hideLibraries: !look.hideLibraries })}
        />
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
          <button class="quiet" onClick={() => setAt({ zoom: 0, selected })}>
            Show all (Esc)
          </button>
        )}
      </div>
      <div class="flame-and-panel">
        <Flame
          tree={tree}
          zoom={zoom}
          selected={selected}
          found={found}
          painter={painter}
          rootBelow={rootBelow}
          label={label}
          onHover={setHovered}
          onSelect={(node) => setAt((now) => ({ ...now, selected: node }))}
          onZoom={(node) => setAt((now) => ({ ...now, zoom: node }))}
        />
        <Panel
          capture={capture}
          tree={tree}
          node={looked}
          held={held}
          counts={counts}
          momentWords={momentWords}
          onSource={onSource}
        />
      </div>
      <p class="sr" role="status" id="told">
        {nameOf(tree, selected)}, {size(tree.bytes(selected))}, {share(tree.bytes(selected), whole)}
        {capture.isBeside && `, ${signedSize(tree.bytes(selected) - tree.before(selected))}`}
      </p>
      <p class="muted hint" id="flame-keys">
        {capture.isBeside ? "Width is the larger of what each stack held before and after; " : "Width is bytes; "}
        {inverted ? "callers lie below the allocating frame" : "callees lie below their caller"};{" "}
        {colouring === "delta"
          ? "red grew, blue shrank, the stronger the larger part of it; grey did neither, or is within error"
          : "paler is not your own code"}
        . {inverted && `Of more than ${MOST_CALLERS} callers, a zoom shows further ones. `}Click or Enter zooms, arrows
        move, Esc shows all, / searches.
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
