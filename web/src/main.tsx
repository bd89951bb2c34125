// Unpacks the data that stands in the page and puts the live page in place of the summary that reads without scripts.
import { render } from "preact";
import { App } from "./app";
import { Capture } from "./capture";
import { unpack } from "./columns";

async function main(): Promise<void> {
  const place = document.getElementById("app")!;
  const data = document.getElementById("data")!;
  try {
    const unpacked = await unpack(data.textContent ?? "");
    data.remove();
    const captures = unpacked.page.captures.map((described) => new Capture(described, unpacked));
    if (window.parent !== window) document.documentElement.dataset.framed = "";
    place.replaceChildren();
    render(<App captures={captures} run={unpacked.page.run} />, place);
    performance.mark("hiwater-shown");
  } catch (error) {
    const note = document.createElement("p");
    note.className = "notes";
    note.textContent = `Only the summary can be shown here: ${error instanceof Error ? error.message : String(error)}`;
    place.prepend(note);
  }
}

void main();
