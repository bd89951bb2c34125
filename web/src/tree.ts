// What a flame graph draws: a tree that is only unfolded where someone looks, upright or from the leaves to their callers.
import { COUNTED_KINDS } from "./capture";
import type { Figures, Shape } from "./shape";

export interface Tree {
  readonly shape: Shape;
  /** How many rows below the one that is zoomed to are drawn at once. */
  readonly mostRows: number;
  bytes(node: number): number;
  /** What it asked for itself; of an inverted tree, what begins here and has no caller. */
  own(node: number): number;
  readonly ownWords: string;
  blocks(node: number): number;
  kindBytes(node: number, kind: number): number;
  /** What the earlier of two captures held, and what of it stands on sampled blocks. */
  before(node: number): number;
  beforeSampled(node: number): number;
  /** How wide it is drawn: its bytes; in a page of two, of each stack the larger of before and after. */
  width(node: number): number;
  /** What of its bytes stands on sampled blocks. */
  sampled(node: number): number;
  key(node: number): number;
  parent(node: number): number;
  /** Children that are drawn, widest first. */
  children(node: number): readonly number[];
  /** The places of the shape that this node is. */
  places(node: number): ArrayLike<number>;
  /** For each node of the shape whether what it holds itself is part of this node. */
  part(node: number): Uint8Array;
}

export class Upright implements Tree {
  readonly ownWords = "self";
  readonly mostRows = Infinity;
  private readonly known = new Map<number, readonly number[]>();

  constructor(
    readonly shape: Shape,
    private readonly figures: Figures,
  ) {}

  bytes = (node: number): number => this.figures.total[node];
  own = (node: number): number => this.figures.own[node];
  blocks = (node: number): number => this.figures.blocks[node];
  kindBytes = (node: number, kind: number): number => this.figures.byKind[kind][node];
  before = (node: number): number => this.figures.before[node];
  beforeSampled = (node: number): number => this.figures.beforeSampled[node];
  width = (node: number): number => this.figures.width[node];
  sampled = (node: number): number => this.figures.sampled[node];
  key = (node: number): number => this.shape.key[node];
  parent = (node: number): number => this.shape.parent[node];
  places = (node: number): ArrayLike<number> => [node];
  part = (node: number): Uint8Array => this.shape.below(node);

  children(node: number): readonly number[] {
    let children = this.known.get(node);
    if (!children) {
      const { childFirst, childList } = this.shape;
      const { width } = this.figures;
      children = Array.from(childList.subarray(childFirst[node], childFirst[node + 1]))
        .filter((child) => width[child] > 0)
        .sort((one, other) => width[other] - width[one] || one - other);
      this.known.set(node, children);
    }
    return children;
  }
}

/** Each row of an inverted tree keeps its leaves: without a bound, 20,000 calls deep, that is gigabytes. A zoom shows further callers. */
export const MOST_CALLERS = 256;

/** The rows of an inverted node: what asked for memory (`leaf`), and where its path has been followed to (`at`). */
interface Rows {
  leaf: Int32Array;
  at: Int32Array;
}

const WIDTH = 5; // which of the sums of an inverted node says how wide it is drawn

export class Inverted implements Tree {
  readonly ownWords = "with no caller";
  readonly mostRows = MOST_CALLERS;
  private readonly rows: Rows[] = [];
  private readonly parents: number[] = [0];
  private readonly keys: number[] = [-1];
  private readonly sums: Float64Array[] = []; // bytes, blocks, before, sampled, before sampled, width, bytes of each counted kind
  private readonly below = new Map<number, readonly number[]>();
  private readonly columns: Float64Array[];

  constructor(
    readonly shape: Shape,
    figures: Figures,
  ) {
    this.columns = [
      figures.own,
      figures.ownBlocks,
      figures.ownBefore,
      figures.ownSampled,
      figures.ownBeforeSampled,
      figures.ownWidth,
      ...figures.ownByKind,
    ];
    // Also what holds nothing now: the figures over the run are of everything that ever allocated.
    const allocates = new Uint8Array(figures.own.length);
    for (const node of shape.capture.holderNode) allocates[shape.place[node]] = 1;
    const leaf = Int32Array.from(allocates.keys()).filter((node) => allocates[node] === 1);
    this.rows.push({ leaf, at: leaf });
    this.sums.push(this.summed(leaf));
  }

  bytes = (node: number): number => this.sums[node][0];
  blocks = (node: number): number => this.sums[node][1];
  before = (node: number): number => this.sums[node][2];
  sampled = (node: number): number => this.sums[node][3];
  beforeSampled = (node: number): number => this.sums[node][4];
  width = (node: number): number => this.sums[node][WIDTH];
  kindBytes = (node: number, kind: number): number => this.sums[node][6 + kind];
  key = (node: number): number => this.keys[node];
  parent = (node: number): number => this.parents[node];
  places = (node: number): ArrayLike<number> => this.rows[node].at;
  own = (node: number): number =>
    this.children(node).reduce((rest, child) => rest - this.bytes(child), this.bytes(node));

  part(node: number): Uint8Array {
    const marked = new Uint8Array(this.shape.parent.length);
    for (const leaf of this.rows[node].leaf) marked[leaf] = 1;
    return marked;
  }

  children(node: number): readonly number[] {
    const known = this.below.get(node);
    if (known) return known;
    const { leaf, at } = this.rows[node];
    const groups = new Map<number, { leaf: number[]; at: number[] }>();
    for (let row = 0; row < leaf.length; row += 1) {
      const next = node === 0 ? at[row] : this.shape.parent[at[row]];
      if (next === 0) continue; // the path begins here
      const key = this.shape.key[next];
      let group = groups.get(key);
      if (!group) groups.set(key, (group = { leaf: [], at: [] }));
      group.leaf.push(leaf[row]);
      group.at.push(next);
    }
    const children: number[] = [];
    for (const [key, group] of groups) {
      const rows = { leaf: Int32Array.from(group.leaf), at: Int32Array.from(group.at) };
      const sums = this.summed(rows.leaf);
      if (!sums[WIDTH]) continue;
      children.push(this.rows.length);
      this.rows.push(rows);
      this.parents.push(node);
      this.keys.push(key);
      this.sums.push(sums);
    }
    children.sort((one, other) => this.width(other) - this.width(one) || one - other);
    this.below.set(node, children);
    return children;
  }

  private summed(leaves: Int32Array): Float64Array {
    const sums = new Float64Array(6 + COUNTED_KINDS);
    this.columns.forEach((column, index) => {
      let sum = 0;
      for (let row = 0; row < leaves.length; row += 1) sum += column[leaves[row]];
      sums[index] = sum;
    });
    return sums;
  }
}

/** A frame's place: x and width as parts of the drawing's width, row 0 is the root. */
export interface Box {
  node: number;
  x: number;
  width: number;
  row: number;
}

/** Where the frames of a tree stand when `zoom` has the whole width: its callers above it, and below it, as many rows as
 * the tree draws at once, all at least `narrowest` wide. */
export function layout(tree: Tree, zoom: number, narrowest: number): Box[] {
  const above: number[] = [];
  for (let node = zoom; node !== 0; node = tree.parent(node)) above.push(tree.parent(node));
  above.reverse();
  const boxes: Box[] = above.map((node, row) => ({ node, x: 0, width: 1, row }));
  const whole = tree.width(zoom);
  const waiting: Box[] = [{ node: zoom, x: 0, width: 1, row: above.length }];
  while (waiting.length) {
    const box = waiting.pop()!;
    boxes.push(box);
    if (!whole || box.row - above.length >= tree.mostRows) continue;
    let x = box.x;
    for (const child of tree.children(box.node)) {
      const width = tree.width(child) / whole;
      if (width < narrowest) break;
      waiting.push({ node: child, x, width, row: box.row + 1 });
      x += width;
    }
  }
  return boxes;
}
