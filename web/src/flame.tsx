// The flame graph on a canvas: only what is in sight is drawn, so that depth and number of stacks cost nothing.
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Painter } from "./colour";
import { signedSize } from "./change";
import { sourceLine } from "./panel";
import type { Found } from "./search";
import { placeOf as placeOfKey } from "./shape";
import { type Box, layout, type Tree } from "./tree";
import { blocks, share, shortened, size, sizeWithin } from "./words";

const ROW = 21;
const FONT = 12;
const NARROWEST_PX = 0.6;
const FOUND = "#f2c744";
const FONTS = "ui-monospace, 'SF Mono', 'DejaVu Sans Mono', Menlo, Consolas, monospace";

interface Props {
  tree: Tree;
  zoom: number;
  selected: number;
  found: Found | null;
  painter: Painter;
  rootBelow: boolean;
  /** Whether frames show their source text in place of their name. */
  hasSource: boolean;
  label: string;
  onHover: (node: number | null) => void;
  onSelect: (node: number) => void;
  onZoom: (node: number) => void;
}

export function nameOf(tree: Tree, node: number): string {
  const key = tree.key(node);
  return key < 0 ? "all" : tree.shape.keys.list[key].name;
}

export function placeOf(tree: Tree, node: number): string {
  const key = tree.key(node);
  return key < 0 ? "" : placeOfKey(tree.shape.capture, tree.shape.keys.list[key]);
}

/** Whether a frame stands for frames of libraries that a click opens. */
export function isCollapsed(tree: Tree, node: number): boolean {
  return tree.key(node) >= 0 && tree.shape.keys.list[tree.key(node)].collapsed === true;
}

/** What a frame holds; in a page of two, by how much it grew. */
function figureOf(tree: Tree, node: number): string {
  return tree.shape.capture.isBeside ? signedSize(tree.bytes(node) - tree.before(node)) : size(tree.bytes(node));
}

/** The element's width in pixels, kept up to date. */
function useWidth(): [{ current: HTMLDivElement | null }, number] {
  const element = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(800);
  useLayoutEffect(() => {
    const measure = () => element.current && setWidth(Math.max(120, element.current.clientWidth));
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element.current!);
    return () => observer.disconnect();
  }, []);
  return [element, width];
}

export function Flame(props: Props) {
  const { tree, zoom, selected, found, painter, rootBelow, hasSource, label, onHover, onSelect, onZoom } = props;
  const [scroller, width] = useWidth();
  const canvas = useRef<HTMLCanvasElement>(null);
  const [hovered, setHovered] = useState<{ node: number; x: number; y: number } | null>(null);
  const boxes = useMemo(() => layout(tree, zoom, NARROWEST_PX / width), [tree, zoom, width]);
  const rows = useMemo(() => inRows(boxes), [boxes]);
  const height = rows.length * ROW;
  const visible = Math.min(height, Math.max(240, Math.round(window.innerHeight * 0.62)));
  const yOf = useCallback((row: number) => (rootBelow ? height - (row + 1) * ROW : row * ROW), [rootBelow, height]);

  const draw = useCallback(() => {
    const element = canvas.current;
    if (!element || !scroller.current) return;
    const context = prepared(element, width, visible);
    drawRows(context, {
      tree,
      rows,
      width,
      visible,
      top: scroller.current.scrollTop,
      yOf,
      found,
      painter,
      hasSource,
      selected,
      hovered: hovered?.node ?? -1,
    });
  }, [tree, rows, width, visible, yOf, found, painter, hasSource, selected, hovered]);
  useLayoutEffect(draw, [draw]);

  useEffect(() => {
    // Reading starts at the root. In the flipped drawing it is at the bottom.
    if (scroller.current) scroller.current.scrollTop = rootBelow ? height : 0;
  }, [rootBelow, tree, zoom]);

  const boxAt = (event: MouseEvent): Box | null => {
    const bounds = canvas.current!.getBoundingClientRect();
    const y = event.clientY - bounds.top + scroller.current!.scrollTop;
    const row = rootBelow ? Math.floor((height - y) / ROW) : Math.floor(y / ROW);
    return boxIn(rows[row] ?? [], (event.clientX - bounds.left) / width);
  };
  const move = (event: MouseEvent) => {
    const box = boxAt(event);
    if ((box?.node ?? -1) !== (hovered?.node ?? -1)) onHover(box ? box.node : null);
    setHovered(box ? { node: box.node, x: event.clientX, y: event.clientY } : null);
  };
  const leave = () => {
    setHovered(null);
    onHover(null);
  };
  const click = (event: MouseEvent) => {
    const box = boxAt(event);
    if (!box) return;
    onSelect(box.node);
    onZoom(box.node);
  };
  const reveal = (node: number) => {
    onSelect(node);
    const box = boxes.find((one) => one.node === node);
    if (!box || !scroller.current) return;
    const y = yOf(box.row);
    const { scrollTop } = scroller.current;
    if (y < scrollTop) scroller.current.scrollTop = y;
    else if (y + ROW > scrollTop + visible) scroller.current.scrollTop = y + ROW - visible;
  };
  const press = (event: KeyboardEvent) => {
    const next = afterKey(event.key, { tree, boxes, rows, selected, zoom, rootBelow });
    if (next === null) return;
    event.preventDefault();
    event.stopPropagation();
    if (next.zoom !== undefined) onZoom(next.zoom);
    if (next.node !== undefined) reveal(next.node);
  };

  return (
    <div class="flame">
      <div class="flame-scroll" ref={scroller} style={{ maxHeight: `${visible}px` }} onScroll={draw}>
        <div style={{ height: `${height}px` }}>
          <canvas
            ref={canvas}
            tabIndex={0}
            role="application"
            aria-roledescription="flame graph"
            aria-label={label}
            aria-describedby="flame-keys"
            onMouseMove={move}
            onMouseLeave={leave}
            onClick={click}
            onKeyDown={press}
            onFocus={draw}
            onBlur={draw}
          />
        </div>
      </div>
      {hovered && <Tip tree={tree} node={hovered.node} x={hovered.x} y={hovered.y} />}
    </div>
  );
}

function Tip({ tree, node, x, y }: { tree: Tree; node: number; x: number; y: number }) {
  const place = placeOf(tree, node);
  const left = Math.max(8, Math.min(x + 14, window.innerWidth - 340));
  const above = y > window.innerHeight - 110;
  return (
    <div class="tip" aria-hidden="true" style={{ left: `${left}px`, top: `${above ? y - 84 : y + 18}px` }}>
      <strong>{shortened(nameOf(tree, node), 90)}</strong>
      {place && <span>{shortened(place, 90)}</span>}
      {isCollapsed(tree, node) && <span>click to open the frames inside</span>}
      {tree.shape.capture.isBeside && (
        <span>
          {figureOf(tree, node)}: {size(tree.before(node))} before
        </span>
      )}
      <span>
        {sizeWithin(tree.bytes(node), tree.shape.capture.errorOf(tree.sampled(node)))} ·{" "}
        {share(tree.bytes(node), tree.bytes(0))} · {blocks(tree.blocks(node))}
      </span>
    </div>
  );
}

function inRows(boxes: Box[]): Box[][] {
  const rows: Box[][] = [];
  for (const box of boxes) (rows[box.row] ??= []).push(box);
  for (const row of rows) row.sort((one, other) => one.x - other.x);
  return rows;
}

/** The box of a row at a place between 0 and 1. */
export function boxIn(row: Box[], place: number): Box | null {
  let [low, high] = [0, row.length - 1];
  while (low <= high) {
    const middle = (low + high) >> 1;
    const box = row[middle];
    if (place < box.x) high = middle - 1;
    else if (place >= box.x + box.width) low = middle + 1;
    else return box;
  }
  return null;
}

interface Standing {
  tree: Tree;
  boxes: Box[];
  rows: Box[][];
  selected: number;
  zoom: number;
  rootBelow: boolean;
}

/** Where a key leads: to another frame, to another zoom, or null for keys that mean nothing here. */
export function afterKey(
  key: string,
  { boxes, rows, selected, zoom, rootBelow, tree }: Standing,
): { node?: number; zoom?: number } | null {
  const here = boxes.find((box) => box.node === selected) ?? boxes.find((box) => box.node === zoom)!;
  const [down, up] = rootBelow ? ["ArrowUp", "ArrowDown"] : ["ArrowDown", "ArrowUp"];
  if (key === "Enter") return { zoom: here.node };
  if (key === "Escape") return zoom === 0 ? null : { zoom: 0, node: selected };
  if (key === "Backspace") return { zoom: tree.parent(zoom), node: selected };
  if (key === "Home") return { node: boxes[0].node };
  const row = rows[here.row];
  const inRow = row.indexOf(here);
  if (key === "ArrowRight") return { node: row[Math.min(row.length - 1, inRow + 1)].node };
  if (key === "ArrowLeft") return { node: row[Math.max(0, inRow - 1)].node };
  if (key === up)
    return {
      node: (rows[here.row - 1] ? boxIn(rows[here.row - 1], here.x + here.width / 2) : null)?.node ?? here.node,
    };
  if (key === down) {
    const children = (rows[here.row + 1] ?? []).filter((box) => tree.parent(box.node) === here.node && box.x >= here.x);
    return { node: children.sort((one, other) => other.width - one.width)[0]?.node ?? here.node };
  }
  return null;
}

/** The canvas at the screen's own resolution, cleared. */
function prepared(element: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const ratio = window.devicePixelRatio || 1;
  if (element.width !== Math.round(width * ratio) || element.height !== Math.round(height * ratio)) {
    element.width = Math.round(width * ratio);
    element.height = Math.round(height * ratio);
    element.style.width = `${width}px`;
    element.style.height = `${height}px`;
  }
  const context = element.getContext("2d")!;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

interface Drawing {
  tree: Tree;
  rows: Box[][];
  width: number;
  visible: number;
  top: number;
  yOf: (row: number) => number;
  found: Found | null;
  painter: Painter;
  hasSource: boolean;
  selected: number;
  hovered: number;
}

function drawRows(context: CanvasRenderingContext2D, drawing: Drawing): void {
  const { rows, visible, top, yOf } = drawing;
  context.font = `${FONT}px ${FONTS}`;
  context.textBaseline = "middle";
  const letter = context.measureText("0").width;
  const rings: [Box, number][] = [];
  rows.forEach((row, number) => {
    const y = yOf(number) - top;
    if (y > visible || y + ROW < 0) return;
    for (const box of row) {
      drawBox(context, drawing, box, y, letter);
      if (box.node === drawing.selected || box.node === drawing.hovered) rings.push([box, y]);
    }
  });
  const style = getComputedStyle(context.canvas);
  for (const [box, y] of rings) {
    context.strokeStyle = style.getPropertyValue(box.node === drawing.selected ? "--accent" : "--ink");
    context.lineWidth = box.node === drawing.selected ? 2 : 1;
    context.strokeRect(box.x * drawing.width + 1, y + 1, Math.max(1, box.width * drawing.width - 2), ROW - 3);
  }
}

function drawBox(
  context: CanvasRenderingContext2D,
  { tree, width, found, painter, hasSource }: Drawing,
  box: Box,
  y: number,
  letter: number,
): void {
  const [x, wide] = [box.x * width, box.width * width];
  const key = tree.key(box.node);
  const isFound = found !== null && key >= 0 && found.keys[key] === 1;
  const { fill, text } = painter.of(box.node);
  context.globalAlpha = found && !isFound ? 0.38 : 1;
  context.fillStyle = isFound ? FOUND : fill;
  const gap = wide > 3 ? 1 : wide > 1.5 ? 0.5 : 0;
  context.beginPath();
  if (wide > 6) context.roundRect(x, y, wide - gap, ROW - 1.5, 2);
  else context.rect(x, y, Math.max(0.4, wide - gap), ROW - 1.5);
  context.fill();
  const room = Math.floor((wide - 9) / letter);
  if (room >= 3)
    drawLabel(
      context,
      tree,
      box.node,
      labelOf(tree, box.node, hasSource),
      { x: x + 5, y: y + ROW / 2, room, letter, wide },
      isFound ? "#1b1503" : text,
    );
  context.globalAlpha = 1;
}

interface LabelPlace {
  x: number;
  y: number;
  room: number;
  letter: number;
  wide: number;
}

/** What a frame is called: by its name, or by the text of its line where that is wanted and known. */
function labelOf(tree: Tree, node: number, hasSource: boolean): string {
  if (node === 0) return `all · ${figureOf(tree, 0)}`;
  const key = tree.shape.keys.list[tree.key(node)];
  const text = hasSource && key?.line && !key.gone ? sourceLine(tree.shape.capture, key.file, key.line)?.trim() : "";
  return text || nameOf(tree, node);
}

/** The label, and where there is room its place and size, fainter. */
function drawLabel(
  context: CanvasRenderingContext2D,
  tree: Tree,
  node: number,
  name: string,
  { x, y, room, letter, wide }: LabelPlace,
  colour: string,
): void {
  const shown = shortened(name, room);
  // Letters of other scripts may be wider than the room that was counted for them.
  const isPlain = /^[\x20-\x7e…·]*$/.test(shown);
  context.fillStyle = colour;
  if (!isPlain) {
    context.save();
    context.beginPath();
    context.rect(x - 4, y - ROW / 2, wide - 6, ROW);
    context.clip();
  }
  context.fillText(shown, x, y + 0.5);
  const left = room - name.length - 2;
  if (node !== 0 && left > 8 && isPlain) {
    const figure = figureOf(tree, node);
    const more = `${placeOf(tree, node)}  ${figure}`.trim();
    const alpha = context.globalAlpha;
    context.globalAlpha = alpha * 0.66;
    if (more.length <= left) context.fillText(more, x + (name.length + 2) * letter, y + 0.5);
    else if (figure.length <= left) context.fillText(figure, x + (name.length + 2) * letter, y + 0.5);
    context.globalAlpha = alpha;
  }
  if (!isPlain) context.restore();
}
