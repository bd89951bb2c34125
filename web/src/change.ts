// What grew between two captures: how much, from what to what, and when that may be chance.
import type { Capture, Moment } from "./capture";
import { seconds, size } from "./words";

export type State = "new" | "gone" | "grew" | "shrank" | "within error" | "unchanged";

/** The rule of `hiwater diff`: an estimate changed when it did by more than two standard errors. */
export function isWithinError(change: number, error: number): boolean {
  return change !== 0 && Math.abs(change) <= 2 * error;
}

/** What became of something that held `before` and holds `after`, with all that it called; `own` is by how much it changed itself. */
export function stateOf(before: number, after: number, error: number, own = after - before): State {
  if (isWithinError(own, error)) return "within error";
  const change = own || after - before;
  if (!change) return "unchanged";
  return !before ? "new" : !after ? "gone" : change > 0 ? "grew" : "shrank";
}

/** A change in bytes with its sign: +812.4 MiB. */
export function signedSize(bytes: number): string {
  return `${bytes > 0 ? "+" : bytes < 0 ? "−" : "±"}${size(Math.abs(bytes))}`;
}

/** The same with its standard error, where it has one. */
export function signedWithin(bytes: number, error: number): string {
  return error ? `${signedSize(bytes)} (± ${size(error)})` : signedSize(bytes);
}

/** The moment of the earlier capture that a moment of this one is compared with, in words. */
export function beforeWords(capture: Capture, moment: Moment): string {
  const { before } = capture.compared!;
  const at = moment.at === "slice" ? capture.described.asked.at : moment.at;
  if (at === "end") return `at its end, at ${seconds(before.duration_ns)}`;
  return at === "peak" ? `at its peak, at ${seconds(before.peak_ns)}` : `at ${seconds(before.asked_ns)}`;
}
