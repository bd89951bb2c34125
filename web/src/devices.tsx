// What the memory of each accelerator consisted of: why the driver says more than the tensors.
import type { Capture } from "./capture";
import { printable, seconds, share, size } from "./words";

type Device = Capture["described"]["summary"]["devices"][number];
type Term = NonNullable<Device["breakdown"]>["terms"][number];

const UNACCOUNTED = "unaccounted";
const USED = "used by this process";
/** Colours by what a term is: what is held and of no use is paler than what it is held for. */
const SHADES: [RegExp, string][] = [
  [/^(tensors|arrays)/, "part3"],
  [/^(rounding|waiting)/, "part3 slack"],
  [/^fragments/, "part6"],
  [/^cached/, "part6 slack"],
  [/^private/, "part3 slack"],
  [/^held by/, "part4"],
  [/^context/, "part5"],
  [/^unaccounted/, "unexplained"],
];

const shadeOf = (term: Term) => SHADES.find(([pattern]) => pattern.test(term.name))?.[1] ?? "part5";

export function DeviceBreakdowns({ capture }: { capture: Capture }) {
  return (
    <>
      {capture.described.summary.devices.map((device) => (
        <DeviceBreakdown key={`${device.backend} ${device.name}`} device={device} />
      ))}
    </>
  );
}

function DeviceBreakdown({ device }: { device: Device }) {
  const snapshot = device.breakdown;
  if (!snapshot) return null;
  const end = snapshot.terms.findIndex((term) => term.name === UNACCOUNTED);
  const parts = snapshot.terms.slice(0, end + 1).filter((term) => term.bytes || term.name === UNACCOUNTED);
  const rest = snapshot.terms.slice(end + 1).filter((term) => term.bytes);
  const whole = parts.reduce((sum, term) => sum + Math.max(0, term.bytes ?? 0), 0);
  const used = snapshot.terms.find((term) => term.name === USED)?.bytes ?? null;
  return (
    <figure class="breakdown">
      <figcaption>
        Where the memory of {printable(device.name)} was, at {seconds(snapshot.at_ns)}:{" "}
        <b>{used === null ? `${size(whole)} accounted for` : `${size(used)} used, by the driver's count`}</b>
      </figcaption>
      <div class="stack-bar tall" aria-hidden="true">
        {parts.map((term) => (
          <i
            key={term.name}
            class={shadeOf(term)}
            style={{ width: `${(100 * Math.max(0, term.bytes ?? 0)) / Math.max(1, whole)}%` }}
          />
        ))}
      </div>
      <ul class="kinds">
        {parts.map((term) => (
          <li key={term.name} title={used && term.bytes !== null ? share(term.bytes, used) : undefined}>
            <i class={`dot ${shadeOf(term)}`} />
            {printable(term.name)} <b>{term.bytes === null ? "unknown" : size(term.bytes)}</b>
          </li>
        ))}
        {rest.map((term) => (
          <li key={term.name}>
            {printable(term.name)} <b>{size(term.bytes ?? 0)}</b>
          </li>
        ))}
      </ul>
    </figure>
  );
}
