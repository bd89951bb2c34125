// Sizes, times and names as people read them: the same words as src/hiwater/report/formatting.py.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** A number with so many digits. Half-way, Python goes to the even digit and toFixed goes up: a quarter of a MiB would read differently. */
function fixed(value: number, digits: number): string {
  const scaled = value * 10 ** digits;
  const below = Math.floor(scaled);
  const isHalfWay = scaled - below === 0.5 && scaled / 10 ** digits === value;
  return (isHalfWay && below % 2 === 0 ? below / 10 ** digits : value).toFixed(digits);
}

/** Bytes in IEC units: 812.4 MiB. */
export function size(bytes: number): string {
  if (bytes < 0) return `−${size(-bytes)}`;
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return unit === 0 ? `${Math.round(bytes)} B` : `${fixed(value, 1)} ${UNITS[unit]}`;
}

/** A size with its standard error, where it has one: 812.4 MiB ± 1.2 MiB. */
export function sizeWithin(bytes: number, error: number): string {
  return error ? `${size(bytes)} ± ${size(error)}` : size(bytes);
}

export function share(part: number, whole: number): string {
  return whole ? `${fixed((100 * part) / whole, 1)} %` : "–";
}

const GROUPED = new Intl.NumberFormat("en-US");

export function count(value: number): string {
  return GROUPED.format(value);
}

export function blocks(value: number): string {
  return `${count(value)} block${value === 1 ? "" : "s"}`;
}

export function seconds(nanoseconds: number): string {
  return `${fixed(nanoseconds / 1e9, 2)} s`;
}

// Not shown as they are: controls, which may turn text around, and line and paragraph separators. The joiner holds emoji together.
const UNSAFE = /(?!\u200d)[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;

/** Text in one line in which nothing is turned around. */
export function printable(text: string): string {
  return text.replace(UNSAFE, (character) => {
    const code = character.codePointAt(0)!;
    const hex = code.toString(16);
    return code < 0x100
      ? `\\x${hex.padStart(2, "0")}`
      : code < 0x10000
        ? `\\u${hex.padStart(4, "0")}`
        : `\\U${hex.padStart(8, "0")}`;
  });
}

/** The text without its middle when it is longer than `longest`. */
export function shortened(text: string, longest: number): string {
  if (text.length <= longest) return text;
  const keep = Math.max(1, longest - 1);
  const tail = Math.floor(keep / 2);
  return `${text.slice(0, keep - tail)}…${text.slice(text.length - tail)}`;
}

const LIBRARY_FOLDER = /^.*?\/(?:(?:site|dist)-packages|lib(?:64)?\/python3(?:\.\d+t?)?)\/(?=[^/])/;

/** A path without what says nothing: from the package on for a library, else the last part with its folder where needed. */
export function shortPath(path: string): string {
  const inside = path.replace(LIBRARY_FOLDER, "").replace(/^(?:site|dist)-packages\//, "");
  if (inside !== path) return inside;
  const parts = path.split("/");
  const last = parts[parts.length - 1];
  return last === "__init__.py" || last === "__main__.py" ? parts.slice(-2).join("/") : last;
}
