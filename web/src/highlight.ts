// Python source as coloured pieces: keywords, strings, comments, numbers and decorators. Strings may go over several lines.

export type Piece = [kind: "key" | "text" | "note" | "number" | "", text: string];

const KEYWORDS = new Set(
  (
    "False None True and as assert async await break case class continue def del elif else except finally for from global if import " +
    "in is lambda match nonlocal not or pass raise return try while with yield"
  ).split(" "),
);
const TOKEN =
  /(#.*)|([rbuft]{0,2}(?:"""|'''))|([rbuft]{0,2}(?:"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?))|(\b\d[\w.]*)|(@[\w.]+)|([\p{L}_][\p{L}\p{N}_]*)|([^])/giuy;

/** The pieces of each line. */
export function highlighted(lines: string[]): Piece[][] {
  let open = ""; // the quotes that end the string that the line begins in
  return lines.map((line) => {
    const pieces: Piece[] = [];
    let at = 0;
    const add = (kind: Piece[0], text: string) => {
      const last = pieces[pieces.length - 1];
      if (last?.[0] === kind) last[1] += text;
      else if (text) pieces.push([kind, text]);
      at += text.length;
    };
    const toTheEnd = (from: number) => {
      const end = line.indexOf(open, from);
      const text = end < 0 ? line.slice(at) : line.slice(at, end + open.length);
      if (end >= 0) open = "";
      add("text", text);
    };
    if (open) toTheEnd(0);
    while (at < line.length) {
      TOKEN.lastIndex = at;
      const [text, note, quotes, string, number, decorator, name] = TOKEN.exec(line)!;
      if (quotes) {
        open = quotes.slice(-3);
        toTheEnd(at + quotes.length);
      } else if (note) add("note", text);
      else if (string) add("text", text);
      else if (number) add("number", text);
      else if (decorator || (name && KEYWORDS.has(name))) add("key", text);
      else add("", text);
    }
    return pieces;
  });
}
