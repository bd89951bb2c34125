// Memory by class of mapping, with the lines of one's own code that most of each came through.
import { useMemo } from "preact/hooks";
import { type Capture, COUNTED_KINDS, type Held, KIND_WORDS } from "./capture";
import { type OwnLine, ownLines } from "./ranking";
import { nameOf } from "./shape";
import { type Column, Table } from "./table";
import { count, shortened, size } from "./words";

interface Class {
  kind: number;
  bytes: number;
  blocks: number;
  endBytes: number;
  lines: OwnLine[];
}

const CLASS_WORDS: Record<number, string> = {
  2: "requested with mmap, part of the sum",
  4: "made by this process, each page once, part of the sum",
  5: "pages of files, which the system can drop at any time",
  6: "made by another process, or before the recording",
  7: "address space only, without memory",
  8: "arenas of pymalloc for small Python objects, which are counted one by one",
};

export function MappingsView({ capture, held, momentWords }: { capture: Capture; held: Held; momentWords: string }) {
  const classes = useMemo(() => {
    const found: Class[] = [];
    for (const kind of Object.keys(CLASS_WORDS).map(Number)) {
      const counts = new Uint8Array(capture.holderNode.length);
      const one: Class = { kind, bytes: 0, blocks: 0, endBytes: 0, lines: [] };
      for (let holder = 0; holder < counts.length; holder += 1) {
        if (capture.holderKind[holder] !== kind) continue;
        counts[holder] = 1;
        one.bytes += held.bytes[holder];
        one.blocks += held.blocks[holder];
        one.endBytes += capture.end.bytes[holder];
      }
      one.lines = ownLines(capture, held, counts).slice(0, 3);
      found.push(one);
    }
    return found;
  }, [capture, held]);
  const columns: Column<Class>[] = [
    { id: "bytes", title: "Size", value: (one) => one.bytes, cell: (one) => size(one.bytes) },
    {
      id: "class",
      title: "Class",
      value: (one) => KIND_WORDS[one.kind],
      cell: (one) => (
        <span class="name">
          {KIND_WORDS[one.kind]} <small>{CLASS_WORDS[one.kind]}</small>
        </span>
      ),
      wide: true,
    },
    { id: "blocks", title: "Mappings", value: (one) => one.blocks, cell: (one) => count(one.blocks) },
    { id: "end", title: "At the end", value: (one) => one.endBytes, cell: (one) => size(one.endBytes) },
    {
      id: "lines",
      title: "Largest at",
      value: (one) => one.lines.map((line) => nameOf(capture, line.key)).join(", "),
      cell: (one) => (
        <small>
          {shortened(one.lines.map((line) => `${nameOf(capture, line.key)} ${size(line.bytes)}`).join(" · "), 120)}
        </small>
      ),
      wide: true,
    },
  ];
  return (
    <section>
      <p class="controls muted">
        Of these, anonymous mappings and shared memory are part of what is called allocated (
        {KIND_WORDS.slice(0, COUNTED_KINDS).join(", ")}); {momentWords}.
      </p>
      <Table caption="Mappings by class" columns={columns} items={classes} first="bytes" />
    </section>
  );
}
