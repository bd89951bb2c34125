// The other end of src/hiwater/report/html/columns.py.
import type { HiwaterPage, PackedColumn } from "./page";

export class Unpacked {
  readonly page: HiwaterPage;
  private readonly columns: Uint8Array;

  constructor(content: Uint8Array) {
    const length = new DataView(content.buffer, content.byteOffset).getUint32(0, true);
    this.page = JSON.parse(new TextDecoder().decode(content.subarray(4, 4 + length)));
    this.columns = content.subarray(4 + length);
  }

  /** Whole numbers below 2^31: ids, counts, lines. */
  ints(column: PackedColumn): Int32Array {
    return this.fill(column, new Int32Array(column.count));
  }

  /** Bytes and times: exact up to 2^53. */
  numbers(column: PackedColumn): Float64Array {
    return this.fill(column, new Float64Array(column.count));
  }

  private fill<Numbers extends Int32Array | Float64Array>(column: PackedColumn, values: Numbers): Numbers {
    const { at, count, width, signed } = column;
    let factor = 1;
    for (let plane = 0; plane < width; plane += 1, factor *= 256) {
      const from = at + plane * count;
      for (let index = 0; index < count; index += 1) values[index] += this.columns[from + index] * factor;
    }
    if (signed) {
      for (let index = 0; index < count; index += 1) {
        const value = values[index];
        values[index] = value % 2 === 0 ? value / 2 : -(value + 1) / 2;
      }
    }
    return values;
  }
}

/** Unpack the text of a page. Throws where the browser cannot, or the text is damaged. */
export async function unpack(text: string): Promise<Unpacked> {
  const binary = atob(text.trim());
  const packed = new Uint8Array(binary.length);
  for (let index = 0; index < binary.length; index += 1) packed[index] = binary.charCodeAt(index);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Unpacked(new Uint8Array(await new Response(stream).arrayBuffer()));
}
