// What holds the interpreter's objects: groups of like objects, each with its holder and the line that allocated it.
import { useState } from "preact/hooks";
import type { Capture } from "./capture";
import type { HeldGroup, HeldSite } from "./page";
import { sourceLine } from "./panel";
import { placeOf } from "./shape";
import { Bar, type Column, Table } from "./table";
import { keyOf } from "./user_lines";
import { count, printable, share, shortened, size } from "./words";

/** A line of source, by the number of its file. */
export interface Line {
  file: number;
  line: number;
}

interface Props {
  capture: Capture;
  /** The frames of a stack, the innermost first, of which the reader wants to know what holds their objects; null for all groups. */
  wanted: Line[] | null;
  onAll: () => void;
  onSource: (file: number, line: number) => void;
}

export function HoldersView({ capture, wanted, onAll, onSource }: Props) {
  const {
    groups,
    objects,
    bytes,
    groups_left_out: leftOut,
    hiwater_bytes: own,
    pause_ns: pause,
    at_ns: at,
    is_sampled: isSampled,
    types,
  } = capture.described.object_holders!;
  const [open, setOpen] = useState<HeldGroup | null>(null);
  const line = wanted?.find((one) => groups.some((group) => isAllocatedAt(capture, group, one)));
  const shown = line ? groups.filter((group) => isAllocatedAt(capture, group, line)) : groups;
  const columns: Column<HeldGroup>[] = [
    {
      id: "retained",
      title: "Retained",
      value: (group) => group.retained_bytes,
      cell: (group) => <Bar bytes={group.retained_bytes} error={0} whole={bytes} />,
    },
    {
      id: "share",
      title: "Share",
      value: (group) => group.retained_bytes / Math.max(1, bytes),
      cell: (group) => share(group.retained_bytes, bytes),
    },
    {
      id: "count",
      title: "Objects",
      value: (group) => group.count,
      cell: (group) => (group.count ? count(group.count) : ""),
    },
    {
      id: "type",
      title: "Type",
      value: (group) => group.type,
      cell: (group) => <code>{shortened(printable(group.type), 60)}</code>,
    },
    {
      id: "holder",
      title: "Held by",
      value: (group) => group.held_by,
      cell: (group) => (
        <Holder group={group} isOpen={group === open} onOpen={() => setOpen(group === open ? null : group)} />
      ),
      wide: true,
    },
    {
      id: "line",
      title: "Allocated at",
      value: (group) =>
        group.allocated_at.length ? `${group.allocated_at[0].file}:${group.allocated_at[0].line}` : "",
      cell: (group) => <Site capture={capture} site={group.allocated_at[0]} onSource={onSource} />,
    },
  ];
  return (
    <section class="my-lines">
      <p class="controls">
        <span>
          <b>{size(bytes)}</b> in {count(objects)} objects {(at / 1e9).toFixed(2)} s after the start
          {isSampled && ", C libraries' buffers as far as they are in the sample"}; hiwater's own modules hold{" "}
          {size(own)}. Retained is what would be free without the objects. The program stood still for{" "}
          {(pause / 1e6).toFixed(1)} ms.
          {leftOut > 0 && ` ${count(leftOut)} smaller groups are not listed.`}
        </span>
      </p>
      {wanted && (
        <p class="controls">
          <span>
            {line
              ? `Objects that ${placeOf(capture, { name: "", ...line })} allocated, or that hold some of them.`
              : "No listed group has objects that this stack allocated: all groups."}
          </span>
          {line && (
            <button class="quiet" onClick={onAll}>
              Show all
            </button>
          )}
        </p>
      )}
      <Table caption="What holds the objects" columns={columns} items={shown} first="retained" />
      <details>
        <summary>Types</summary>
        <ul>
          {types.slice(0, 30).map((row) => (
            <li key={row.type}>
              {size(row.bytes)} in {count(row.count)} × <code>{shortened(printable(row.type), 80)}</code>
            </li>
          ))}
        </ul>
      </details>
    </section>
  );
}

function isAllocatedAt(capture: Capture, group: HeldGroup, { file, line }: Line): boolean {
  const isIt = (site: HeldSite) => site.line === line && keyOf(capture, site).file === file;
  return group.allocated_at.some(isIt) || group.retained_allocated_at.some(isIt);
}

function Holder({ group, isOpen, onOpen }: { group: HeldGroup; isOpen: boolean; onOpen: () => void }) {
  return (
    <span class="name">
      {shortened(printable(group.held_by), 160)}{" "}
      <button class="expand" aria-expanded={isOpen} onClick={onOpen}>
        details
      </button>
      {isOpen && (
        <ul class="inside">
          {group.path.map((step, at) => (
            <li key={at}>{shortened(printable(step), 200)}</li>
          ))}
          {group.also_held_by.map((other) => (
            <li key={other}>also held by {shortened(printable(other), 200)}</li>
          ))}
          {group.contents.length > 1 &&
            group.contents.map((row) => (
              <li key={row.type}>
                contains <b>{size(row.bytes)}</b> <code>{shortened(printable(row.type), 60)}</code>
              </li>
            ))}
        </ul>
      )}
    </span>
  );
}

function Site({
  capture,
  site,
  onSource,
}: {
  capture: Capture;
  site: HeldSite | undefined;
  onSource: Props["onSource"];
}) {
  if (!site) return <small>not recorded</small>;
  const key = keyOf(capture, site);
  const place =
    key.file < 0
      ? shortened(printable(site.file ? `${site.file}:${site.line}` : site.function), 60)
      : placeOf(capture, key);
  if (key.file < 0 || sourceLine(capture, key.file, key.line) === null) return <small>{place}</small>;
  return (
    <button class="link" onClick={() => onSource(key.file, key.line)}>
      {place}
    </button>
  );
}
