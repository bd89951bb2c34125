// What somebody does with a notebook in JupyterLab, in a real Chromium. Usage: node jupyterlab.mjs SCENARIO ADDRESS NOTEBOOK THEME [FOLDER]
//
// tests/helpers/jupyterlab_server.py starts the server and gives its address. `cells` runs a notebook and prints what it saw as JSON, `pictures`
// runs examples/notebook.ipynb and writes the pictures of the documentation to FOLDER.
import assert from "node:assert/strict";
import { join } from "node:path";
import { withBrowser } from "./chromium.mjs";

const SOON = { timeout: 300_000 };
const RAN = { timeout: 240_000 };

/** The pictures of docs/notebooks.md: file, first and last code cell in it. */
const PICTURES = [
    ["notebook.png", 3, 4],
    ["notebook-session.png", 10, 13],
];
const WIDTH = 1060;
const MARGIN = 6;

/** Complaints of ours, and requests that leave the machine. What JupyterLab itself logs is its own. */
function watched(page) {
    const complaints = [];
    page.on("console", (message) => {
        if (message.type() === "error" && !/^https?:/.test(message.location().url))
            complaints.push(`console: ${message.location().url} ${message.text()}`);
    });
    page.on(
        "pageerror",
        (error) => /srcdoc|hiwater/.test(error.stack ?? "") && complaints.push(`error: ${error.stack}`),
    );
    page.on("request", (request) => {
        const { protocol, hostname } = new URL(request.url());
        if (/^(https?|wss?):$/.test(protocol) && !["localhost", "127.0.0.1"].includes(hostname))
            complaints.push(`request: ${request.url()}`);
    });
    return complaints;
}

async function opened(page, address, notebook) {
    const url = new URL(address);
    url.pathname += `/tree/${notebook}`;
    await page.goto(url.href);
    await page.locator(".jp-Notebook .jp-CodeCell").first().waitFor(SOON);
    await eventually("the kernel is not ready", async () => {
        const kernels = await (await page.request.get(new URL(`/api/kernels${url.search}`, url).href)).json();
        return kernels.length === 1 && kernels[0].execution_state === "idle" && kernels[0].connections > 0;
    });
    await page.locator("#jp-main-statusbar", { hasText: "| Idle" }).waitFor(SOON);
}

async function eventually(otherwise, holds) {
    for (const until = Date.now() + SOON.timeout; Date.now() < until; await new Promise((go) => setTimeout(go, 100)))
        if (await holds()) return;
    assert.fail(otherwise);
}

/** Run all cells from the menu, and wait until each of them has its number. */
async function ran(page) {
    await page.locator(".lm-MenuBar-item", { hasText: /^Run$/ }).click();
    await page.locator('.lm-Menu-item[data-command="runmenu:run-all"]').click();
    const count = await page.locator(".jp-Notebook .jp-CodeCell").count();
    const numbered = page.locator(".jp-Notebook .jp-CodeCell .jp-InputPrompt", { hasText: /\[\d+\]/ });
    await numbered.nth(count - 1).waitFor(RAN);
    const cells = page.locator(".jp-Notebook .jp-CodeCell");
    return (index) => cells.nth(index);
}

/** A flame graph that works: it was drawn, a click on a frame gives that the whole width, Show all takes it back. */
async function usedFlame(frame) {
    const canvas = frame.locator(".flame canvas");
    await canvas.waitFor(SOON);
    const drawn = () => canvas.evaluate((element) => element.toDataURL());
    const whole = await drawn();
    const seen = { label: await canvas.getAttribute("aria-label") };
    await canvas.click({ position: { x: 20, y: 30 } });
    const back = frame.getByRole("button", { name: "Show all" });
    await back.waitFor(SOON);
    await frame.getByRole("button", { name: "Details" }).click();
    seen.clicked = await frame.locator(".panel h2").innerText();
    await eventually("the flame graph draws the same when a frame is clicked", async () => (await drawn()) !== whole);
    await back.click();
    await back.waitFor({ state: "detached", ...SOON });
    await frame.getByRole("tab", { name: "Table" }).click();
    await frame.locator(".table-view tbody tr").first().waitFor(SOON);
    seen.rows = await frame.locator(".table-view tbody tr").allInnerTexts();
    return seen;
}

/** Until the notebook's height has come to rest: outputs move when those above them are drawn. */
async function settled(page) {
    let before = -1;
    await eventually("the notebook does not come to rest", async () => {
        await page.waitForTimeout(400);
        const now = await page.locator(".jp-Notebook").evaluate((element) => element.scrollHeight);
        const isSame = now === before;
        before = now;
        return isSame;
    });
}

const SCENARIOS = {
    async cells(page) {
        const cell = await ran(page);
        const seen = { lines: [], reports: [] };
        for (let index = 0; index < (await page.locator(".jp-Notebook .jp-CodeCell").count()); index++) {
            seen.lines.push(await cell(index).locator("div.hiwater").allInnerTexts());
            seen.reports.push(await cell(index).locator("pre.hiwater").allInnerTexts());
        }
        const iframe = page.locator(".jp-Notebook iframe");
        seen.sandbox = await iframe.getAttribute("sandbox");
        await iframe.scrollIntoViewIfNeeded();
        seen.flame = await usedFlame(page.frameLocator(".jp-Notebook iframe"));
        const inner = await (await iframe.elementHandle()).contentFrame();
        seen.origin = await inner.evaluate(() => window.origin);
        return seen;
    },

    async pictures(page, folder) {
        const cell = await ran(page);
        await page.frameLocator(".jp-Notebook iframe").locator(".flame canvas").waitFor(SOON);
        await page.keyboard.press("Control+b"); // the list of files, which is in the picture's way
        await page.locator(".jp-Notebook .jp-Cell").first().click(); // the frame around the chosen cell, too
        const files = [];
        for (const [name, first, last] of PICTURES) {
            await page.setViewportSize({ width: WIDTH, height: 3000 }); // what is scrolled away would not be drawn
            await cell(last).scrollIntoViewIfNeeded();
            await settled(page);
            const [from, to] = [await cell(first).boundingBox(), await cell(last).boundingBox()];
            files.push(join(folder, theme === "dark" ? name.replace(".png", "-dark.png") : name));
            await page.screenshot({
                path: files.at(-1),
                clip: {
                    x: from.x,
                    y: from.y - MARGIN,
                    width: from.width,
                    height: to.y + to.height - from.y + 2 * MARGIN,
                },
            });
        }
        return files;
    },
};

const [scenario, address, notebook, theme, folder] = process.argv.slice(2);
const seen = await withBrowser({ locale: "en-GB", colorScheme: theme }, async (page) => {
    page.setDefaultTimeout(SOON.timeout);
    const complaints = watched(page);
    await opened(page, address, notebook);
    const result = await SCENARIOS[scenario](page, folder);
    assert.deepEqual(complaints, []);
    return result;
});
console.log(JSON.stringify(seen));
