// Finding frames by name, and summing what they hold: each byte once, however often its path matches.
import type { Capture, Held } from "./capture";
import type { Key, Shape } from "./shape";

export interface Found {
  /** For each key of the shape whether it matches. */
  keys: Uint8Array;
  /** How many keys match that hold something. */
  frames: number;
  bytes: number;
}

/** A matcher for the text that someone typed: a regular expression between slashes, else a part of the name or path. */
export function matcher(wanted: string): ((text: string) => boolean) | null {
  const expression = /^\/(.+)\/?$/.exec(wanted);
  if (expression && wanted.length > 2 && wanted.endsWith("/")) {
    try {
      const regular = new RegExp(wanted.slice(1, -1), "iu");
      return (text) => regular.test(text);
    } catch {
      return null;
    }
  }
  const lower = wanted.toLowerCase();
  return (text) => text.toLowerCase().includes(lower);
}

/** Whether the name of a key matches, or its place: `/folder/file.py:12`. */
function isMatch(matches: (text: string) => boolean, capture: Capture, { name, file, line }: Key): boolean {
  return matches(name) || (file >= 0 && matches(`${capture.files[file].name}${line ? `:${line}` : ""}`));
}

export function search(shape: Shape, held: Held, counts: Uint8Array, wanted: string): Found | null {
  const matches = wanted.trim() === "" ? null : matcher(wanted.trim());
  if (!matches) return null;
  const { capture } = shape;
  const keys = new Uint8Array(shape.keys.list.length);
  for (let key = 0; key < keys.length; key += 1) keys[key] = Number(isMatch(matches, capture, shape.keys.list[key]));
  const inside = new Uint8Array(shape.parent.length);
  for (let node = 1; node < inside.length; node += 1) inside[node] = inside[shape.parent[node]] | keys[shape.key[node]];
  const used = new Uint8Array(keys.length);
  let bytes = 0;
  for (let holder = 0; holder < counts.length; holder += 1) {
    const node = shape.place[capture.holderNode[holder]];
    if (!counts[holder] || !inside[node] || !(held.bytes[holder] || held.before?.[holder])) continue;
    bytes += held.bytes[holder];
    for (let above = node; above !== 0 && inside[above] === 1; above = shape.parent[above]) {
      if (keys[shape.key[above]]) used[shape.key[above]] = 1;
      inside[above] = 2; // its callers are marked already
    }
  }
  return { keys, frames: used.reduce((sum, one) => sum + one, 0), bytes };
}
