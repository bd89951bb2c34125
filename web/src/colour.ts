// Colours of frames: hue by kind of memory or by module, paler where the code is not the user's own; or by what grew.
import { COUNTED_KINDS } from "./capture";
import { isWithinError } from "./change";
import type { Tree } from "./tree";

export type Colouring = "kind" | "module" | "delta";

export const KIND_HUES = [212, 28, 152, 286, 340];

export interface Paint {
  fill: string;
  text: string;
}

/** A small number for a name: the same for the same name, in every page. */
function hash(text: string): number {
  let value = 2166136261;
  for (let index = 0; index < text.length; index += 1) value = Math.imul(value ^ text.charCodeAt(index), 16777619);
  return value >>> 0;
}

export class Painter {
  private readonly known = new Map<string, Paint>();

  constructor(
    private readonly tree: Tree,
    private readonly colouring: Colouring,
    private readonly isDark: boolean,
  ) {}

  of(node: number): Paint {
    const key = this.tree.key(node);
    if (key < 0) return this.paint(212, 0.06, 0);
    if (this.colouring === "delta") return this.ofDelta(node);
    const { capture, keys } = this.tree.shape;
    const { name, file } = keys.list[key];
    const isOwn = file >= 0 && !capture.files[file].library;
    const shade = hash(file < 0 ? name : capture.files[file].name);
    let hue: number;
    if (this.colouring === "module") hue = hash(file < 0 ? name : capture.files[file].module.split(".")[0]) % 360;
    else hue = KIND_HUES[this.mostOf(node)] + (shade % 21) - 10;
    return this.paint(hue, isOwn ? 1 : 0.42, (shade >> 8) % 7);
  }

  private mostOf(node: number): number {
    let most = 0;
    for (let kind = 1; kind < COUNTED_KINDS; kind += 1)
      if (this.tree.kindBytes(node, kind) > this.tree.kindBytes(node, most)) most = kind;
    return most;
  }

  private ofDelta(node: number): Paint {
    const { tree } = this;
    const change = tree.bytes(node) - tree.before(node);
    const error = tree.shape.capture.changeErrorOf(tree.sampled(node), tree.beforeSampled(node));
    if (!change || isWithinError(change, error)) return this.paint(212, 0, 0);
    const part = Math.min(1, Math.abs(change) / Math.max(1, tree.width(node)));
    return this.paint(change > 0 ? 8 : 187, 0.15 + 0.85 * part, 0);
  }

  /** `strength` from 0 (grey) to 1; `step` tells neighbours of one hue apart. */
  private paint(hue: number, strength: number, step: number): Paint {
    const id = `${hue} ${strength.toFixed(2)} ${step}`;
    let paint = this.known.get(id);
    if (!paint) {
      // Greens shine more than other hues of the same saturation.
      const rich = hue > 90 && hue < 190 ? 0.55 : 1;
      const fill = this.isDark
        ? `hsl(${hue} ${Math.round((14 + 34 * strength) * rich)}% ${Math.round(24 + 12 * strength) + step - 3}%)`
        : `hsl(${hue} ${Math.round((18 + 52 * strength) * rich)}% ${Math.round(91 - 17 * strength) - step + 3}%)`;
      paint = { fill, text: this.isDark ? "#eef3f8" : "#10212e" };
      this.known.set(id, paint);
    }
    return paint;
  }
}
